"""What a mistyped command line is told: what was given, what is expected, what was perhaps
meant.
"""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from swarmfree.cli.main import app


def _told(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), prog_name="swarmfree")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    return result.stderr.removeprefix("swarmfree: ").rstrip()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("local", "--peers", "abc"), "--peers abc: must be a whole number. See swarmfree local --help"),
        (("local", "--peers", "4.5"), "--peers 4.5: must be a whole number. See swarmfree local --help"),
        (("local", "--standbys", "-1"), "--standbys -1: must be 0 or more. See swarmfree local --help"),
        (("chaos", "--minutes", "abc"), "--minutes abc: must be a number. See swarmfree chaos --help"),
        (("peer", "x", "--port", "70000"), "--port 70000: must be 65535 or less. See swarmfree peer --help"),
        (("study", "planning", "--traces", "1"), "--traces 1: must be 2 or more. See swarmfree study planning --help"),
        (
            ("study", "planning", "--nodes-max", "100000"),
            "--nodes-max 100000: must be 10000 or less. See swarmfree study planning --help",
        ),
        (("local", "--log", "xml"), "--log xml: must be one of 'text', 'json'. See swarmfree local --help"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_in_our_words(arguments: tuple[str, ...], line: str) -> None:
    """A value that an option cannot have is told with the option, the value and the rule, in no
    library's words.
    """
    assert _told(*arguments) == line


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("--iterations", "run.iterations"),
        ("--iteration", "run.iterations"),
        ("--seed", "run.seed"),
        ("--kv-heads", "model.kv_heads"),
    ],
)
def test_an_option_that_is_a_key_of_the_run_is_told_so(option: str, key: str) -> None:
    """Who types a key of the run config as an option is told how it is set, with its section."""
    for command in ("local", "bootstrap"):
        told = _told(command, option, "50")
        assert (
            told
            == f"No such option: {option}; {key} is a key of the run config: --set {key}=VALUE. See swarmfree {command} --help"
        )
    assert f"swarmfree bootstrap --set {key}=VALUE" in _told("peer", option, "50", "x")


def test_an_option_that_is_nothing_is_told_as_before() -> None:
    """An option that resembles no key of a run config is only told to be none."""
    assert _told("local", "--zork", "1") == "No such option: --zork. See swarmfree local --help"


def test_a_missing_value_names_the_help_of_its_command() -> None:
    """An option without its value is answered with the help of the command that was typed."""
    assert _told("local", "--peers") == "Option '--peers' requires an argument. See swarmfree local --help"


def test_an_invite_in_pieces_is_told_to_be_one_word() -> None:
    """An invite that a mail program has broken, pasted without quotes, is told what is expected."""
    for command in ("peer", "status"):
        assert "one invite is expected, so paste it once" in _told(command, "swarmfree1abc", "def")
    assert "invite" not in _told("local", "extra")


def test_a_slip_in_an_option_of_the_command_is_told_before_any_key() -> None:
    """Who types `--organizer` is told the command's own option, not a key of the manifest."""
    told = _told("pause", "x", "--organizer", "key")
    assert told == "No such option: --organizer; perhaps --organiser is meant. See swarmfree pause --help"

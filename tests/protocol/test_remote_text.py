"""Text of others: it draws nothing, and is not long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.remote_text import LETTERS_MAX, shown


@given(st.text(max_size=2000))
def test_what_is_shown_is_printable_and_short(text: str) -> None:
    """No escape, line break or letter of another direction is left, whatever was written."""
    assert shown(text).isprintable()
    assert len(shown(text)) <= LETTERS_MAX
    assert shown(shown(text)) == shown(text)


def test_honest_text_stays_as_it_is() -> None:
    """A sentence of the usual length is not touched; of a long one the remedy at its end is
    kept.
    """
    assert shown("stage 2 lost, waiting for a standby or newcomer") == "stage 2 lost, waiting for a standby or newcomer"
    assert shown("\x1b[2J\x1b]0;owned\x07") == "·[2J·]0;owned·"
    long = f"nobody can reach you at {'x' * 400}: open the port, or start with --announce HOST:PORT"
    assert shown(long).endswith(": open the port, or start with --announce HOST:PORT")

"""Help texts, unit files and READMEs say the same, and what they say is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmfree.cli.shutdown import LEAVE_END_S

ROOT = Path(__file__).parents[2]
UNITS = ("peers/swarmfree-peer@.service", "bootstrap/swarmfree-bootstrap.service")
RECIPES = ("peers/README.md", "bootstrap/README.md")


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_waits_for_the_end_and_does_not_retry_what_cannot_work(unit: str) -> None:
    """The unit leaves more time than SIGTERM takes, and starts nothing again after bad input, the
    end of the run or a refusal.
    """
    lines = (ROOT / unit).read_text().splitlines()
    assert "TimeoutStopSec=25" in lines
    assert LEAVE_END_S < 20.0
    assert "RestartPreventExitStatus=2 3 4" in lines


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("README.md", "`texts`"),
        ("README.md", "books/"),
        ("docs/data.md", "books/"),
        ("docs/data.md", "gpt2/"),
        ("docs/export.md", "--data texts"),
        ("docs/export.md", "books/"),
        ("docs/tutorial.md", "BOOKS="),
    ],
)
def test_a_page_says_what_a_reader_has_to_bring(page: str, name: str) -> None:
    """Files that do not come with swarmfree are called the reader's own where, or before, each is
    named first.
    """
    text = (ROOT / page).read_text()
    assert 0 <= text.index("yours to bring") < text.index(name) + 400


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_container_waits_for_the_end_too(recipe: str) -> None:
    """Every `docker run` of the recipes leaves 25 s after SIGTERM."""
    text = (ROOT / recipe).read_text()
    assert text.count("docker run") == text.count("docker run --network host --stop-timeout 25") > 0

"""Scenarios of the protocol's list are compared with the transcripts that lie beside them."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import suppress

import pytest

from tests.scenarios import scenario_world
from tests.scenarios.other_times import stretch
from tests.scenarios.scenario_stories import FOLDER, story_of


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """With other times nothing but invariants is expected of a scenario."""
    number = item.config.getoption("--other-times")
    if not number:
        return (yield)
    with pytest.MonkeyPatch.context() as patch, suppress(Exception):
        stretch(patch, f"{number} {item.nodeid}")
        yield
    if not scenario_world.played:
        pytest.skip("plays by itself, or nothing: what becomes of it with other times is not seen")
    for _, result, _ in scenario_world.played:
        assert result.violation is None, "\n".join([*result.transcript[-60:], str(result.violation), result.details])
    return None


@pytest.fixture(autouse=True)
def _golden(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test named after a number of the list: the first play of its that has a script, or else its
    first one, goes as it is written.
    """
    scenario_world.played.clear()
    yield
    name = re.fullmatch(r"test_(\d\d\w*?)(\[(.+)\])?", request.node.name)
    if name is None or not scenario_world.played or request.config.getoption("--other-times"):
        return
    setup, result, _ = next((one for one in scenario_world.played if one[2]), scenario_world.played[0])
    story = story_of(request.function.__doc__, setup, result)
    path = FOLDER / f"{'-'.join(filter(None, (name[1].replace('_', '-'), name[3])))}.txt"
    if request.config.getoption("--write-transcripts"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(story, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing; --write-transcripts writes it"
    assert story == path.read_text(encoding="utf-8"), f"not the story of {path.name}; see tests.scenarios.scenario_stories.py"

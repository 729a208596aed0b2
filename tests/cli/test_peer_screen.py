"""The screen of a peer: what it hears reaches a pipe, and a reader that goes away ends nothing."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.cli.peer_screen import PeerScreen, size_bytes
from swarmfree.cockpit.peer_view import Means
from swarmfree.protocol.events import Ended, Note, Started
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import PlanAnswer
from swarmfree.protocol.ports import Reply


class Closed(io.StringIO):
    """Nobody reads it any more."""

    def write(self, _text: str) -> int:
        """Fail as a closed pipe does."""
        raise BrokenPipeError(32, "Broken pipe")


async def _show(out: io.StringIO, folder: Path) -> PeerScreen:
    screen = PeerScreen(out, folder)
    screen.start()
    screen.say("looking for the run at the invite's addresses")
    screen.describe(Manifest(), Means("2 CPU threads", 10**6, 10**6))
    screen.tell(Started("QmSomebody", "0123456789abcdef", "/ip4/127.0.0.1/tcp/1"))
    screen.tell(Note("a word"))
    await asyncio.sleep(0)
    screen.tell(Ended(0, "the run is over"))
    screen.close()
    screen.close()
    return screen


async def test_a_pipe_gets_news_as_they_come(tmp_path: Path) -> None:
    """Each piece of news is a line with the time of day, at once."""
    out = io.StringIO()
    screen = await _show(out, tmp_path)
    assert not screen.is_live
    assert [line[10:] for line in out.getvalue().splitlines()] == ["a word", "ends: the run is over"]


async def test_a_reader_that_goes_away_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody reads any more, that is said once on stderr, and the peer goes on."""
    await _show(Closed(), tmp_path)
    assert capsys.readouterr().err == "nothing is shown any more: Broken pipe\n"


def test_what_is_kept_is_weighed(tmp_path: Path) -> None:
    """What a peer keeps for others is the size of the files in its folder; a folder that is not
    there holds nothing.
    """
    assert size_bytes(tmp_path / "none") == 0
    (tmp_path / "a.kept").write_bytes(b"x" * 700)
    (tmp_path / "b.kept").write_bytes(b"x" * 300)
    assert size_bytes(tmp_path) == 1000


async def test_a_plan_of_another_shape_is_not_shown(tmp_path: Path) -> None:
    """A coordinator that tells a plan with more or fewer stages than the run has draws nothing on a
    standby's screen.
    """
    manifest, asked = Manifest(), asyncio.Event()
    for count in (manifest.stage_count, manifest.stage_count - 1):
        plan = SimpleNamespace(replicas=((),) * count)

        async def announcements() -> tuple[()]:
            return ()

        async def call(*_: object, plan: object = plan) -> Reply:
            asked.set()
            return Reply(PlanAnswer(cast("Any", plan), ""))

        ports = SimpleNamespace(directory=SimpleNamespace(announcements=announcements))
        context = SimpleNamespace(ports=ports, me="me", manifest=manifest, call=call)
        replica_state = SimpleNamespace(stage=-1, coordinator=SimpleNamespace(member="lead"))
        screen = PeerScreen(io.StringIO(), tmp_path)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(
                screen._ask(
                    cast("Any", SimpleNamespace(stage_member=SimpleNamespace(replica_state=replica_state), context=context))
                )
            )
            await asked.wait()
            asking.cancel()
        asked.clear()
        assert screen._told is (cast("Any", plan) if count == manifest.stage_count else None)

"""Calls that are given up when whom they are to counts no more."""

from __future__ import annotations

import asyncio

import pytest

from swarmfree.protocol.errors import PeerSilent
from swarmfree.protocol.messages import GetPlan, PlanAnswer, Request
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.calls import Calls

ONE, OTHER = (Endpoint(Member(name, "0" * 16), (f"/memory/{name}",)) for name in ("a", "b"))


class Slow:
    """Stands for a context: everybody answers after ten seconds."""

    async def call(self, to: Endpoint, request: Request, payload: bytes = b"", *, header_first: bool = False) -> Reply:
        """As `Context.call`."""
        del to, request, payload, header_first
        await asyncio.sleep(10.0)
        return Reply(PlanAnswer(None, ""))


async def _outcomes(calls: Calls, after_s: float) -> tuple[list[str], float]:
    """What becomes of a call to each, and when both were over; after a while the first is given
    up.
    """
    told: list[str] = []

    async def one(to: Endpoint) -> None:
        try:
            await calls.call(to, GetPlan())
        except PeerSilent as error:
            told.append(str(error))
        else:
            told.append("answered")

    async with asyncio.TaskGroup() as group:
        for to in (ONE, OTHER):
            group.create_task(one(to))
        await asyncio.sleep(after_s)
        calls.keep({OTHER.member})
        calls.give_up(ONE.member)
    return told, asyncio.get_running_loop().time()


def test_only_calls_to_whom_counts_no_more_end() -> None:
    """One ends at once and says why, the other one gets its answer; giving up what has ended
    already is nothing.
    """
    told, over_s = run_virtual(lambda: _outcomes(Calls(Slow()), 3.0))  # type: ignore[arg-type]
    assert (told[0][:1], told[1]) == ("a", "answered")
    assert over_s == pytest.approx(10.0)
    assert run_virtual(lambda: _outcomes(Calls(Slow()), 20.0))[0] == ["answered", "answered"]  # type: ignore[arg-type]


def test_nobody_is_called_once_they_are_closed() -> None:
    """A coordinator that leads no longer asks nobody anything."""

    async def main() -> None:
        calls = Calls(Slow())  # type: ignore[arg-type]
        calls.close()
        with pytest.raises(PeerSilent, match="any more"):
            await calls.call(ONE, GetPlan())

    run_virtual(main)


def test_calls_are_given_up_in_the_order_in_which_they_were_made() -> None:
    """Also where many end at once: a rehearsal tells the same story in every process."""
    peers = [Endpoint(Member(f"peer-{number * 37 % 40}", "0" * 16), ("/memory/x",)) for number in range(40)]

    async def main() -> list[str]:
        calls, told = Calls(Slow()), []  # type: ignore[arg-type]

        async def one(to: Endpoint) -> None:
            with pytest.raises(PeerSilent):
                await calls.call(to, GetPlan())
            told.append(to.member.peer_id)

        async with asyncio.TaskGroup() as group:
            for to in peers:
                group.create_task(one(to))
            await asyncio.sleep(1.0)
            calls.keep(())
        return told

    assert run_virtual(main) == [peer.member.peer_id for peer in peers]

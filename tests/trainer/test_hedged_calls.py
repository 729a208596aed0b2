"""Calls to two donors, one beside the other: nothing is left running, and the right error is told.

Whom they ask, and when, is asked by `tests/mutants/tables_donors.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from swarmfree.protocol.errors import CallFailed, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.messages import Average, GetRecord, Request
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.context import Context
from swarmfree.trainer.recovery.hedged_calls import ASKS, Asked, HedgedCalls
from tests.builders import make_ports
from tests.trainer.test_ends_copy import MANIFEST, ME, OTHER, SOURCE, Machine


class Line:
    """Two donors: the first one hangs, the second one answers after a second.

    Attributes:
        running: calls that nobody has ended.
        made: all calls.
        fails: the second one has nothing.
    """

    here = ME

    def __init__(self) -> None:
        """Nobody was asked."""
        self.running = self.made = 0
        self.fails = False

    async def call(self, to: Endpoint, request: Request, payload: bytes = b"", **_: Any) -> Reply:
        """Implements `Network.call`."""
        del request, payload
        self.running, self.made = self.running + 1, self.made + 1
        try:
            await asyncio.sleep(1.0 if to == OTHER else 1e6)
        finally:
            self.running -= 1
        if self.fails:
            raise Refused(RefusalKind.GONE, "not here")
        return Reply(Average(), b"given")


def _play(line: Line, story: Callable[[Callable[..., Awaitable[bytes]]], Awaitable[None]], *, is_needed: bool = False) -> None:
    ports = make_ports(network=line, clock=Machine())
    context = Context(ports, MANIFEST, LocalConfig("memory"), random.Random(1), MANIFEST.fingerprint())
    calls = HedgedCalls(context, 0.2, is_needed=is_needed)

    async def use(_: Asked, reply: Reply) -> bytes:
        return reply.payload

    async def ask(*donors: Endpoint, request: Callable[[], Asked] = lambda: GetRecord(0)) -> bytes:
        return await calls.ask(lambda: donors, request, use)

    async def main() -> None:
        await story(ask)

    run_virtual(main)


def test_nobody_is_asked_any_more_once_one_has_given_it() -> None:
    """The first donor hangs, and its call ends with that of the second one."""
    line = Line()

    async def story(ask: Callable[..., Awaitable[bytes]]) -> None:
        assert await ask(SOURCE, OTHER) == b"given"
        assert (line.made, line.running) == (2, 0)

    _play(line, story)


def test_a_cancelled_call_leaves_nothing_running() -> None:
    """Both donors are being asked then."""
    line = Line()

    async def story(ask: Callable[..., Awaitable[bytes]]) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await ask(SOURCE, OTHER)
        assert (line.made, line.running) == (2, 0)

    _play(line, story)


@pytest.mark.parametrize("is_needed", [True, False])
def test_the_last_refusal_is_told(*, is_needed: bool) -> None:
    """It is asked for once, or as often as a donor is asked for what is needed."""
    line = Line()
    line.fails = True

    async def story(ask: Callable[..., Awaitable[bytes]]) -> None:
        with pytest.raises(Refused, match="not here"):
            await ask(OTHER)
        assert line.made == (ASKS if is_needed else 1)

    _play(line, story, is_needed=is_needed)


def test_without_a_donor_nobody_is_asked() -> None:
    """It fails at once."""

    async def story(ask: Callable[..., Awaitable[bytes]]) -> None:
        with pytest.raises(PeerUnreachable, match="no donor"):
            await ask()

    _play(Line(), story, is_needed=True)


def test_what_has_come_to_nothing_ends_the_calls() -> None:
    """It is learned as the second donor would be asked; the first one hangs."""
    line, asked = Line(), [GetRecord(0)]

    def request() -> Asked:
        if not asked:
            raise CallFailed("nobody has that any more")
        return asked.pop()

    async def story(ask: Callable[..., Awaitable[bytes]]) -> None:
        with pytest.raises(CallFailed, match="any more"):
            await ask(SOURCE, OTHER, request=request)
        assert (line.made, line.running) == (1, 0)

    _play(line, story)

"""Donors that a copy of a stage is asked from, and what each rule of asking them is there for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.messages import Average, GetAverage, GetRecord, GetState, RecordAnswer, Request, State
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.context import Context
from swarmfree.trainer.recovery.hedged_calls import Asked, HedgedCalls
from tests.builders import make_ports
from tests.mutants.tables_copies import _copied
from tests.trainer import test_state_copy
from tests.trainer.test_ends_copy import MANIFEST, ME, Machine

A, B = test_state_copy.BAD, test_state_copy.GOOD
C = replace(B, member=replace(B.member, peer_id="c-donor"))
HANGS = 300.0, PeerSilent("it hangs")
NONE = 0.01, Refused(RefusalKind.GONE, "it keeps none")

# ---- a copy and two donors -----------------------------------------------------------------------


class _Hanging(test_state_copy.Donors):
    """Two donors, the first of which gives records alone from some iteration on, for a thousand
    seconds; `gives_s` is how long each takes for a part. `silent_s`: the first one's machine is
    gone instead. `back_s`: the second one is out of reach until then.
    """

    def __init__(
        self, hangs_from: int, gives_s: float = 0.0, *, silent_s: float = 0.0, back_s: float = 0.0, lanes: int = 1
    ) -> None:
        super().__init__()
        self.lanes = lanes
        self.hangs_from, self.gives_s, self.silent_s, self.back_s = hangs_from, gives_s, silent_s, back_s
        self.asked, self.now_s = 0, 0.0
        self.trains_after = 1

    async def call(self, to: Endpoint, request: Request, payload: bytes = b"", **how: Any) -> Reply:
        now_s = asyncio.get_running_loop().time
        is_first, is_bulk = to == test_state_copy.BAD, not isinstance(request, GetRecord)
        if is_first and (is_bulk or self.silent_s):
            self.asked += 1
            if len(self.records) >= self.hangs_from:
                await asyncio.sleep(self.silent_s or 1000.0)
                raise PeerSilent("its device hangs")
        if not is_first and now_s() < self.back_s:
            await asyncio.sleep(2.0)
            raise PeerUnreachable("it is cut off")
        if is_bulk:
            await asyncio.sleep(self.gives_s)
        self.now_s = now_s()
        return await super().call(to, request, payload, **how)


def _asked(*stories: _Hanging) -> list[tuple[bool, int, int]]:
    """Whether a joiner comes to the donors' state, after how many seconds, and how often the first
    one was asked for a part or an average.
    """
    return [(_copied(donors), round(donors.now_s), donors.asked) for donors in stories]


def donor_that_hangs() -> object:
    """The first donor hangs from the beginning, or once an iteration has been committed meanwhile,
    or both are slow, and give a part in six seconds.
    """
    return _asked(_Hanging(1, 0.5), _Hanging(2), _Hanging(9, 6.0))


def donor_that_is_gone() -> object:
    """The first donor's machine is gone, which is seen after two seconds each time."""
    return _asked(_Hanging(1, silent_s=2.0))


def donor_that_is_back() -> object:
    """The first donor hangs, from the beginning or later, and the second one is out of reach for 30
    seconds.
    """
    return _asked(_Hanging(1, back_s=30.0), _Hanging(2, 0.1, back_s=30.0), _Hanging(1, back_s=30.0, lanes=2))


def average_that_is_missed() -> object:
    """The second donor keeps an average no more that a part needs, and the first one hangs, or its
    machine is gone.
    """

    class Hasty(_Hanging):
        def train(self) -> Record:
            newest = super().train()
            return super().train() if len(self.records) == 2 else newest

    return _asked(Hasty(1), Hasty(1, silent_s=2.0))


def donor_that_keeps_no_average() -> object:
    """The first donor gives all parts and no average, and the second one was silent in the first
    second: whether a joiner comes to their state, and whether it asked the second one for an
    average.
    """

    class Silent(test_state_copy.Donors):
        is_asked = False

        async def call(self, to: Endpoint, request: Request, payload: bytes = b"", **how: Any) -> Reply:
            if to == test_state_copy.BAD and isinstance(request, GetAverage):
                raise Refused(RefusalKind.GONE, "it keeps none")
            if to != test_state_copy.BAD and asyncio.get_running_loop().time() < 1.0:
                await asyncio.sleep(2.0)
                raise PeerSilent("a link that broke")
            self.is_asked |= isinstance(request, GetAverage)
            return await super().call(to, request, payload, **how)

    donors = Silent()
    donors.trains_after = 2
    return _copied(donors), donors.is_asked


def donor_that_is_behind() -> object:
    """The first donor never gets past the first iteration, and gives that; the second one, which
    does, does not answer in the first second, or is on a slow link: whether a joiner comes to the
    second one's state.
    """

    class Behind(test_state_copy.Donors):
        def __init__(self, silent_s: float, record_s: float) -> None:
            super().__init__()
            self.silent_s, self.record_s = silent_s, record_s
            self.old = [self.engine.read_state(part, weights_only=False) for part in range(self.engine.part_count(0))]
            self.train()

        async def call(self, to: Endpoint, request: Request, payload: bytes = b"", **how: Any) -> Reply:
            if to != test_state_copy.BAD:
                if asyncio.get_running_loop().time() < self.silent_s:
                    await asyncio.sleep(2.0)
                    raise PeerSilent("a link that broke")
                if isinstance(request, GetRecord):
                    await asyncio.sleep(self.record_s)
                return await super().call(to, request, payload, **how)
            await asyncio.sleep(0.1)
            match request:
                case GetState(part=part):
                    return Reply(State(len(self.old), 1), self.old[part])
                case GetRecord(iteration=iteration) if iteration < 1:
                    return Reply(RecordAnswer(self.first))
            raise Refused(RefusalKind.NOT_YET, "it is behind")

    return [_copied(Behind(1.0, 0.0)), _copied(Behind(0.0, 0.5))]


# ---- one thing and two donors --------------------------------------------------------------------

Says = Callable[[Endpoint, float], tuple[float, CallFailed | None]]
"""What a donor does that is asked at this moment: how long it takes, and why it fails then."""


def _given(
    says: Says,
    times: int = 1,
    *,
    donors: Callable[[float], Sequence[Endpoint]] = lambda _: (A, B),
    is_needed: bool = False,
    floor_s: float = 0.2,
) -> tuple[list[tuple[str, float]], int]:
    """Who gives what is asked for so many times, and after how long; how many were asked in all."""
    asked, found = list[Endpoint](), list[tuple[str, float]]()
    machine = Machine()

    class Line:
        here = ME

        async def call(self, to: Endpoint, request: Request, payload: bytes = b"", **_: Any) -> Reply:
            del request, payload
            asked.append(to)
            seconds, failure = says(to, machine.now_s())
            await asyncio.sleep(seconds)
            if failure is not None:
                raise failure
            return Reply(Average(), b"first" if to == A else b"second")

    ports = make_ports(network=Line(), clock=machine)
    context = Context(ports, MANIFEST, LocalConfig("memory"), random.Random(1), MANIFEST.fingerprint())
    calls = HedgedCalls(context, floor_s, is_needed=is_needed)

    async def use(_: Asked, reply: Reply) -> str:
        return reply.payload.decode()

    async def main() -> None:
        for _ in range(times):
            begun_s = machine.now_s()
            try:
                who = await calls.ask(lambda: donors(machine.now_s()), lambda: GetRecord(0), use)
            except CallFailed:
                who = "nobody"
            found.append((who, round(machine.now_s() - begun_s, 1)))

    run_virtual(main)
    return found, len(asked)


def donors_that_are_all_slow() -> object:
    """Both give it after half a second, three times."""
    return _given(lambda _, now_s: (0.5, None), 3)


def donor_that_hangs_beside_another() -> object:
    """The first one hangs, and the second one gives it."""
    return _given(lambda to, now_s: HANGS if to == A else (0.1, None))


def donor_that_is_slow_beside_another() -> object:
    """The first one takes half a second, and the second one has none for a while after its first
    answer.
    """

    def says(to: Endpoint, now_s: float) -> tuple[float, CallFailed | None]:
        if to == A:
            return 0.5, None
        return 0.1, Refused(RefusalKind.NOT_YET, "it is behind") if 0.25 < now_s < 0.85 else None

    return _given(says, 3, is_needed=True)


def donor_out_of_reach_for_long() -> object:
    """The first one hangs, and the second one is out of reach for half a minute."""

    def says(to: Endpoint, now_s: float) -> tuple[float, CallFailed | None]:
        if to == A:
            return HANGS
        return 0.1, PeerUnreachable("it is cut off") if now_s < 30.0 else None

    return _given(says, is_needed=True)


def donors_without_it() -> object:
    """The first one hangs, and the second one has none, twice."""
    return _given(lambda to, now_s: HANGS if to == A else NONE, 2)


def average_that_takes_long() -> object:
    """Both give it after five seconds."""
    return _given(lambda _, now_s: (5.0, None))


def donor_that_was_silent_on_a_slow_link() -> object:
    """The first one gives it in 0.3 seconds, is silent once, and gives it again; the second one has
    none.
    """

    def says(to: Endpoint, now_s: float) -> tuple[float, CallFailed | None]:
        if to == B:
            return NONE
        return (2.0, PeerSilent("a link that broke")) if 0.25 < now_s < 1.0 else (0.3, None)

    return _given(says, 3)


def donors_of_the_next_plan() -> object:
    """The only donor hangs, and after a second another one is named."""
    says: Says = lambda to, now_s: HANGS if to == A else (0.1, None)  # noqa: E731
    return _given(says, donors=lambda now_s: (A,) if now_s < 1.0 else (B,), is_needed=True)


def donors_that_refuse_after_a_while() -> object:
    """Of three the first two refuse after a second and a half, for a minute; the third one gives
    it.
    """

    def says(to: Endpoint, now_s: float) -> tuple[float, CallFailed | None]:
        if to == C:
            return 0.1, None
        return (1.5, Refused(RefusalKind.NOT_YET, "it is behind")) if now_s < 60.0 else (0.1, None)

    return _given(says, donors=lambda _: (A, B, C), is_needed=True, floor_s=4.0)


def donor_that_is_named_no_more() -> object:
    """The only donor takes five seconds, and after one another is named, which takes ten."""
    says: Says = lambda to, now_s: (5.0 if to == A else 10.0, None)  # noqa: E731
    return _given(says, donors=lambda now_s: (A,) if now_s < 1.0 else (B,), is_needed=True)


def donor_that_gives_at_last() -> object:
    """The first one refuses for eleven seconds, and then takes three; the second one is silent
    after two each time.
    """

    def says(to: Endpoint, now_s: float) -> tuple[float, CallFailed | None]:
        if to == B:
            return 2.0, PeerSilent("it is gone")
        return (0.1, Refused(RefusalKind.NOT_YET, "it is behind")) if now_s < 11.0 else (3.0, None)

    return _given(says, is_needed=True)


def averages_on_a_slow_link() -> object:
    """The only donor that keeps averages takes six seconds for a part, and five for an average, and
    an iteration commits meanwhile: whether a joiner comes to its state, and how many parts it was
    asked for.
    """

    class Slow(test_state_copy.Donors):
        async def call(self, to: Endpoint, request: Request, payload: bytes = b"", **how: Any) -> Reply:
            if to == A and isinstance(request, GetState | GetAverage):
                raise Refused(RefusalKind.GONE, "it keeps none")
            await asyncio.sleep({GetState: 6.0, GetAverage: 5.0}.get(type(request), 0.0))
            return await super().call(to, request, payload, **how)

    donors = Slow()
    donors.trains_after = 2
    return _copied(donors), donors.given

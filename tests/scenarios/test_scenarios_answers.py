"""Scenarios of one peer that answers short or wrong: it harms itself only, and no peer ends for it.

In each of them every invariant holds, too, and the run finishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from swarmfree.protocol.messages import (
    GetState,
    Header,
    Reduce,
    Reduced,
    Report,
    Request,
    State,
    TakeRoll,
    Train,
)
from swarmfree.protocol.names import Member, WorkKind
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.protocol.records import float64_bits
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.trainer.member.averaging import Averaging
from swarmfree.trainer.peer import Peer
from tests.scenarios.scenario_world import Once, is_asked, lines, play, swarm, unhurried

T = TypeVar("T")
STAGE = 2


class Wrong:
    """One peer's wrong answers.

    Args:
        kind: to which requests.
        change: what becomes of the answer.
        stage: of the peer that gives them.
        count: how many are wrong.
        since: from which iteration on.

    Attributes:
        liar: the first that was asked; other peers answer as ever.
    """

    def __init__(
        self,
        kind: type[T],
        change: Callable[[T, Reply], Reply | None],
        *,
        stage: int = STAGE,
        count: int = 1 << 30,
        since: int = 0,
    ) -> None:
        self._kind, self._change, self._stage, self._left, self._since = kind, change, stage, count, since
        self.liar: str = ""

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on."""
        handle = Peer.handle

        async def changed(peer: Peer, header: Header, request: Request, incoming: Incoming) -> Reply:
            reply = await handle(peer, header, request, incoming)
            me = peer.context.me
            replica_state = peer.stage_member.replica_state
            is_other = header.sender.member == me or replica_state.stage != self._stage or replica_state.iteration < self._since
            if is_other or not isinstance(request, self._kind) or not self._left or self.liar not in {"", me.peer_id}:
                return reply
            wrong = self._change(request, reply)
            if wrong is None:
                return reply
            self.liar, self._left = me.peer_id, self._left - 1
            return wrong

        monkeypatch.setattr(Peer, "handle", changed)


def short(_: object, reply: Reply) -> Reply:
    """Eight bytes are missing."""
    return Reply(reply.message, reply.payload[:-8])


def lost(result: RehearsalResult) -> set[str]:
    """Whoever was fenced, barred or superseded."""
    return {line.split("peer_id=")[1].split()[0] for line in lines(result, "MemberLost")}


def out(result: RehearsalResult, wrong: Wrong) -> None:
    """Nobody but the liar has gone, and the liar has."""
    assert lost(result) == {wrong.liar.removeprefix("Qm")} or lost(result) == {wrong.liar}
    assert not lines(result, "ended with code 1")
    assert not lines(result, "StageLost")


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_part_owner_that_answers_short_leaves_its_stage(monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    """The sum of its parts is eight bytes short for everybody: two rounds fail, it may stand by,
    and its siblings go on.
    """
    wrong = Wrong(Reduce, short)
    wrong.begin(monkeypatch)
    out(play(swarm(replicas=replicas)), wrong)


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_norm_below_zero_is_no_norm(monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    """The owner of a part tells a negative squared norm of it: its siblings refuse it, and nobody
    takes a root of it.
    """
    wrong = Wrong(Reduce, lambda _, reply: Reply(Reduced(float64_bits(-1e9)), reply.payload))
    wrong.begin(monkeypatch)
    out(play(swarm(replicas=replicas)), wrong)


def test_a_short_contribution_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member's own share of a sum is eight bytes short: its owner refuses it before it spoils the
    part, and the member leaves the stage.
    """
    reduce, liar = Averaging.reduce, list[str]()

    class Shorter:
        def __init__(self, incoming: Incoming) -> None:
            self._incoming = incoming

        async def read(self) -> bytes:
            return (await self._incoming.read())[:-8]

    async def reducing(self: Averaging, sender: Member, request: Reduce, incoming: Incoming) -> Reply:
        if self._replica_state.stage == STAGE and request.contributes:
            liar.append(sender.peer_id)
        is_short = self._replica_state.stage == STAGE and liar and sender.peer_id == liar[0]
        return await reduce(self, sender, request, Shorter(incoming) if is_short else incoming)

    monkeypatch.setattr(Averaging, "reduce", reducing)
    result = play(swarm(replicas=3))
    assert lost(result) == {liar[0]}
    assert lines(result, "MemberLost", "bytes for part")


@pytest.mark.parametrize("what", ["negative", "unreadable", "another round"])
def test_a_report_that_says_nothing_names_its_sender(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A report without a squared norm, or of another round, counts as none: after two of them its
    sender leaves the stage.
    """
    fields = {
        "negative": {"squared_norm_bits": float64_bits(-1.0)},
        "unreadable": {"squared_norm_bits": "nonsense"},
        "another round": {"round": "0" * 16},
    }[what]

    def change(_: TakeRoll, reply: Reply) -> Reply | None:
        return Reply(replace(reply.message, **fields)) if isinstance(reply.message, Report) else None  # type: ignore[arg-type]

    wrong = Wrong(TakeRoll, change)
    wrong.begin(monkeypatch)
    result = play(swarm(replicas=3))
    out(result, wrong)
    why = {"negative": "squared norm -1", "unreadable": "16 hex digits", "another round": "its report is of round"}[what]
    assert lines(result, "MemberLost", why)


def with_a_joiner() -> RehearsalResult:
    """Twelve iterations of seconds; a replica of stage 2 dies in the second one, and comes back as
    a newcomer.
    """
    script = Once(
        is_asked(Train, key__iteration=1, key__stage=STAGE), lambda director, _: director.kill(director.members(STAGE)[0])
    )
    result = play(unhurried(swarm(replicas=3), iterations=12), script)
    assert script.struck
    return result


def test_a_joiner_does_not_take_an_older_state_than_it_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A donor says that its part is of iteration -1, or of one long past: the other donor's is
    taken.
    """
    wrong = Wrong(GetState, lambda _, reply: Reply(State(reply.message.part_count, -1), reply.payload), since=1)  # type: ignore[union-attr]
    wrong.begin(monkeypatch)
    result = with_a_joiner()
    assert wrong.liar
    assert len(lines(result, "Opened", "iteration=11 ")[-1].split("QmPeer")) - 1 == 10


def test_a_short_gradient_is_asked_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica sends every gradient back eight bytes short: its callers go to its sibling, and no
    source ends.
    """
    wrong = Wrong(Train, lambda request, reply: short(request, reply) if request.key.kind is WorkKind.TRAIN else None, stage=1)
    wrong.begin(monkeypatch)
    result = play(swarm())
    assert wrong.liar
    assert not lines(result, "ended with code 1")

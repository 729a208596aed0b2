"""Scenarios of a member that computes wrongly, and of siblings that compute its share again.

Its engine lies, its protocol does not: `sim.liars`. What is computed again without it is held
against the reference like every other iteration, so that nothing of the lie can be left in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from swarmfree.protocol.messages import Audit, GetAccount, Open, Reduce, Reduced, TakeRoll
from swarmfree.protocol.names import WorkKey
from swarmfree.protocol.records import bits_float64
from swarmfree.sim.liars import Liar, LiarWatch, Lie
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from swarmfree.trainer.coordinator.audits import Audits
from swarmfree.trainer.member.averaging import Averaging, Round
from swarmfree.trainer.pipeline.source import Source
from swarmfree.trainer.pipeline.stage_replica import StageReplica
from swarmfree.trainer.pipeline.tensor_digest import digest_of
from swarmfree.trainer.pipeline.work_table import WorkItem
from tests.scenarios.scenario_world import Once, is_answered, is_asked, lines, play, swarm, unhurried

LIES_FROM = 2


def audited(setup: Setup, *, share: float = 0.5, iterations: int = 6, liar: Liar | None = None) -> Setup:
    """The same swarm with audits, and perhaps a liar."""
    run = replace(setup.manifest.run, audit_share=share, iterations=iterations)
    return replace(setup, manifest=replace(setup.manifest, run=run), liar=liar)


def opened(result: RehearsalResult, peer: str) -> list[bool]:
    """Of each plan whether it names this peer."""
    return [peer in line for line in lines(result, "Opened", "members=")]


def excluded(result: RehearsalResult) -> list[str]:
    """Whom audits have excluded."""
    return [line.split("peer_id=")[1].split()[0] for line in lines(result, "PeerExcluded")]


@pytest.mark.parametrize(("lie", "stage"), [(lie, stage) for k, lie in enumerate(Lie) for stage in (0, 1 + k % 3)])
def test_a_liar_is_excluded_whatever_it_lies_about(lie: Lie, stage: int) -> None:
    """At the ends, and at the first, a middle or the last stage of the body. It is named with what
    it gave and what was computed, it is in no plan any more, and nobody else is named.
    """
    setup = swarm(replicas=3, sources=3 if stage == 0 else 1)
    result = play(audited(setup, liar=Liar(lie, stage, LIES_FROM)))
    (liar,) = excluded(result)
    (line,) = lines(result, "PeerExcluded")
    assert "was given" in line
    there = opened(result, liar)
    assert there == sorted(there, reverse=True)
    assert not there[-1]
    assert not lines(result, "PeersSuspected")


@pytest.mark.parametrize("stage", [0, 2])
def test_a_peer_that_is_excluded_ends_with_a_sentence(stage: int) -> None:
    """A volunteer may have a broken device, and should hear of it: from its coordinator when it
    says hello, or, where it coordinates, by its own audit.
    """
    setup = unhurried(swarm(replicas=3, sources=3 if stage == 0 else 1))
    result = play(audited(setup, liar=Liar(Lie.RANDOM, stage, LIES_FROM), iterations=10))
    (liar,) = excluded(result)
    assert lines(result, liar.removeprefix("Qm"), "ended with code 3", "comput")


def test_an_honest_swarm_is_audited_and_nobody_is_named() -> None:
    """At a share of 0.5 each member of each stage is audited in some iterations; nothing is done
    twice but that.
    """
    result = play(audited(swarm(replicas=3, sources=3)))
    assert result.statistics.calls["Audit"] >= 8
    assert not lines(result, "PeerExcluded")
    assert not lines(result, "PeersSuspected")
    assert not lines(result, "Opened", "attempt=1")


def test_without_a_share_nobody_is_asked() -> None:
    """Audits are off unless a run says otherwise."""
    result = play(swarm(replicas=3))
    assert not {"Audit", "GetAccount", "GetContribution"} & result.statistics.calls.keys()


def test_of_two_replicas_both_are_suspects_and_none_is_excluded() -> None:
    """One says this and the other that; the run goes on, and a person is told."""
    result = play(audited(swarm(replicas=2), liar=Liar(Lie.GRADIENTS, 2, LIES_FROM)))
    assert lines(result, "PeersSuspected", "stage=2")
    assert not excluded(result)
    assert not lines(result, "MemberLost")


def test_who_is_excluded_has_no_place_under_a_successor() -> None:
    """The plan names it, and whoever takes over knows it by that."""
    setup = audited(swarm(replicas=3, sources=2), liar=Liar(Lie.RANDOM, 2, LIES_FROM), iterations=10)

    def excludes(moment: Moment) -> bool:
        return moment.outcome is not None and isinstance(moment.request, Open) and bool(moment.request.plan.excluded)

    result = play(setup, Once(excludes, lambda director, moment: director.kill(moment.sender.member)))
    (liar,) = dict.fromkeys(excluded(result))
    assert lines(result, "TookOver")
    first = lines(result, "Opened", "members=").index(next(line for line in lines(result, "Opened") if liar not in line))
    assert not any(opened(result, liar)[first:])


def test_nobody_escapes_an_audit_by_going_after_it_has_contributed() -> None:
    """Its average is made again without it, and what it had done is done again."""
    setup = audited(swarm(replicas=3), share=1.0)
    killed: list[str] = []

    def strike(director: Director, moment: Moment) -> None:
        killed.append(moment.receiver.member.peer_id)
        director.kill(moment.receiver.member)

    result = play(setup, Once(is_asked(GetAccount, position__iteration=3), strike))
    assert killed
    assert lines(result, "Repaired", "iteration=3")
    assert not lines(result, "PeerExcluded")


def test_each_accounts_once_however_many_are_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an alarm everybody is, at once: what a member accounts for says something of many, and
    calls to all for each would be more than a coordinator may have under way.
    """
    monkeypatch.setattr(Audits, "_is_alarmed", lambda *_: True)
    asked = Counter[tuple[int, str]]()

    def see(moment: Moment) -> bool:
        if moment.outcome is None and isinstance(moment.request, GetAccount):
            asked[moment.request.position.iteration, moment.receiver.member.peer_id] += 1
        return False

    play(audited(swarm(replicas=3, sources=3), share=0.1), Once(see, lambda *_: None))
    assert len(asked) >= 5 * 12
    assert set(asked.values()) == {1}


def test_an_auditor_that_dies_delays_nobody() -> None:
    """Another sibling is asked, or the member is due in the next iteration."""
    setup = audited(swarm(replicas=3), share=1.0)
    result = play(
        setup, Once(is_asked(Audit, position__iteration=2), lambda director, moment: director.kill(moment.receiver.member))
    )
    assert not lines(result, "PeerExcluded")


def test_a_coordinator_that_dies_while_it_audits_has_a_successor() -> None:
    """Nothing was sealed; the successor goes on in the middle of the iteration."""
    setup = audited(swarm(replicas=3, sources=2), share=1.0)
    result = play(setup, Once(is_answered(Audit), lambda director, moment: director.kill(moment.sender.member)))
    assert lines(result, "TookOver")
    assert not lines(result, "PeerExcluded")


def test_rolls_of_a_liar_s_iteration_are_of_another_base_afterwards() -> None:
    """What it touched can be averaged by nobody any more."""
    bases: dict[int, list[str]] = {}

    class Watching(Once):
        def see(self, director: Director, moment: Moment) -> None:
            """Note the base of each roll."""
            if isinstance(moment.request, TakeRoll) and moment.outcome is None:
                roll = moment.request.roll
                known = bases.setdefault(roll.iteration, [])
                known += [roll.base] if roll.base not in known else []
            super().see(director, moment)

    setup = audited(swarm(replicas=3), share=1.0, liar=Liar(Lie.SCALED, 1, LIES_FROM))
    result = play(setup, Watching(lambda _: False, lambda *_: None))
    (line,) = lines(result, "PeerExcluded")
    found_in = int(line.split("iteration=")[1].split()[0])
    assert len(bases[found_in]) == 2
    assert all(len(known) == 1 for iteration, known in bases.items() if iteration != found_in)


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[LiarWatch]:
    """The watch of each rehearsal, so that a scenario can say who lies."""
    found: list[LiarWatch] = []
    begin = LiarWatch.__init__

    def kept(self: LiarWatch, *arguments: Any) -> None:
        begin(self, *arguments)
        found.append(self)

    monkeypatch.setattr(LiarWatch, "__init__", kept)
    return found


def test_who_accounts_for_something_else_than_it_sent_is_in_conflict_with_all_it_sent_to(
    watches: list[LiarWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its share is right by its account, and one receiver alone would be one word against another;
    two of the stage after convict it.
    """
    forward = StageReplica._forward

    def two_faced(self: StageReplica, entry: WorkItem, ticket: int, activations: bytes) -> bytes:
        output, (watch,) = forward(self, entry, ticket, activations), watches
        me = self._context.me
        if entry.key.stage != 2 or entry.key.iteration < LIES_FROM or watch.member not in {None, me}:
            return output
        watch.member = me
        watch.lied_in.add(entry.key.iteration)
        return output[:-1] + bytes([output[-1] ^ 1])

    monkeypatch.setattr(StageReplica, "_forward", two_faced)
    result = play(audited(swarm(replicas=3), share=1.0, iterations=10))
    (liar,) = excluded(result)
    assert watches[0].is_liar(liar)
    assert lines(result, "PeerExcluded", "account otherwise")
    assert not opened(result, liar)[-1]


def test_a_coordinator_that_is_convicted_as_the_last_of_its_stage_ends_and_another_one_feeds(
    watches: list[LiarWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only source, which leads, accounts for something else than it sent; two of the first
    stage convict it. There is no plan without it until somebody who can feed has come.
    """
    go = Source._round

    async def two_faced(self: Source, key: WorkKey, offset: int, output: bytes) -> bytes:
        (watch,), me = watches, self._context.me
        if key.iteration >= LIES_FROM and watch.member in {None, me}:
            watch.member = me
            watch.lied_in.add(key.iteration)
            output = output[:-1] + bytes([output[-1] ^ 1])
        return await go(self, key, offset, output)

    monkeypatch.setattr(Source, "_round", two_faced)
    result = play(audited(swarm(replicas=3), share=1.0, iterations=6))
    (liar,) = excluded(result)
    assert watches[0].is_liar(liar)
    assert lines(result, "PeerExcluded", "stage=0")
    assert lines(result, "TookOver")
    assert not opened(result, liar)[-1]


def test_who_shows_something_else_than_it_contributed_is_in_conflict_with_the_owners(
    watches: list[LiarWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives both owners of parts garbage, and says that it gave what it should have; one that
    owned one of the two itself would be in conflict with one peer alone.
    """
    give = Averaging._one_part

    async def two_faced(self: Averaging, current: Round, numbers: tuple[int, ...], part: int) -> tuple[bytes, float]:
        (watch,), roll = watches, current.roll
        me, engine = self._context.me, self._context.ports.engine
        lies = roll.stage == 2 and roll.iteration >= LIES_FROM and watch.member in {None, me} and numbers
        if not lies or me in {roll.owner(one).member for one in range(engine.part_count(roll.stage))}:
            return await give(self, current, numbers, part)
        watch.member = me
        watch.lied_in.add(roll.iteration)
        contribution = engine.contribution(numbers, part)
        current.given[part] = digest_of(contribution)
        request = Reduce(roll.round(), part, contributes=True)
        wrong = bytes(len(contribution))
        reply = await self._context.call(roll.owner(part), request, wrong)
        return reply.payload, bits_float64(reply.expect(Reduced).squared_norm_bits)

    monkeypatch.setattr(Averaging, "_one_part", two_faced)
    result = play(audited(swarm(replicas=3), share=1.0, iterations=10))
    (liar,) = excluded(result)
    assert watches[0].is_liar(liar)
    assert not opened(result, liar)[-1]

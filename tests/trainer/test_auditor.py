"""One auditor and one sibling: what it finds in the sibling's share, by what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from swarmfree.policy import audit
from swarmfree.protocol.errors import PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.messages import (
    DISTANCE_MAX,
    Audit,
    AuditAnswer,
    Audited,
    ContributionAnswer,
    GetContribution,
    Pull,
    Pulled,
    Request,
)
from swarmfree.protocol.names import Endpoint, PartialSumId, Side
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import ContributionDigest, MicrobatchSet, PartialSum, Roll, TensorDigests
from swarmfree.sim.integer_arithmetic import ACTIVATION, GRADIENT, TRAINING, Tensor
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.member import auditor
from swarmfree.trainer.pipeline.tensor_digest import digest_of
from tests.mutants.alone import MANIFEST, ME, SIBLING, A, Alone, D, at, plan, play, word

BASE = "b0"
OWN, THEIRS = (2, 3), (1, 0)
"""Offsets in the order in which they were added."""
ROLL = Roll(
    0,
    BASE,
    1,
    (
        PartialSum(PartialSumId(ME.member, 0), MicrobatchSet.of(OWN), OWN),
        PartialSum(PartialSumId(SIBLING.member, 0), MicrobatchSet.of(THEIRS), THEIRS),
    ),
    (ME, SIBLING),
)
"""The auditor owns part 0, the sibling part 1."""
OTHER = b"\x01" * 24


def entered(offset: int) -> bytes:
    """What came from the source."""
    return Tensor(ACTIVATION, TRAINING, offset, bytes([offset] * 8)).encode()


def returned(offset: int) -> bytes:
    """What came from stage 2."""
    return Tensor(GRADIENT, TRAINING, offset, bytes([offset + 16] * 8)).encode()


@dataclass
class Sibling:
    """What the sibling did and accounts for, and what all others keep.

    Attributes:
        sent, answered: by offset.
        gave: its contribution, by part.
        claims: digests that it accounts for instead of those of what it did.
        answers: what each peer answers when asked, by peer id, side or kind, and index.
    """

    sent: dict[int, bytes] = field(default_factory=dict)
    answered: dict[int, bytes] = field(default_factory=dict)
    gave: dict[int, bytes] = field(default_factory=dict)
    claims: dict[int, TensorDigests] = field(default_factory=dict)
    answers: dict[tuple[str, str, int], bytes | Exception] = field(default_factory=dict)

    def work(self) -> tuple[TensorDigests, ...]:
        """Its account."""
        return tuple(
            self.claims.get(offset)
            or TensorDigests(
                offset,
                digest_of(entered(offset)),
                digest_of(self.sent[offset]),
                digest_of(returned(offset)),
                digest_of(self.answered[offset]),
            )
            for offset in sorted(THEIRS)
        )

    def answer(self, to: Endpoint, request: Request) -> Reply:
        """As the network."""
        peer = to.member.peer_id
        match request:
            case Pull(key=key, side=side):
                data = self.answers[peer, str(side), key.microbatch]
            case GetContribution(part=part):
                data = self.answers[peer, "contribution", part]
            case _:
                raise AssertionError(request)
        if isinstance(data, Exception):
            raise data
        return Reply(ContributionAnswer() if isinstance(request, GetContribution) else Pulled(), data)


def computed(engine: IntegerEngine, offsets: tuple[int, ...]) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """What a replica sends on and back; its gradients go to sum 0."""
    sent, answered = {}, {}
    for offset in offsets:
        sent[offset] = engine.forward(offset, entered(offset))
        answered[offset] = engine.backward(offset, returned(offset), 0)
    return sent, answered


def looked_at(spoil: Callable[[Sibling], None]) -> AuditAnswer:
    """What an honest auditor finds where `spoil` has changed something of the sibling's, before it
    accounts for it and is averaged.
    """

    async def story(alone: Alone) -> AuditAnswer:
        engine, theirs = alone.engine, IntegerEngine(MANIFEST)
        theirs.draw(1, 0)
        computed(engine, OWN)
        sibling = Sibling(*computed(theirs, THEIRS))
        sibling.gave = {part: theirs.contribution([0], part) for part in (0, 1)}
        for offset in THEIRS:
            sibling.answers[A.member.peer_id, str(Side.OUTPUT), offset] = entered(offset)
            sibling.answers[D.member.peer_id, str(Side.ANSWER), offset] = returned(offset)
        spoil(sibling)
        for offset in THEIRS:
            sibling.answers.setdefault((SIBLING.member.peer_id, str(Side.OUTPUT), offset), sibling.sent[offset])
            sibling.answers.setdefault((SIBLING.member.peer_id, str(Side.ANSWER), offset), sibling.answered[offset])
        for part in (0, 1):
            sibling.answers.setdefault((SIBLING.member.peer_id, "contribution", part), sibling.gave[part])
            own = engine.contribution([0], part)
            wrong = sibling.answers.get((SIBLING.member.peer_id, "sum", part))
            engine.keep_average(part, wrong if isinstance(wrong, bytes) else engine.reduce([own, sibling.gave[part]])[0])
        told = [ContributionDigest(part, SIBLING.member, digest_of(sibling.gave[part])) for part in (0, 1)]
        told.append(ContributionDigest(1, ME.member, digest_of(engine.contribution([0], 1))))
        alone.replica_state.plan, alone.replica_state.base = plan(1), BASE
        alone.line.answer, call = sibling.answer, alone.line.call

        async def slowly(*arguments: Any, **named: Any) -> Reply:
            try:
                return await call(*arguments, **named)
            except TimeoutError:
                await asyncio.sleep(1e6)  # with signs of life
                raise

        setattr(alone.line, "call", slowly)  # noqa: B010 - one that can take its time
        request = Audit(at(1), ROLL, SIBLING.member, sibling.work(), tuple(told))
        answer = (await alone.stage_member.auditor.audit(request)).expect(AuditAnswer)
        assert not engine.kept_numbers  # nothing is left of it
        assert engine.contribution([0], 0)
        with pytest.raises(KeyError):
            engine.contribution([1 << 40], 0)
        return answer

    return play(story)


def found(answer: AuditAnswer) -> list[tuple[Audited, int]]:
    """What differs, sorted."""
    return sorted((finding.what, finding.index) for finding in answer.findings)


def test_nothing_is_found_in_honest_work() -> None:
    """Two tensors of each microbatch, two contributions and the sum of one part are compared."""
    assert looked_at(lambda _: None) == AuditAnswer(checked=7, unproven=0)


def wrong_output(sibling: Sibling) -> None:
    """It sends on something else."""
    sibling.sent[1] = OTHER


def wrong_answer(sibling: Sibling) -> None:
    """It sends back something else."""
    sibling.answered[0] = OTHER


def wrong_contribution(sibling: Sibling) -> None:
    """It contributes something else."""
    sibling.gave[0] = bytes(len(sibling.gave[0]))


def wrong_sum(sibling: Sibling) -> None:
    """It answers with something else for the part that it owns."""
    sibling.answers[SIBLING.member.peer_id, "sum", 1] = bytes(len(sibling.gave[1]))


def shows_honest_bytes(sibling: Sibling) -> None:
    """It accounts for what it sent, and shows what it should have sent."""
    sibling.answers[SIBLING.member.peer_id, str(Side.OUTPUT), 1] = sibling.sent[1]
    sibling.sent[1] = OTHER


def withholds_its_contribution(sibling: Sibling) -> None:
    """It has it no more, it says, though nobody drops one before its base ends."""
    wrong_contribution(sibling)
    sibling.answers[SIBLING.member.peer_id, "contribution", 0] = Refused(RefusalKind.GONE, "no such thing")


def accounts_for_nothing(sibling: Sibling) -> None:
    """It leaves out what it sent."""
    sibling.claims[1] = TensorDigests(1, digest_of(entered(1)), "", digest_of(returned(1)), digest_of(sibling.answered[1]))


@pytest.mark.parametrize(
    ("spoil", "what", "index"),
    [
        (wrong_output, Audited.OUTPUT, 1),
        (wrong_answer, Audited.ANSWER, 0),
        (wrong_contribution, Audited.CONTRIBUTION, 0),
        (wrong_sum, Audited.SUM, 1),
        (shows_honest_bytes, Audited.OUTPUT, 1),
        (withholds_its_contribution, Audited.CONTRIBUTION, 0),
        (accounts_for_nothing, Audited.OUTPUT, 1),
    ],
)
def test_each_lie_is_found_and_only_that(spoil: Callable[[Sibling], None], what: Audited, index: int) -> None:
    """By its kind and place, with the digests of what was given and of what was computed."""
    answer = looked_at(spoil)
    assert found(answer) == [(what, index)]
    (finding,) = answer.findings
    assert finding.claimed != finding.found
    assert finding.distance == DISTANCE_MAX
    assert not answer.unproven


def test_a_wrong_contribution_to_its_own_part_is_found_as_that() -> None:
    """The sum is what comes of it, and nobody else's."""

    def spoil(sibling: Sibling) -> None:
        sibling.gave[1] = bytes(len(sibling.gave[1]))

    assert found(looked_at(spoil)) == [(Audited.CONTRIBUTION, 1)]


@pytest.mark.parametrize("keeper", [(A, Side.OUTPUT), (D, Side.ANSWER)])
@pytest.mark.parametrize("answer", [Refused(RefusalKind.GONE, "evicted"), PeerUnreachable("dead"), OTHER, TimeoutError()])
def test_what_cannot_be_computed_again_is_no_fault(keeper: tuple[Endpoint, Side], answer: bytes | Exception) -> None:
    """Where the neighbours do not keep what the sibling says it got, nothing is said of that
    microbatch, nor of the sums; the other one is compared.
    """

    def spoil(sibling: Sibling) -> None:
        sibling.answers[keeper[0].member.peer_id, str(keeper[1]), 0] = answer

    assert looked_at(spoil) == AuditAnswer(checked=2, unproven=3)


@pytest.mark.parametrize("why", [PeerUnreachable("cut"), Refused(RefusalKind.FAILED, "no"), TimeoutError()])
def test_a_contribution_that_differs_and_is_not_shown_is_told(why: Exception) -> None:
    """It may be a broken line, or a liar that knows what is held against whom."""

    def spoil(sibling: Sibling) -> None:
        wrong_contribution(sibling)
        sibling.answers[SIBLING.member.peer_id, "contribution", 0] = why

    answer = looked_at(spoil)
    assert found(answer) == [(Audited.CONTRIBUTION, 0)]
    assert not audit.differs(answer)
    assert not audit.is_of_use(answer)
    assert not audit.is_withheld([answer], 2)
    assert audit.is_withheld([answer, answer], 3)


@pytest.mark.parametrize("why", [PeerUnreachable("cut"), Refused(RefusalKind.GONE, "evicted")])
def test_a_sibling_that_cannot_show_a_tensor_is_not_accused(why: Exception) -> None:
    """Its work differs to the bit, as it may on other hardware, and nobody can say by how much."""

    def spoil(sibling: Sibling) -> None:
        wrong_output(sibling)
        sibling.answers[SIBLING.member.peer_id, str(Side.OUTPUT), 1] = why

    answer = looked_at(spoil)
    assert not answer.findings
    assert answer.unproven == 1


def test_the_largest_distances_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are; what is not shown comes before what is only rounded."""

    def spoil(sibling: Sibling) -> None:
        wrong_output(sibling)
        wrong_contribution(sibling)

    def hides(sibling: Sibling) -> None:
        spoil(sibling)
        sibling.answers[SIBLING.member.peer_id, "contribution", 0] = PeerUnreachable("cut")

    monkeypatch.setattr(auditor, "FINDINGS_MAX", 1)
    monkeypatch.setattr(IntegerEngine, "distance", lambda *_, is_sum: 5.0 if is_sum else 2.0)
    assert [finding.distance for finding in looked_at(spoil).findings] == [5.0]
    assert [finding.distance for finding in looked_at(hides).findings] == [2.0]
    monkeypatch.setattr(IntegerEngine, "distance", lambda *_, is_sum: 5.0 if is_sum else audit.TOLERANCE / 2)
    assert [finding.what for finding in looked_at(hides).findings] == [Audited.CONTRIBUTION]


def test_a_contribution_that_is_only_rounded_is_what_its_sum_is_held_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is further off proves nothing about the sum."""

    def spoil(sibling: Sibling) -> None:
        sibling.gave[1] = bytes(len(sibling.gave[1]))

    checked = []
    for distance in (audit.TOLERANCE, 2 * audit.TOLERANCE):
        monkeypatch.setattr(IntegerEngine, "distance", lambda *_, distance=distance, **__: distance)
        checked.append(looked_at(spoil).checked)
    assert checked == [7, 6]


def failed_audit(answer: Callable[[Alone, Sibling, Endpoint, Request], Reply]) -> tuple[str, bool]:
    """The word of an audit whose pulls are answered so, and whether something of it is left."""

    async def story(alone: Alone) -> tuple[str, bool]:
        theirs = IntegerEngine(MANIFEST)
        theirs.draw(1, 0)
        sibling = Sibling(*computed(theirs, THEIRS))
        for offset in THEIRS:
            sibling.answers[A.member.peer_id, str(Side.OUTPUT), offset] = entered(offset)
            sibling.answers[D.member.peer_id, str(Side.ANSWER), offset] = returned(offset)
        alone.replica_state.plan, alone.replica_state.base = plan(1), BASE
        alone.line.answer = lambda to, request: answer(alone, sibling, to, request)
        claims = tuple(ContributionDigest(part, SIBLING.member, "given") for part in (0, 1))
        told = await word(alone.stage_member.auditor.audit(Audit(at(1), ROLL, SIBLING.member, sibling.work(), claims)))
        return told, bool(alone.engine.kept_numbers or alone.engine._sums)

    return play(story)


def test_nothing_is_left_of_an_audit_whose_device_fails() -> None:
    """Neither sum nor graph, and the coordinator hears that it came to nothing."""

    def fails(*_: object) -> bytes:
        raise MemoryError

    def answer(alone: Alone, sibling: Sibling, to: Endpoint, request: Request) -> Reply:
        setattr(alone.engine, "backward", fails)  # noqa: B010 - of this one alone
        return sibling.answer(to, request)

    assert failed_audit(answer) == ("failed", False)


def test_an_audit_does_nothing_on_the_device_once_its_base_has_ended() -> None:
    """Another stage may be there by then."""

    def answer(alone: Alone, sibling: Sibling, to: Endpoint, request: Request) -> Reply:
        alone.replica_state.base = "b1"
        return sibling.answer(to, request)

    assert failed_audit(answer) == ("failed", False)


@pytest.mark.parametrize(("base", "shown"), [(BASE, b""), ("b1", None)])
def test_who_shows_nothing_of_a_base_that_has_ended_is_not_accused(base: str, shown: bytes | None) -> None:
    """The auditor has left it as well, and says so; in the same base it is withheld."""

    async def story(alone: Alone) -> bytes | None:
        def answer(to: Endpoint, request: Request) -> Reply:
            raise Refused(RefusalKind.STALE, f"{to.member} has no such round")

        alone.replica_state.base, alone.line.answer = base, answer
        look = auditor._Look(Audit(at(1), ROLL, SIBLING.member, (), ()), SIBLING, [])
        try:
            return await alone.stage_member.auditor._shown(look, SIBLING, GetContribution(ROLL.round(), 0))
        except Refused:
            return None

    assert play(story) == shown


def test_work_that_is_over_is_not_audited() -> None:
    """Nor that of another stage, nor one's own."""

    async def story(alone: Alone) -> list[str]:
        alone.replica_state.plan, alone.replica_state.base = plan(1), BASE
        audits, request = alone.stage_member.auditor.audit, Audit(at(1), ROLL, SIBLING.member, (), ())
        other_stage = replace(request, roll=replace(ROLL, stage=2))
        other_base = replace(request, roll=replace(ROLL, base="b1"))
        return [await word(audits(one)) for one in (other_base, other_stage, replace(request, subject=ME.member))]

    assert play(story) == ["stale"] * 3

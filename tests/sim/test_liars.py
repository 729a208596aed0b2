"""Rehearsals with a liar: it is excluded in time and nobody honest is named (N4); what else would
be is found.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.policy import audit
from swarmfree.policy.audit import Verdict
from swarmfree.protocol.messages import AuditAnswer
from swarmfree.protocol.names import Member
from swarmfree.sim.liar_setup import draw_liar_setup
from swarmfree.sim.liars import HONEST_MIN, NAMED_WITHIN, Liar, LiarWatch, Lie
from swarmfree.sim.rehearsal import rehearse
from swarmfree.sim.seed_pool import rehearse_many
from swarmfree.sim.setup import Drawn
from tests.builders import make_entry, make_record
from tests.scenarios.scenario_world import swarm

FIRST, SEEDS = 23, 4
"""The first of these meets other faults as well, and they are played in half the time of the first
four, none of which does; `make check` plays those, and more.
"""


@pytest.mark.timeout(300)
def test_liars_are_excluded_in_time_and_nobody_else() -> None:
    """A few swarms with a liar each, one of them with all kinds of faults besides."""
    result = rehearse_many(FIRST, SEEDS, processes=2, repeat_every=9, drawn=Drawn.LIARS)
    assert [f"{report.violation}; replay: {report.command}" for report in result.failures] == []
    excluded = sum(report.events.get("PeerExcluded", 0) > 0 for report in result.reports)
    assert excluded >= SEEDS * 3 // 4, "the others died, or moved, before"
    assert result.repeated == 1, "and was the same story in another process"
    assert result.reports[3].command == f"swarmfree rehearse --first-seed {FIRST + 3} --seeds 1 --liars"


def test_a_setup_is_drawn_with_every_lie_and_stage() -> None:
    """Of a hundred seeds."""
    setups = [draw_liar_setup(seed) for seed in range(100)]
    liars = [setup.liar for setup in setups if setup.liar is not None]
    assert len(liars) == 100
    assert {liar.lie for liar in liars} == set(Lie)
    assert {0, 1, 2, 3} <= {liar.stage for liar in liars}


def test_a_liar_that_nobody_convicts_is_found_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4 has teeth: auditors that find nothing are noticed after twenty records."""
    monkeypatch.setattr(audit, "judge", lambda *_: Verdict())
    setup = swarm(replicas=3)
    run = replace(setup.manifest.run, audit_share=0.2, iterations=NAMED_WITHIN + 5)
    setup = replace(setup, manifest=replace(setup.manifest, run=run), liar=Liar(Lie.GRADIENTS, 2, 1))
    violation = rehearse(1, setup=setup).violation
    assert violation is not None
    assert violation.invariant == "N4"
    assert "has lied in 21 records, and is still there" in violation.text


@pytest.mark.parametrize(("stage", "is_noticed"), [(2, True), (1, False)])
def test_only_records_with_a_lie_in_them_count(stage: int, *, is_noticed: bool) -> None:
    """One that has lied, and serves where it does not lie by now, is no longer due."""
    liar, noticed = Member("QmLiar", "00"), list[str]()
    watch = LiarWatch(Liar(Lie.SUMS, 2, 0), 4, lambda _, text: noticed.append(text))
    watch.lies(liar, 2, 0)
    siblings = tuple(Member(f"Qm{k}", "00") for k in range(HONEST_MIN - 1))
    for iteration in range(NAMED_WITHIN + 2):
        entries = [make_entry(members=(liar, *siblings) if place == stage else siblings) for place in range(3)]
        watch.committed(make_record(iteration=iteration, stages=tuple(entries)), f"lineage {iteration}")
    assert bool(noticed) == is_noticed


def test_an_honest_peer_that_is_convicted_is_found_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4 has teeth: a verdict on whoever was audited is noticed at once."""

    def convicts(subject: Member, answers: dict[Member, AuditAnswer], siblings: tuple[Member, ...]) -> Verdict:
        del siblings
        return Verdict((subject,), (), tuple(answers), ("made up",))

    monkeypatch.setattr(audit, "judge", convicts)
    setup = swarm(replicas=3)
    setup = replace(setup, manifest=replace(setup.manifest, run=replace(setup.manifest.run, audit_share=0.5)))
    violation = rehearse(1, setup=setup).violation
    assert violation is not None
    assert violation.invariant == "N4"
    assert "is honest and was excluded" in violation.text

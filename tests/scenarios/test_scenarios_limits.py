"""Scenarios of what peers keep for others within a limit that does not hold everything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.policy.retention import FULL_BYTES, MEMBER_SHADOWS, body_parameters
from swarmfree.protocol.manifest import ModelSection
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import lines, play
from tests.scenarios.test_scenarios_replay import actions, logged, lose

LIMIT_BYTES = 10**6


def limited(mlp_width: int) -> Setup:
    """One replica a stage, and so large stages that four full shadows nearly take the whole
    limit.
    """
    setup = logged(replicas=1)
    manifest = setup.manifest
    model = ModelSection(
        width=32, blocks=3, heads=2, kv_heads=1, mlp_width=mlp_width, tokens_per_row=manifest.model.tokens_per_row
    )
    recovery = replace(manifest.recovery, kept_mb_max=LIMIT_BYTES // 10**6)
    return replace(setup, manifest=replace(manifest, model=model, recovery=recovery))


@pytest.mark.parametrize(("mlp_width", "action"), [(183, "Replay"), (184, "Restore")])
def test_a_stage_is_replayed_where_a_log_fits_and_restored_where_none_does(mlp_width: int, action: str) -> None:
    """Of a log that would end too early nothing is kept, whoever would keep one says so once, and
    the shadow is taken as it is.
    """
    setup = limited(mlp_width)
    assert 0 < LIMIT_BYTES - MEMBER_SHADOWS * FULL_BYTES * body_parameters(setup.manifest) < 7_000
    result = play(setup, lose(2))
    assert actions(result) == {"2": action}
    said = [line.split()[1] for line in lines(result, "Note", "no activation log is kept")]
    assert bool(said) == (action == "Restore")
    assert len(said) == len(set(said))

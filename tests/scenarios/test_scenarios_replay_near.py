"""Scenarios of replays by a builder that rounds otherwise, and from logs that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from swarmfree.policy.recovery import NORM_OFF_MAX
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.records import StepScalars
from swarmfree.sim.integer_arithmetic import Tensor
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.rehearsal import Factories
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import lines, play
from tests.scenarios.test_scenarios_replay import LOST_AT, actions, logged, lose


class Rounding(IntegerEngine):
    """Rounds otherwise while it replays: its sums are not those of the records bit for bit, and
    their squared norms are off by a share.

    Weights stay as they are, since integers have no neighbours; so all that is committed can still
    be compared.
    """

    share = 0.0
    newest = 0

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self._first_present = LOST_AT * manifest.batch.microbatches
        self._is_blank = self._replays = False

    def blank(self, stage: int) -> None:
        """Whoever builds a stage begins so; a lost one, since the loss comes right after the
        iteration before.
        """
        super().blank(stage)
        self._is_blank = type(self).newest >= self._first_present - self._microbatches

    def forward(self, ticket: int, activations: bytes) -> bytes:
        """Of the past or of the present."""
        number = Tensor.decode(activations).number
        type(self).newest = max(type(self).newest, number)
        self._replays = self._is_blank and number < self._first_present
        return super().forward(ticket, activations)

    def reduce(self, contributions: Sequence[bytes]) -> tuple[bytes, float]:
        """The norm is off."""
        total, squared_norm = super().reduce(contributions)
        return total, squared_norm * (1 + self.share) if self._replays else squared_norm

    def average_digest(self) -> str:
        """Another one, where the norm is so far off that nothing is stepped with it: the checks
        would see that.
        """
        digest = super().average_digest()
        return digest if not self._replays or abs(self.share) <= NORM_OFF_MAX else digest[::-1]

    def step(self, scalars: StepScalars) -> None:
        """What comes next may be the present."""
        super().step(scalars)
        self._replays = False


def packed_logs(setup: Setup) -> Setup:
    """The same with activations in bfloat16: nothing that is replayed is called exact."""
    recovery = replace(setup.manifest.recovery, border_dtype="bfloat16")
    return replace(setup, manifest=replace(setup.manifest, recovery=recovery))


@pytest.mark.parametrize("share", [0.0, 0.009, -0.009])
def test_a_builder_that_rounds_otherwise_replays_near_and_says_how_near(share: float) -> None:
    """Each sum's squared norm is within 1 % of the record's: the state is taken, and nobody calls
    it exact.
    """

    class Near(Rounding):
        pass

    Near.share = share
    result = play(packed_logs(logged()), lose(2), factories=Factories(make_engine=Near))
    assert actions(result) == {"2": "Replay"}
    assert lines(result, "StageBuilt", "stage=2", "action=Replay", "exact=False")
    assert lines(result, "Note", f"is within {100 * abs(share):.2g} % of the record's")


@pytest.mark.parametrize("share", [0.011, -0.011, 1e6, float("nan"), float("inf")])
@pytest.mark.parametrize("packed", [False, True])
def test_a_replay_of_something_else_gives_way_to_the_shadow(share: float, *, packed: bool) -> None:
    """It is tried once; the same builder restores the shadow."""

    class Wrong(Rounding):
        pass

    Wrong.share = share
    result = play(packed_logs(logged()) if packed else logged(), lose(2), factories=Factories(make_engine=Wrong))
    assert len(lines(result, "RecoveryDecided", "stage=2", "action=Replay", f"iteration={LOST_AT}")) == 1
    assert lines(result, "StageBuilt", "stage=2", "action=Restore")

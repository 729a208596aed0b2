"""Scenarios of a source whose corpus lies elsewhere, and does not come for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from swarmfree.protocol.manifest import Manifest, TimingSection
from swarmfree.protocol.ports import WaitingTokens
from swarmfree.sim.integer_tokens import IntegerTokens
from swarmfree.sim.rehearsal import Factories
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import lines, play, swarm

SILENCE_S = TimingSection().silence_s
SLACK_S = 4.0
OUTAGE_S = 8 * SILENCE_S
BEGINS = 12 * 6
"""Number of the first microbatch that is waited for."""


class ElsewhereTokens(IntegerTokens):
    """A corpus behind a server that is out once, from the first read of the twelfth iteration."""

    def __init__(self, manifest: Manifest, sequence_count: int, outage_s: float) -> None:
        super().__init__(manifest, sequence_count)
        self._outage_s, self._over_s, self._since_s = outage_s, -1.0, list[float]()
        self.expected = set[int]()

    def expect(self, places: Sequence[int]) -> None:
        """It is told what comes."""
        self.expected |= set(places)

    async def microbatch_once_there(self, number: int, place: int | None = None) -> bytes:
        """Once the server is there again."""
        now_s = asyncio.get_running_loop().time()
        if number >= BEGINS and self._over_s < 0:
            self._over_s = now_s + self._outage_s
        if now_s < self._over_s:
            self._since_s.append(now_s)
            try:
                await asyncio.sleep(self._over_s - now_s)
            finally:
                self._since_s.remove(now_s)
        return self.microbatch(number, place)

    async def window_once_there(self, number: int) -> bytes:
        """It is always there."""
        return self.window(number)

    def waited_s(self) -> float:
        """Also for reads that nobody waits for any more: they go on until the server answers."""
        now_s = asyncio.get_running_loop().time()
        return now_s - (self._over_s - self._outage_s) if now_s < self._over_s else 0.0


class Sources:
    """Makes the corpora of sources; only the one that is numbered so has an outage."""

    def __init__(self, out: int) -> None:
        self.made, self._out = list[ElsewhereTokens](), out

    def __call__(self, manifest: Manifest, sequence_count: int) -> ElsewhereTokens:
        """The next one."""
        tokens = ElsewhereTokens(manifest, sequence_count, OUTAGE_S if len(self.made) == self._out else 0.0)
        self.made.append(tokens)
        return tokens


def long_run(setup: Setup, iterations: int) -> Setup:
    """The same with more iterations."""
    return replace(setup, manifest=replace(setup.manifest, run=replace(setup.manifest.run, iterations=iterations)))


@pytest.mark.parametrize("out", [0, 1])
def test_another_source_feeds_while_the_corpus_of_one_does_not_come(out: int) -> None:
    """It is fenced while it waits, after it has handed over the lead if it has it, and the other
    one does its share; the sums are those of the one order, whoever fed what.
    """
    sources = Sources(out)
    result = play(long_run(swarm(sources=2), 16), factories=Factories(make_tokens=sources))
    assert isinstance(sources.made[0], WaitingTokens)
    assert len(lines(result, "MemberLost", "waited for data")) == 1
    assert len(lines(result, "TookOver", "forced=False")) == (out == 0)
    assert result.statistics.longest_gap_s < 4 * SILENCE_S + SLACK_S < OUTAGE_S
    assert not lines(result, "StageLost")
    assert all(tokens.expected for tokens in sources.made)


def test_training_waits_for_the_corpus_of_its_only_source() -> None:
    """Nobody is fenced, nothing is lost or repeated, and it goes on where it was."""
    result = play(long_run(swarm(), 16), factories=Factories(make_tokens=Sources(0)))
    assert OUTAGE_S <= result.statistics.longest_gap_s < OUTAGE_S + SLACK_S
    assert not lines(result, "MemberLost")
    assert not lines(result, "StageLost")
    assert not [line for line in lines(result, "IterationCommitted") if "attempt=0" not in line]

"""What volunteers have on their screens in rehearsed swarms: every peer's own look at its own
books, from its start to its end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random

import pytest

from swarmfree.cockpit.peer_view import Means, OwnState, begin, hear, look, own_lines
from swarmfree.cockpit.screen import Window, picture
from swarmfree.protocol.events import Event, StageLost
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.ports import Journal, Ports
from swarmfree.sim.rehearsal import Factories, rehearse
from swarmfree.trainer.peer import Hooks, Peer, run_peer
from swarmfree.trainer.peer_status import glance_of

SEEDS = (0, 2, 3, 20, 30, 36)
"""Of these four lose a stage and two their coordinator, in less time than most take."""
LOOK_S = 0.25
WINDOW = Window(80, 23)


class Screen:
    """Implements `ports.Journal`: one peer's screen, drawn at every look."""

    def __init__(self, journal: Journal, manifest: Manifest, clock: Ports) -> None:
        """Show what is told on to `journal`."""
        self._journal, self._ports = journal, clock
        self.own = begin(OwnState(means=Means("1 CPU thread", 10**6, 10**6)), manifest, self._now_s())
        self.lost: list[StageLost] = []
        self.looks = 0

    def _now_s(self) -> float:
        return self._ports.clock.now_s()

    def tell(self, event: Event) -> None:
        """Hear it and pass it on."""
        self.own = hear(self.own, event, self._now_s())
        if isinstance(event, StageLost):
            self.lost.append(event)
        self._journal.tell(event)

    async def watch(self, peer: Peer) -> None:
        """Look again and again, and draw."""
        while True:
            self.own = look(self.own, glance_of(peer), self._now_s())
            lines = picture(self.own.swarm, self._now_s(), WINDOW, own_lines(self.own), self.own.name)
            assert len(lines) <= WINDOW.lines and max(line.cell_len for line in lines) <= WINDOW.columns
            self.looks += 1
            await asyncio.sleep(LOOK_S)


@functools.cache
def screens_of(seed: int) -> list[Screen]:
    """The screens of all peers of a rehearsal that held; played once for all who look at them."""
    screens: list[Screen] = []

    async def watched_peer(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks) -> int:
        screen = Screen(ports.journal, manifest, ports)
        screens.append(screen)
        ports = dataclasses.replace(ports, journal=screen)
        watch = lambda peer: peer.tasks.start(screen.watch(peer), "screen")  # noqa: E731 - said once
        return await run_peer(ports, manifest, local, rng, dataclasses.replace(hooks, begun=watch))

    result = rehearse(seed, factories=Factories(run_peer=watched_peer))
    assert result.violation is None, (result.violation, result.details)
    return screens


@pytest.mark.parametrize("seed", SEEDS)
def test_every_screen_tells_the_same_losses(seed: int) -> None:
    """Whoever coordinates, all peers that looked long enough saw the same loss of the same
    iteration, and one of them saw the end.
    """
    screens = screens_of(seed)
    assert sum(screen.looks for screen in screens) > 10
    told: dict[int, set[float]] = {}
    for screen in screens:
        for commit in screen.own.swarm.commits:
            told.setdefault(commit.iteration, set()).add(commit.loss)
    assert told and all(len(losses) == 1 for losses in told.values())
    assert max(screen.own.swarm.committed_count for screen in screens) >= screens[0].own.swarm.iterations - 1


def test_no_loss_stays_on_a_screen_after_the_end() -> None:
    """Where a stage was lost and the run reached its end, no member's screen that saw the end still
    has the stage as lost.
    """
    seen = 0
    for seed in SEEDS:
        screens = screens_of(seed)
        seen += sum(len(screen.lost) for screen in screens)
        for screen in screens:
            swarm = screen.own.swarm
            if swarm.is_over:
                assert not swarm.unfolding
    assert seen, "some stage was lost in one of these"

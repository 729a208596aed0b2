"""``python -m benchmarks.paced_fork_server``: a fork server whose peers' devices take as long as a
file says, and whose coordinator tells what it has measured.

Used by `benchmarks.estimator` and `benchmarks.moves`. A device computes, and then sleeps for the
rest of the time that a slower machine would take: so many peers share two cores, and none is slowed
by the others. The forward of a microbatch, the way back and the loss are paced; steps, averaging
and messages are what they are here.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from benchmarks.block_chain import held_blocks, write_steps
from swarmfree.cli.fork_server import load, run
from swarmfree.lab.fork_server import serve
from swarmfree.policy.planner.measured_fleet import FORWARD_SHARE
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.events import Note
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.records import StepScalars
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.engine_probe import EngineProbe

if TYPE_CHECKING:
    from swarmfree.trainer.coordinator.move_watch import MoveWatch

FLAG = "SWARMFREE_PACE"
MEASURED = "measured: "
"""How a note of the coordinator begins that tells name, stage and seconds of each peer."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow devices are.

    Args:
        block_s: seconds of a microbatch in one block, both ways.
        head_s: of its loss.
        slower: name -> how many times as long this peer takes.
        moves: whether the coordinator may move peers.
    """

    block_s: float
    head_s: float
    slower: Mapping[str, float] = field(default_factory=dict)
    moves: bool = False

    def write(self, path: Path) -> None:
        """Have it hold from now on."""
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(asdict(self)), encoding="ascii")
        whole.replace(path)

    @staticmethod
    def read(path: Path) -> Pace:
        """What holds now."""
        return Pace(**json.loads(path.read_text(encoding="ascii")))


def paced_fork_server(path: Path) -> tuple[str, ...]:
    """How to start it, with the file that holds its `Pace`."""
    return "/usr/bin/env", f"{FLAG}={path}", sys.executable, "-m", "benchmarks.paced_fork_server"


class _PacedEngine(EngineProbe):
    """Takes as long as the file says."""

    def __init__(self, engine: Engine, manifest: Manifest, path: Path, name: str) -> None:
        super().__init__(engine)
        self._manifest, self._split, self._path, self._name = manifest, manifest.split, path, name
        self._own_name = f"{name}-{os.getpid()}-{next(_numbers)}"

    def follow(self, split: BlockSplit) -> None:
        """Cut stages so from here on, as the engine does."""
        self._split = split
        self._engine.follow(split)

    def forward(self, ticket: int, activations: bytes) -> bytes:
        """Run the blocks, in a third of the time."""
        begun_s = time.monotonic()
        output = self._engine.forward(ticket, activations)
        self._rest(begun_s, FORWARD_SHARE * self._blocks_s)
        return output

    def backward(self, ticket: int, gradient: bytes, partial_sum: int) -> bytes:
        """Go back through the blocks, in the rest of it."""
        begun_s = time.monotonic()
        answer = self._engine.backward(ticket, gradient, partial_sum)
        self._rest(begun_s, (1 - FORWARD_SHARE) * self._blocks_s)
        return answer

    def loss(self, activations: bytes, tokens: bytes, partial_sum: int) -> tuple[bytes, float]:
        """Compute the loss, both ways."""
        begun_s = time.monotonic()
        found = self._engine.loss(activations, tokens, partial_sum)
        self._rest(begun_s, Pace.read(self._path).head_s)
        return found

    def step(self, scalars: StepScalars) -> None:
        """Step, and write down what that made of each block."""
        before = self._blocks()
        self._engine.step(scalars)
        write_steps(self._path.parent, self._own_name, before, self._blocks())

    def _blocks(self) -> dict[int, str]:
        return held_blocks(self._engine, self._manifest, self._split, self._stage)

    @property
    def _blocks_s(self) -> float:
        return Pace.read(self._path).block_s * len(self._split.blocks_of(self._stage))

    def _rest(self, begun_s: float, seconds: float) -> None:
        factor = Pace.read(self._path).slower.get(self._name, 1.0)
        time.sleep(max(0.0, begun_s + factor * seconds - time.monotonic()))


def _run_paced(arguments: Sequence[str]) -> None:
    from swarmfree.cli import peer_run  # noqa: PLC0415 - loaded by the fork server
    from swarmfree.trainer.coordinator.measured_peers import known_peers  # noqa: PLC0415
    from swarmfree.trainer.coordinator.move_watch import MoveWatch  # noqa: PLC0415

    path, name = Path(os.environ[FLAG]), Path(arguments[arguments.index("--folder") + 1]).name
    make_engine = peer_run.make_engine  # type: ignore[attr-defined]
    committed, consider = MoveWatch.committed, MoveWatch.consider

    def make_paced(kind: Any, manifest: Manifest, threads: int) -> Engine:
        return cast("Engine", _PacedEngine(make_engine(kind, manifest, threads), manifest, path, name))

    def committed_and_told(self: MoveWatch, *given: Any, **named: Any) -> None:
        committed(self, *given, **named)
        peers = known_peers(self._roster, self._context.manifest)
        self._context.tell(Note(MEASURED + json.dumps([(peer.name, peer.stage, peer.microbatch_s) for peer in peers])))

    async def consider_if_allowed(self: MoveWatch) -> None:
        if Pace.read(path).moves:
            await consider(self)

    peer_run.make_engine = make_paced  # type: ignore[attr-defined]
    MoveWatch.committed = committed_and_told  # type: ignore[method-assign]
    MoveWatch.consider = consider_if_allowed  # type: ignore[method-assign]
    run(arguments)


if __name__ == "__main__":
    serve(load, _run_paced)

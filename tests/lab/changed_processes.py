"""What tests of real processes change in those that are forked from the nursery: keys that were
drawn before (`drawn_keys`), sources that rest after each microbatch, and no page at the end of
`local`.

A tiny model trains as fast as the processors let it, so a swarm takes both cores for as long as a
test waits for a process to start. A source that sleeps, as a larger head would compute, leaves
them to that; what is computed stays the same. A page takes
more than all peers of a small swarm together; tests of `local_run` look at it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric import rsa

from swarmfree.cli.fork_server import run as run_unchanged
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.manifest import Manifest
from swarmfree.trainer.engine_probe import EngineProbe
from tests.lab.drawn_keys import Draw

REST, NO_PAGE = "SWARMFREE_TEST_REST_S", "SWARMFREE_TEST_NO_PAGE"
"""In the environment of a fork server of the tests: seconds after each loss of a microbatch, and
whether `local` draws nothing.
"""


def resting(rest_s: float) -> str:
    """What a fork server's environment says, so that its sources rest."""
    return f"{REST}={rest_s}"


def without_page() -> str:
    """What it says, so that nothing is drawn when `local` is over."""
    return f"{NO_PAGE}=1"


class RestingEngine(EngineProbe):
    """Sleeps after each loss of a microbatch, which sources compute: no stage is built slower."""

    def __init__(self, engine: Engine, rest_s: float) -> None:
        """Rest `rest_s` seconds each time."""
        super().__init__(engine)
        self._rest_s = rest_s

    def loss(self, activations: bytes, tokens: bytes, partial_sum: int) -> tuple[bytes, float]:
        """Compute it."""
        found = self._engine.loss(activations, tokens, partial_sum)
        time.sleep(self._rest_s)
        return found


def run(arguments: Sequence[str], draw: Draw) -> None:
    """Be `swarmfree` with these arguments and keys that are drawn so, changed as the environment
    says.
    """
    rsa.generate_private_key = draw  # type: ignore[assignment]
    if NO_PAGE in os.environ and arguments[0] == "local":
        _draw_nothing()
    if rest_s := float(os.environ.get(REST, "0")):
        _rest(rest_s)
    run_unchanged(arguments)


def _rest(rest_s: float) -> None:
    from swarmfree.cli import peer_run

    make_engine = peer_run.make_engine  # type: ignore[attr-defined]

    def make_resting(kind: Any, manifest: Manifest, threads: int) -> Engine:
        return cast("Engine", RestingEngine(make_engine(kind, manifest, threads), rest_s))

    peer_run.make_engine = make_resting  # type: ignore[attr-defined]


def _draw_nothing() -> None:
    from swarmfree.cli.local_run import LocalRun

    async def nothing(self: LocalRun) -> int:
        return 0

    LocalRun._draw = nothing  # type: ignore[method-assign]

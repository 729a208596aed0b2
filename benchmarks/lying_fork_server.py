"""``python -m benchmarks.lying_fork_server``: a fork server whose peers' first coordinator of a
merge lies about its weights for as long as it lives.

Used by `benchmarks.survival`. Who creates the file that the environment names is the liar.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from swarmfree.cli.fork_server import load, run
from swarmfree.lab.fork_server import serve
from swarmfree.protocol.actions import BuildAction, Merge
from swarmfree.protocol.records import float32_bits

FLAG = "SWARMFREE_LIAR"
LIE = 0.5
"""For both neighbours."""


def lying_fork_server(flag: Path) -> tuple[str, ...]:
    """How to start it."""
    return "/usr/bin/env", f"{FLAG}={flag}", sys.executable, "-m", "benchmarks.lying_fork_server"


def _is_liar(flag: Path) -> bool:
    """Whether this process is the one, the first that asks."""
    try:
        with flag.open("x", encoding="ascii") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return flag.read_text(encoding="ascii") == str(os.getpid())
    return True


def _run_lying(arguments: Sequence[str]) -> None:
    from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice  # noqa: PLC0415 - loaded by the fork server

    flag, honest = Path(os.environ[FLAG]), RecoveryChoice.choose

    def lying(self: RecoveryChoice, *given: Any, **named: Any) -> BuildAction:
        action = honest(self, *given, **named)
        if not isinstance(action, Merge) or named.get("without") or not _is_liar(flag):
            return action
        return replace(action, weight_before=float32_bits(LIE), weight_after=float32_bits(LIE))

    RecoveryChoice.choose = lying  # type: ignore[method-assign]
    run(arguments)


if __name__ == "__main__":
    serve(load, _run_lying)

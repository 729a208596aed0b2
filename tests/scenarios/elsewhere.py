"""An engine in a process of its own, on a processor that is told to know fewer instructions: it
rounds otherwise.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from swarmfree.protocol.config import manifest_from_bytes
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.records import StepScalars
from swarmfree.sim.torch_rehearsal import make_engine

ROOT = Path(__file__).parents[2]
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""What torch and the libraries beneath it are told to do without."""


def shown(value: object) -> object:
    """What JSON does not know, as it is written here."""
    if isinstance(value, StepScalars):
        return {"scalars": dataclasses.astuple(value)}
    assert isinstance(value, bytes | memoryview), f"a {type(value).__name__}"
    return {"bytes": value.hex()}


def read(found: dict[str, Any]) -> object:
    """Inverse of `shown`."""
    return StepScalars(*found["scalars"]) if "scalars" in found else bytes.fromhex(found["bytes"]) if "bytes" in found else found


def serve() -> None:
    """Do what comes after the manifest, a line each, until nothing more does."""
    engine = make_engine(manifest_from_bytes(sys.stdin.readline().strip().encode()))
    for line in sys.stdin:
        name, given, named = json.loads(line, object_hook=read)
        print(json.dumps(getattr(engine, name)(*given, **named), default=shown), flush=True)  # noqa: T201 - its answer


class Elsewhere:
    """Hands every call on to the other process."""

    def __init__(self, manifest: Manifest) -> None:
        """Start the process."""
        command, environment = [sys.executable, "-m", "tests.scenarios.elsewhere"], {**os.environ, **PLAIN}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None, "a pipe"
        self._process.stdin.write(manifest.canonical().decode() + "\n")

    def end(self) -> None:
        """The process ends."""
        self._process.communicate()

    def __getattr__(self, name: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None, "pipes"
        asked, told = self._process.stdin, self._process.stdout

        def ask(*given: Any, **named: Any) -> Any:
            asked.write(json.dumps([name, given, named], default=shown) + "\n")
            asked.flush()
            return json.loads(told.readline(), object_hook=read)

        return ask


if __name__ == "__main__":
    serve()

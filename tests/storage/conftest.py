"""Ways to make a disk refuse: a process of its own with a limit on file sizes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

LimitedRun = Callable[[str, int], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def limited_run() -> LimitedRun:
    """Run Python code in a process in which no file can grow beyond so many bytes; writing more
    fails as on a full disk.
    """

    def run(code: str, limit_bytes: int) -> subprocess.CompletedProcess[str]:
        prologue = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))\n"
        return subprocess.run([sys.executable, "-c", prologue + code], capture_output=True, text=True, timeout=60, check=False)

    return run

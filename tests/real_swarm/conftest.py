"""What the tests of real swarms get: processes of their own, of which nothing outlives the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.real_swarm.real_swarm import Processes


@pytest.fixture
async def processes(tmp_path: Path, fork_server: tuple[str, ...]) -> AsyncIterator[Processes]:
    """Real processes in a folder of this test; what a failed test leaves is ended."""
    own = Processes(tmp_path, fork_server)
    try:
        yield own
    finally:
        await own.end()

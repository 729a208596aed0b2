"""What the tests of real swarms get: processes of their own, of which nothing outlives the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from swarmfree.lab.stem import Stem
from tests.lab.nursery import nursery, nursery_stem
from tests.swarm.real_swarm import Processes


@pytest.fixture(scope="session")
def stem() -> Iterator[tuple[str, ...]]:
    """How to start a stem that need not load anything, since another one has; `env` gives it a test's folder for temporary files."""
    if not Stem.can_grow():
        yield ()
        return
    with nursery() as path:
        yield nursery_stem(path)


@pytest.fixture
async def processes(tmp_path: Path, stem: tuple[str, ...]) -> AsyncIterator[Processes]:
    """Real processes in a folder of this test; what a failed test leaves is ended."""
    own = Processes(tmp_path, stem)
    try:
        yield own
    finally:
        await own.end()

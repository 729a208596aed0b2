"""What all tests share: property tests that draw the same examples on every run, and a small
manifest.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest

from swarmfree.lab.fork_server import ForkServer
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RunSection, StagesSection
from swarmfree.wire.identity import Identity, load_or_create_identity
from swarmfree.wire.organiser import OrganiserKey, draw_organiser
from tests.lab.nursery import SHARED, nursery, nursery_fork_server

# The same examples everywhere, no database in the tree, no limit by wall clock: a red test is red
# again.
hypothesis.settings.register_profile("swarmfree", derandomize=True, database=None, deadline=None, max_examples=60)
hypothesis.settings.load_profile("swarmfree")

# A shell has its background jobs ignore SIGINT, and processes inherit that: a test that interrupts
# one would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Loading thousands of tests leaves next to no garbage, and looking for it is a tenth of the time.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of these tests."""
    parser.addoption("--write-transcripts", action="store_true", help="write the transcripts of the scenarios anew")
    parser.addoption(
        "--other-times", type=int, default=0, metavar="N", help="tell scenarios with times drawn from N; only invariants count"
    )
    parser.addoption("--write-screens", action="store_true", help="write the golden screens anew")


def pytest_collection_finish() -> None:
    """What is loaded by now stays: nobody looks at it again before each of hundreds of rehearsals,
    which takes a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[tuple[str, ...]]:
    """How to start a fork server that need not load anything, since another one has; `env` gives it
    a test's folder for temporary files.
    """
    if not ForkServer.is_supported():
        yield ()
    elif shared := os.environ.get(SHARED):
        yield nursery_fork_server(Path(shared))
    else:
        with nursery() as path:
            yield nursery_fork_server(path)


@pytest.fixture
def small_manifest() -> Manifest:
    """Four stages of one block each, a few hundred parameters, two rows of eight tokens."""
    return Manifest(
        run=RunSection(name="small", seed=7, iterations=4, evaluate_every=2, evaluate_windows=3),
        model=ModelSection(width=16, blocks=3, heads=2, kv_heads=1, mlp_width=24, tokens_per_row=8, vocabulary=256),
        stages=StagesSection(body=3),
        batch=BatchSection(rows=2, microbatches=4),
    )


@pytest.fixture(scope="session")
def organiser() -> OrganiserKey:
    """The key of who makes runs."""
    return draw_organiser()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """A bootstrap node."""
    return load_or_create_identity(tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """Somebody else."""
    return load_or_create_identity(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def manifest(small_manifest: Manifest, organiser: OrganiserKey) -> Manifest:
    """The small run, made by the organiser."""
    return replace(small_manifest, organiser=organiser.peer_id)

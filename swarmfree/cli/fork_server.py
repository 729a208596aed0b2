"""``python -m swarmfree.cli.fork_server``: the fork server of a local swarm, from which its
bootstrap node and its peers are forked.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from swarmfree.lab.fork_server import serve

# Libraries that load a part of themselves when it is first used stand here with that part.
LOADED = (
    "cryptography.hazmat.backends.openssl.backend",
    "grpc._utilities",
    "hivemind.utils.multiaddr.codecs.cid",
    "hivemind.utils.multiaddr.codecs.ip4",
    "hivemind.utils.multiaddr.codecs.uint16be",
    "swarmfree.cli.main",
    "swarmfree.cli.bootstrap",
    "swarmfree.cli.shutdown",
    "swarmfree.cli.bootstrap_node",
    "swarmfree.cli.event_output",
    "swarmfree.cli.peer_run",
    "swarmfree.cli.peer_start",
    "swarmfree.model.engine",
    "swarmfree.storage.journal",
    "swarmfree.wire.dht_keeper",
    "swarmfree.wire.dht_node",
    "swarmfree.wire.dht_validator",
    "swarmfree.wire.own_address",
)


def load() -> None:
    """Load what every child needs."""
    # NumPy's and SciPy's start threads when they are loaded, which a fork would lack
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # Read as it is loaded: what a child says later comes too late, and strangers that knock write
    # into its log
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    for module in LOADED:
        importlib.import_module(module)
    from swarmfree.cli.main import whole_command  # noqa: PLC0415 - loaded before

    # Which builds all options, and loads what reads them
    whole_command().make_context("swarmfree", [], resilient_parsing=True)


def run(arguments: Sequence[str]) -> None:
    """Be `swarmfree` with these arguments, in a child."""
    from swarmfree.cli.main import main  # noqa: PLC0415 - loaded before

    sys.argv = ["swarmfree", *arguments]
    main()


if __name__ == "__main__":
    serve(load, run)

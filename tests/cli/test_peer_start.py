"""How a peer begins: what is shown first does not wait for what is loaded."""

from __future__ import annotations

import subprocess
import sys


def test_a_peer_shows_something_before_it_loads_anything_heavy() -> None:
    """With a peer's choices checked and its screen at hand, gRPC, hivemind, NumPy, torch and the trainer are not loaded yet."""
    heavy = (
        "{'torch', 'hivemind', 'numpy', 'scipy', 'grpc', 'safetensors', 'swarmfree.trainer.life.peer', 'swarmfree.wire.network'}"
    )
    code = (
        "import sys, swarmfree.cli.checks, swarmfree.cli.endings, swarmfree.cli.main, swarmfree.cli.peer_start, swarmfree.cli.peer_screen;"
        "import swarmfree.wire.invite, swarmfree.wire.listening, swarmfree.wire.own_address;"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"

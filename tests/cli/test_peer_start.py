"""How a peer begins: what is shown first does not wait for what is loaded."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
from pathlib import Path

from swarmfree.cli.early_checks import LAB_PACKAGES
from swarmfree.cli.engine_probe import EngineKind
from swarmfree.cli.options import Log
from swarmfree.cli.peer_order import PeerOrder, announced_of
from swarmfree.cli.peer_run import PeerLife
from swarmfree.cli.peer_screen import PeerScreen
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.wire.invite import Invite


def test_a_peer_shows_something_before_it_loads_anything_heavy() -> None:
    """With a peer's choices checked and its screen at hand, gRPC, hivemind, NumPy, torch and the
    trainer are not loaded yet.
    """
    heavy = "{'torch', 'hivemind', 'numpy', 'scipy', 'grpc', 'safetensors', 'swarmfree.trainer.peer', 'swarmfree.wire.network'}"
    code = (
        "import sys, swarmfree.cli.early_checks, swarmfree.cli.shutdown, swarmfree.cli.main, swarmfree.cli.peer_start, swarmfree.cli.peer_screen;"
        "import swarmfree.wire.invite, swarmfree.wire.port_check, swarmfree.wire.own_address;"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


def test_a_peer_needs_nothing_of_the_lab() -> None:
    """All that a peer, a bootstrap node, `status`, `sample` and `rehearse` load is loaded where no
    package of the extra `lab` is installed.
    """
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({LAB_PACKAGES}));"
        "import swarmfree.cli.main, swarmfree.cli.peer_start, swarmfree.cli.peer_run, swarmfree.cli.bootstrap_node;"
        "import swarmfree.cli.status_query, swarmfree.cli.rehearse_run, swarmfree.cockpit.status;"
        "import swarmfree.model.engine, swarmfree.model.sampling, swarmfree.sim.rehearsal;"
        "import os; from swarmfree.cli.options import bind_to_parent; bind_to_parent(os.getppid());"
        f"print([name for name in {LAB_PACKAGES} if sys.modules[name]])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n"


def test_others_are_told_the_address_that_they_can_call() -> None:
    """The one given with --announce, else the one on the way to the invite, else the one that is
    listened on.
    """
    listens = LocalConfig("folder", host="192.0.2.1")
    found = dataclasses.replace(listens, announced_host="192.0.2.7")
    assert announced_of(listens) == ("192.0.2.1", 0)
    assert announced_of(found) == ("192.0.2.7", 0)
    assert announced_of(dataclasses.replace(found, announce="203.0.113.8:4002")) == ("203.0.113.8", 4002)


def test_what_is_kept_for_others_is_the_smaller_of_two_limits(tmp_path: Path) -> None:
    """The run's limit holds where the peer's own is larger, and the other way round; the peer's
    lines say which.
    """
    limits = Manifest().recovery
    for memory_mb, disk_mb in ((7, 9), (limits.kept_ram_mb_max + 1, limits.kept_mb_max + 1)):
        local = LocalConfig(str(tmp_path), memory_mb_max=memory_mb, disk_mb_max=disk_mb)
        order = PeerOrder(Invite("ab" * 32, ()), local, Log.TEXT, EngineKind.TORCH, is_watched=False)
        out = io.StringIO()
        PeerLife(order)._introduce(PeerScreen(out, tmp_path), Manifest(), "swarmfree1")
        memory, disk = min(memory_mb, limits.kept_ram_mb_max), min(disk_mb, limits.kept_mb_max)
        assert f"keeps at most {memory:,} MB RAM and {disk:,} MB disk for others" in out.getvalue()
    assert (tmp_path / "invite").read_text() == "swarmfree1\n"
    assert (tmp_path / "invite").stat().st_mode & 0o077 == 0, "it may carry a ticket's key"

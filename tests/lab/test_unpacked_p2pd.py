"""p2pd as the tests start it is p2pd as users start it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.lab.unpacked_p2pd import unpack


def test_an_unpacked_program_says_what_the_packed_one_says(tmp_path: Path) -> None:
    """All its options, with what they are where nothing is said; another program stays as it is."""
    assert not unpack(Path(sys.executable), tmp_path / "other") and not (tmp_path / "other").exists()
    hivemind = find_spec("hivemind")  # which is not loaded by that
    assert hivemind is not None and hivemind.origin is not None
    packed = Path(hivemind.origin).parent / "hivemind_cli" / "p2pd"
    if not unpack(packed, tmp_path / "p2pd"):
        pytest.skip("this system does not let a process be stopped as it starts")
    said = [subprocess.run((each, "-help"), capture_output=True, check=False) for each in (packed, tmp_path / "p2pd")]
    first, second = (each.stderr.partition(b"\n")[2] for each in said)  # behind its own name
    assert b"-persistentConnMaxMsgSize" in first and first == second

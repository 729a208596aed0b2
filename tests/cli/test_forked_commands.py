"""What the fork server does before it forks the first command."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from swarmfree.cli import fork_server


def test_grpc_is_told_to_be_quiet_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads how much to say once; a command that is forked afterwards says it too late, and
    strangers that knock would fill its log. What a person has set stays.
    """
    for said, expected in (("", "ERROR"), ("DEBUG", "DEBUG")):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
        monkeypatch.setenv("GRPC_VERBOSITY", said)
        if not said:
            monkeypatch.delenv("GRPC_VERBOSITY")
        found = dict[str, str | None]()

        def load(name: str, found: dict[str, str | None] = found) -> None:
            found[name] = os.environ.get("GRPC_VERBOSITY")

        monkeypatch.setattr(fork_server, "importlib", SimpleNamespace(import_module=load))
        fork_server.load()
        assert set(found) == {*fork_server.LOADED}
        assert set(found.values()) == {expected}

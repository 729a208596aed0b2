"""What the tests of the wire share: a p2pd that starts at once."""

from __future__ import annotations

import pytest

from tests.lab.unpacked_p2pd import start_unpacked


@pytest.fixture(scope="session", autouse=True)
def _unpacked_p2pd(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unpacked once for the hundred that are started here."""
    start_unpacked(tmp_path_factory.mktemp("p2pd"))

"""What the tests of the wire share: a p2pd that starts at once, and keys that were drawn before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from swarmfree.wire.identity import Identity
from tests.lab.drawn_keys import KEYS
from tests.lab.unpacked_p2pd import start_unpacked


@pytest.fixture(scope="session", autouse=True)
def _unpacked_p2pd(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unpacked once for the hundred that are started here."""
    start_unpacked(tmp_path_factory.mktemp("p2pd"))


@pytest.fixture(scope="module", autouse=True)
def _drawn_keys(request: pytest.FixtureRequest, node: Identity, stranger: Identity) -> Iterator[None]:
    """For each module; those that all modules share are drawn before."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != "test_identity.py":
            patch.setattr(rsa, "generate_private_key", KEYS.for_a_module())
        yield

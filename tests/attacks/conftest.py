"""What all attacks share: keys that were drawn before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attacked_swarm import identity
from cryptography.hazmat.primitives.asymmetric import rsa

from swarmfree.wire.identity import Identity
from tests.lab.drawn_keys import KEYS


@pytest.fixture(scope="module", autouse=True)
def _drawn_keys(node: Identity, stranger: Identity) -> Iterator[None]:
    """For each module; those that all modules share are drawn before. What an earlier module has
    drawn by a number may be what this one draws by another, where tests are dealt over processes.
    """
    identity.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rsa, "generate_private_key", KEYS.for_a_module())
        yield

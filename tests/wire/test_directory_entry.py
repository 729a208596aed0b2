"""What the nodes of an invite hold: a visitor has no other node's address."""

from __future__ import annotations

from pathlib import Path

import pytest
from directory_world import announcement_of, until, world_of

from swarmfree.protocol.manifest import Manifest
from swarmfree.wire import dht_node
from swarmfree.wire.hivemind_parts import DHTID


async def test_the_bootstrap_node_holds_what_peers_say_of_themselves(
    tmp_path: Path, small_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands: here each record lies at the one node that is nearest to its key."""
    monkeypatch.setattr(dht_node, "_REPLICAS", 1)
    async with world_of(tmp_path, small_manifest) as world:
        bootstrap = await world.bootstrap()
        for name in ("one", "two", "three"):
            directory, identity = await world.peer(name, bootstrap.addresses[:1])
            await directory.announce(announcement_of(identity))
        assert bootstrap._keeper is not None and bootstrap._keeper._node is not None
        storage, key = bootstrap._keeper._node._storage, DHTID.generate(source=bootstrap._key("peers"))

        def holds_all() -> bool:
            held = storage.get(key)
            return held is not None and len(held.value) == 3

        await until(holds_all, "the bootstrap node holds all three")

"""What a source learns of the data that it reads, and says of it."""

from __future__ import annotations

import dataclasses
import hashlib
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.policy.data_order import MixtureOrder
from swarmfree.protocol.messages import Heartbeat, HeartbeatAnswer
from swarmfree.storage.remote_folder import RemoteError
from swarmfree.storage.remote_shards import BlockReader, RemoteShard
from swarmfree.storage.token_shards import HEADER_SIZE_BYTES
from tests.mutants.alone import A, Alone, at, play

SILENCES = 6


def two_epochs_of_a_larger_dataset() -> object:
    """How many different sequences two epochs show of a dataset of which each shows half."""
    order = MixtureOrder(1, (20, 40), (1.0, 1.0))
    shown = [order.sequence_of(position) for position in range(2 * order.epoch_length)]
    return len({sequence for sequence in shown if sequence >= 20})


def block_of_another_shard() -> object:
    """What comes of a block that is not the index's."""
    content, other = bytes(HEADER_SIZE_BYTES), b"\1" * HEADER_SIZE_BYTES
    digest = hashlib.sha256(content).digest()
    folder = SimpleNamespace(url="s3://bucket/data", read=lambda *_: digest, read_range=lambda *_: other)
    reader = BlockReader(cast("Any", folder), lambda _: None)
    try:
        return len(reader.read_block(RemoteShard("train_000000.bin", 0, hashlib.sha256(digest).hexdigest()), 0))
    except RemoteError:
        return "refused"


class _Waiting:
    """A corpus behind a server that has not answered for a while."""

    def __init__(self, waited_s: float) -> None:
        self._waited_s = waited_s

    def waited_s(self) -> float:
        return self._waited_s

    expect = microbatch = window = microbatch_once_there = window_once_there = waited_s


def source_that_waits_for_its_data() -> object:
    """Whether its heartbeat says that it is late, once it has waited for long, and before."""

    async def story(alone: Alone) -> list[bool]:
        found = []
        for silences in (1, SILENCES):
            tokens = _Waiting(silences * alone.context.timing.silence_s)
            alone.context.ports = dataclasses.replace(alone.context.ports, tokens=cast("Any", tokens))
            answer = (await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))).message
            assert isinstance(answer, HeartbeatAnswer)
            found.append(answer.lateness > 1)
        return found

    return play(story)

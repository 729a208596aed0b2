"""Token shards that are read by ranges from where they lie: block by block, each block checked
against its hash, with a bounded cache that reads ahead.

A block is 64 KiB of a shard. The index of a dataset names for each shard the hash of a small file
that lists the hashes of its blocks; the dataset's own hash covers it. So no token is used that the
run has not agreed on, whatever a server sends, and nobody needs a whole shard for it.

A server that does not answer, or answers wrongly, is asked again for as long as it takes; who waits
says so once.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from swarmfree.protocol.errors import DataError
from swarmfree.storage.daemon_pool import DaemonPool
from swarmfree.storage.remote_folder import RemoteError, RemoteFolder
from swarmfree.storage.token_shards import (
    BLOCK_SIZE_BYTES,
    DIGEST_SIZE_BYTES,
    HEADER_SIZE_BYTES,
    SYMBOLS_MAX,
    TOKEN_SIZE_BYTES,
    blocks_file,
)

CACHE_BYTES = 64 << 20
BLOCKS_MIN = 8
READERS = 4
AHEAD_SHARE = 2
"""Of the cache, one part in so many is for what is read ahead."""
_WAITS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_HASHES_KEPT = 64


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """One shard of a dataset behind a URL.

    Args:
        file: its name.
        tokens: how many.
        blocks_sha256: of the file that lists the hashes of its blocks, hex.
        symbols: of its tokenizer; each token is below.
    """

    file: str
    tokens: int
    blocks_sha256: str
    symbols: int = SYMBOLS_MAX

    @property
    def size_bytes(self) -> int:
        """Of the whole file."""
        return HEADER_SIZE_BYTES + TOKEN_SIZE_BYTES * self.tokens


def is_block(content: bytes, digest: bytes) -> bool:
    """Whether this is the block of which the index knows the SHA-256."""
    return hashlib.sha256(content).digest() == digest


class DamagedShard(RemoteError):
    """What a server sent is not what the dataset's index says."""


class BlockReader:
    """Blocks of shards, from a cache or from where they lie; any thread may ask.

    Args:
        folder: where they lie.
        say: told in one line that it waits for the server, and when it is there again.
        cache_bytes: of blocks, at most so much is kept in memory.
        clock: monotonic seconds.
        pause: waits so many seconds, less where `close` is called; True where it was.
    """

    def __init__(
        self,
        folder: RemoteFolder,
        say: Callable[[str], object],
        cache_bytes: int = CACHE_BYTES,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        """Nothing read yet."""
        self.folder, self._say, self._clock = folder, say, clock
        self._closed = threading.Event()
        self._pause = pause or self._closed.wait
        self._room = max(1, cache_bytes // BLOCK_SIZE_BYTES)
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._hashes: OrderedDict[str, bytes] = OrderedDict()
        self._under_way: dict[tuple[str, int], Future[bytes]] = {}
        self._since_s: dict[tuple[str, int], float] = {}
        self._failing: dict[tuple[str, int], float] = {}
        self._damaged: set[str] = set()
        self._pool = DaemonPool(READERS, "swarmfree-shards")
        self.fetched_blocks = 0

    def share_with(self, readers: int) -> None:
        """Leave the others of so many readers their part of memory and threads; before the first
        block is read.
        """
        self._room = max(BLOCKS_MIN, self._room // readers)
        self._pool = DaemonPool(max(1, READERS // readers), "swarmfree-shards")

    def block(self, shard: RemoteShard, number: int) -> bytes:
        """One block, as long as it takes.

        Raises:
            DataError: `close` was called.
        """
        key = shard.file, number
        with self._lock:
            if (found := self._blocks.get(key)) is not None:
                self._blocks.move_to_end(key)
                return found
            future = self._ask(shard, number)
        return future.result()

    def expect(self, blocks: Iterable[tuple[RemoteShard, int]]) -> None:
        """Read these ahead, the first ones first, as many as there is room for: what comes later is
        to be named again.
        """
        with self._lock:
            for shard, number in itertools.islice(blocks, max(1, self._room // AHEAD_SHARE)):
                if (shard.file, number) not in self._blocks:
                    self._ask(shard, number)

    def waited_s(self) -> float:
        """For how long the oldest read under way has waited; 0 where none waits."""
        with self._lock:
            return self._clock() - min(self._since_s.values()) if self._since_s else 0.0

    def close(self) -> None:
        """Whoever waits is told that it is over, at the latest when the request under way is."""
        self._closed.set()
        self._pool.close()

    def _ask(self, shard: RemoteShard, number: int) -> Future[bytes]:
        """Under the lock: the read that is under way, or a new one."""
        key = shard.file, number
        future = self._under_way.get(key)
        if future is None:
            if self._closed.is_set():
                raise DataError(f"{self.folder.url}: is read no more")
            future = self._under_way[key] = self._pool.submit(partial(self._fetched, shard, number))
        return future

    def _fetched(self, shard: RemoteShard, number: int) -> bytes:
        key = shard.file, number
        with self._lock:
            self._since_s[key] = self._clock()
        try:
            content = self._patiently(shard, number)
        except BaseException:
            with self._lock:
                del self._since_s[key], self._under_way[key]
            raise
        with self._lock:
            del self._since_s[key], self._under_way[key]
            self._blocks[key] = content
            while len(self._blocks) > self._room:
                self._blocks.popitem(last=False)
        return content

    def _patiently(self, shard: RemoteShard, number: int) -> bytes:
        """Ask again and again; one line once reads fail, and one once all are there again."""
        key, tries = (shard.file, number), 0
        while True:
            try:
                content = self.read_block(shard, number)
            except RemoteError as error:
                self._note_failure(key, error)
                if self._pause(_WAITS_S[min(tries, len(_WAITS_S) - 1)]) or self._closed.is_set():
                    raise DataError(f"{self.folder.url}: is read no more") from error
                tries += 1
            else:
                self._note_success(key)
                return content

    def _note_failure(self, key: tuple[str, int], error: RemoteError) -> None:
        with self._lock:
            is_first = not self._failing
            self._failing.setdefault(key, self._clock())
            is_damage = isinstance(error, DamagedShard) and key[0] not in self._damaged
            if is_damage:
                self._damaged.add(key[0])
        if is_first or is_damage:
            self._say(f"{error}; training waits for it, or another source feeds, and it is asked again")

    def _note_success(self, key: tuple[str, int]) -> None:
        with self._lock:
            since_s = self._failing.pop(key, None)
            is_over = since_s is not None and not self._failing
            if is_over:
                self._damaged.clear()
        if since_s is not None and is_over:
            self._say(f"{self.folder.url}: answers again, after {self._clock() - since_s:.0f} s")

    def read_block(self, shard: RemoteShard, number: int) -> bytes:
        """One block, asked for once, and checked.

        Raises:
            RemoteError: it cannot be read, or is not what the index says.
        """
        start = number * BLOCK_SIZE_BYTES
        length = min(BLOCK_SIZE_BYTES, shard.size_bytes - start)
        expected = self._hashes_of(shard)[number * DIGEST_SIZE_BYTES : (number + 1) * DIGEST_SIZE_BYTES]
        content = self.folder.read_range(shard.file, start, length)
        with self._lock:
            self.fetched_blocks += 1
        if not is_block(content, expected):
            raise DamagedShard(
                f"{self.folder.url}/{shard.file}: bytes {start:,} to {start + length:,} have SHA-256 {hashlib.sha256(content).hexdigest()[:12]}, "
                f"{expected.hex()[:12]} expected: the shard is damaged or another one, and is not used"
            )
        # A model has no row for such a token, and would fail at it for ever
        largest = int(np.frombuffer(content, "<u2", offset=0 if number else HEADER_SIZE_BYTES).max(initial=0))
        if largest >= shard.symbols:
            raise DamagedShard(
                f"{self.folder.url}/{shard.file}: has the token {largest}, but its tokenizer has {shard.symbols} symbols: it is not used"
            )
        return content

    def _hashes_of(self, shard: RemoteShard) -> bytes:
        with self._lock:
            if (kept := self._hashes.get(shard.file)) is not None:
                self._hashes.move_to_end(shard.file)
                return kept
        expected = -(-shard.size_bytes // BLOCK_SIZE_BYTES) * DIGEST_SIZE_BYTES
        file = blocks_file(shard.file)
        content = self.folder.read(file, expected)
        found = hashlib.sha256(content).hexdigest()
        if found != shard.blocks_sha256 or len(content) != expected:
            raise DamagedShard(
                f"{self.folder.url}/{file}: SHA-256 {found[:12]}, but the index says {shard.blocks_sha256[:12]}: not the hashes of this shard"
            )
        with self._lock:
            self._hashes[shard.file] = content
            while len(self._hashes) > _HASHES_KEPT:
                self._hashes.popitem(last=False)
        return content


def check_shard(reader: BlockReader, shard: RemoteShard, sha256: str) -> None:
    """Read a shard once, each block asked for once.

    Raises:
        RemoteError: it cannot be read, a block is another one, or all of it is not what the index
            says.
    """
    digest = hashlib.sha256()
    for number in range(-(-shard.size_bytes // BLOCK_SIZE_BYTES)):
        digest.update(reader.read_block(shard, number))
    if digest.hexdigest() != sha256:
        raise DamagedShard(
            f"{reader.folder.url}/{shard.file}: SHA-256 {digest.hexdigest()[:12]}, but the index says {sha256[:12]}: the shard is damaged"
        )


class RemotePiece:
    """The tokens of one shard, as `TokenText` reads them: a slice waits until they are there."""

    def __init__(self, reader: BlockReader, shard: RemoteShard) -> None:
        """Nothing read yet."""
        self._reader, self._shard = reader, shard

    def __len__(self) -> int:
        """Tokens in all."""
        return self._shard.tokens

    def __getitem__(self, place: slice) -> NDArray[np.uint16]:
        """Tokens from one place to another."""
        begin, end = self._bytes(place)
        if begin >= end:
            return np.empty(0, "<u2")
        numbers = range(begin // BLOCK_SIZE_BYTES, -(-end // BLOCK_SIZE_BYTES))
        if len(numbers) > 1:
            self._reader.expect((self._shard, number) for number in numbers)
        content = b"".join(self._reader.block(self._shard, number) for number in numbers)
        first = begin - numbers[0] * BLOCK_SIZE_BYTES
        return np.frombuffer(content, "<u2", (end - begin) // TOKEN_SIZE_BYTES, first)

    def blocks(self, place: slice) -> list[tuple[BlockReader, RemoteShard, int]]:
        """Which blocks such a slice needs, and who reads them."""
        begin, end = self._bytes(place)
        return [(self._reader, self._shard, number) for number in range(begin // BLOCK_SIZE_BYTES, -(-end // BLOCK_SIZE_BYTES))]

    def _bytes(self, place: slice) -> tuple[int, int]:
        start, stop, _ = place.indices(self._shard.tokens)
        return HEADER_SIZE_BYTES + TOKEN_SIZE_BYTES * start, HEADER_SIZE_BYTES + TOKEN_SIZE_BYTES * stop

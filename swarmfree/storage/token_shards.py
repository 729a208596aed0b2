"""Token shards on disk, in the form that llm.c and modded-nanogpt read: a header of 256 int32, then
the tokens as uint16, all little endian.

The header holds a magic number, the version and how many tokens follow. Only headers are read and
made here, without numpy, so that a wrong folder is refused at once; `storage.token_text` maps the
tokens.

Source: karpathy/llm.c, dev/data/data_common.py, `write_datafile`.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from swarmfree.protocol.errors import DataError

HEADER_SIZE_BYTES = 256 * 4
TOKEN_SIZE_BYTES = 2
SYMBOLS_MAX = 1 << 16
BLOCK_SIZE_BYTES = 1 << 16
"""Of a shard, what has a hash of its own, so that it can be read and checked alone."""
DIGEST_SIZE_BYTES = 32
_MAGIC, _VERSION = 20240520, 1


def shard_header(tokens: int) -> bytes:
    """The header of a shard with so many tokens."""
    return struct.pack("<3i", _MAGIC, _VERSION, tokens).ljust(HEADER_SIZE_BYTES, b"\0")


def blocks_file(shard: str) -> str:
    """Name of the file beside a shard that has the SHA-256 of each of its blocks, one after the
    other.
    """
    return f"{shard.removesuffix('.bin')}.blocks"


class BlockHashes:
    """SHA-256 of each block of a file that comes in pieces, none of which ends inside a block but
    the last.
    """

    def __init__(self) -> None:
        """Nothing has come."""
        self.content = bytearray()
        self._is_over = False

    def update(self, piece: bytes) -> None:
        """Take the next piece."""
        assert not self._is_over, "the piece before ended inside a block"
        for start in range(0, len(piece), BLOCK_SIZE_BYTES):
            self.content += hashlib.sha256(piece[start : start + BLOCK_SIZE_BYTES]).digest()
        self._is_over = len(piece) % BLOCK_SIZE_BYTES != 0


def has_shard_magic(path: Path) -> bool:
    """Whether a file begins as a shard does; False where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == struct.pack("<i", _MAGIC)
    except OSError:
        return False


def shard_tokens(path: Path) -> int:
    """How many tokens a shard holds, by its header; its size is checked against that.

    Raises:
        DataError: it is missing, unreadable, no shard, or its size is another one.
    """
    try:
        with path.open("rb") as stream:
            header = stream.read(HEADER_SIZE_BYTES)
        size_bytes = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if len(header) < HEADER_SIZE_BYTES:
        raise DataError(f"{path}: {len(header)} bytes; a token shard begins with a header of {HEADER_SIZE_BYTES}")
    magic, version, tokens = struct.unpack_from("<3i", header)
    if (magic, version) != (_MAGIC, _VERSION):
        raise DataError(
            f"{path}: magic {magic}, version {version}; a token shard has magic {_MAGIC}, version {_VERSION} (uint16 tokens)"
        )
    expected = HEADER_SIZE_BYTES + TOKEN_SIZE_BYTES * tokens
    if tokens < 0 or size_bytes != expected:
        what = "truncated" if size_bytes < expected else "too long"
        raise DataError(f"{path}: {what}: {size_bytes:,} bytes, but its header says {tokens:,} tokens, {expected:,} bytes")
    return int(tokens)

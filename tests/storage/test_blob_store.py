"""The shelf: blobs on this peer's disk, gone when the peer is."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.storage.blob_store import FolderShelf


async def test_a_blob_is_read_whole_or_in_pieces(tmp_path: Path) -> None:
    """Put, read from anywhere, drop."""
    shelf = FolderShelf(tmp_path / "kept")
    assert await shelf.put("activations-3-ab", b"0123456789")
    assert await shelf.get("activations-3-ab") == b"0123456789"
    assert await shelf.get("activations-3-ab", 4, 3) == b"456"
    assert await shelf.get("activations-3-ab", 8, 3) is None, "shorter than what was asked for"
    assert await shelf.get("activations-4-ab") is None
    for again in (b"abc", b"0123456789abc", b""):
        assert await shelf.put("activations-3-ab", again)
        assert await shelf.get("activations-3-ab") == again
    shelf.drop("activations-3-ab")
    shelf.drop("never-there")
    assert await shelf.get("activations-3-ab") is None
    shelf.close()
    assert not (tmp_path / "kept").exists()


async def test_nothing_of_an_earlier_life_is_left(tmp_path: Path) -> None:
    """A peer that was killed leaves its blobs; the next one begins without them, and leaves other
    files alone.
    """
    first = FolderShelf(tmp_path)
    await first.put("a", b"1")
    (tmp_path / "notes.txt").write_text("mine")
    second = FolderShelf(tmp_path)
    assert await second.get("a") is None
    first.close()
    second.close()
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


async def test_a_disk_that_refuses_is_no_error(tmp_path: Path) -> None:
    """The blob is not kept, and the caller is told so."""
    shelf = FolderShelf(tmp_path / "kept")
    (tmp_path / "kept").rmdir()
    assert not await shelf.put("a", b"1")
    shelf.close()


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "kept").write_text("")
    with pytest.raises(SwarmfreeError, match="making the folder failed"):
        FolderShelf(tmp_path / "kept")

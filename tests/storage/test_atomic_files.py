"""What a person is told of a disk that refuses."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.storage.atomic_files import place_whole, refusal_words, told_in_one_line

FULL = os.strerror(errno.ENOSPC)


def _refuse(_: Path) -> None:
    raise OSError(errno.ENOSPC, FULL)


def _has_free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> list[Path]:
    """Say that so much is free; where it was asked for."""
    asked: list[Path] = []

    def usage(folder: Path) -> object:
        asked.append(folder)
        return shutil._ntuple_diskusage(1 << 40, 0, free_bytes)  # type: ignore[attr-defined]

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return asked


def test_a_full_disk_says_how_much_is_free_and_how_much_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, or in the folder that is there of those in which the file is to lie; of an unknown
    size only what is free.
    """
    asked = _has_free(monkeypatch, 45_678)
    place = tmp_path / "file"
    with pytest.raises(SwarmfreeError) as caught:
        place_whole(place, _refuse, 12_300_000)
    assert str(caught.value) == f"{place}: writing failed: {FULL}: 46 kB are free there, and about 12.3 MB are wanted"
    with pytest.raises(SwarmfreeError) as caught, told_in_one_line(tmp_path / "a" / "b", "keeping it"):
        _refuse(place)
    assert str(caught.value) == f"{tmp_path / 'a' / 'b'}: keeping it failed: {FULL}: 46 kB are free in {tmp_path}"
    assert asked == [tmp_path, tmp_path]


def test_another_refusal_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free says nothing of a quota or of a right that is missing."""
    asked = _has_free(monkeypatch, 0)
    for number in (errno.EDQUOT, errno.EACCES, errno.EFBIG):
        assert refusal_words(OSError(number, os.strerror(number)), tmp_path, 7) == os.strerror(number)
    assert not asked

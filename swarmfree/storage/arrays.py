"""Named arrays in one file, written whole or not at all: what an experiment that goes on later has
to keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from swarmfree.storage.atomic_files import place_whole, told_in_one_line


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write them.

    Raises:
        SwarmfreeError: the disk is full or gone; an older file of this name is still there.
    """
    place_whole(path, lambda partial: save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, partial))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read what `write_arrays` wrote.

    Raises:
        SwarmfreeError: the file is not there.
    """
    with told_in_one_line(path, "reading arrays"):
        found: dict[str, NDArray[Any]] = load_file(path)
    return found

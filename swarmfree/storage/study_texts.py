"""The texts that the study tries finished models on, as in the paper's Table 3: parts of what was
held out, and a text of another kind.
"""

from __future__ import annotations

import numpy as np

from swarmfree.protocol.manifest import Manifest
from swarmfree.storage.corpus import Corpus

PARTS = 3
OTHER = "another text"


def texts_of(corpus: Corpus, other: Corpus, manifest: Manifest) -> dict[str, list[bytes]]:
    """Name of a text -> windows of it, as many as the run evaluates on, spread evenly.

    Args:
        corpus: whose held-out text is cut into equal parts, in the order of its files.
        other: of which nothing was learned; where it is the same corpus it counts once.
    """
    held_out = np.memmap(corpus.held_out_file, np.uint8, mode="r")
    parts = {f"held out, part {number + 1}": part for number, part in enumerate(np.array_split(held_out, PARTS))}
    if other.corpus_hash != corpus.corpus_hash:
        parts[OTHER] = np.memmap(other.held_out_file, np.uint8, mode="r")
    length, rows, windows = manifest.model.tokens_per_row + 1, manifest.batch.rows, manifest.run.evaluate_windows
    found = {}
    for name, part in parts.items():
        starts = np.linspace(0, max(0, len(part) - length), windows * rows).astype(int)
        gathered = [
            np.stack([part[start : start + length] for start in starts[at : at + rows]]) for at in range(0, len(starts), rows)
        ]
        found[name] = [window.astype("<i4").tobytes() for window in gathered]
    return found

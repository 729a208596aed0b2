"""The texts that the study tries finished models on, as in the paper's Table 3: parts of what was
held out, and a text of another kind.
"""

from __future__ import annotations

import numpy as np

from swarmfree.protocol.manifest import DataSection, Manifest
from swarmfree.storage.corpus import Corpus
from swarmfree.storage.tokens import held_out_text

PARTS = 3
OTHER = "another text"


def _symbols(corpus: Corpus) -> tuple[str, int]:
    """What says whether two corpora have the same tokens."""
    section = corpus.section(DataSection())
    return section.tokenizer_hash, section.vocabulary


def texts_of(corpus: Corpus, other: Corpus, manifest: Manifest) -> dict[str, list[bytes]]:
    """Name of a text -> windows of it, as many as the run evaluates on, spread evenly.

    Args:
        corpus: whose held-out text is cut into equal parts, in the order of its files.
        other: of which nothing was learned; where it is the same corpus it counts once, and where
            its tokens are those of another tokenizer it does not count.
    """
    held_out = held_out_text(corpus)
    cuts = [-(-len(held_out) * number // PARTS) for number in range(PARTS + 1)]
    parts = {f"held out, part {at + 1}": (held_out, cuts[at], cuts[at + 1]) for at in range(PARTS)}
    if other.corpus_hash != corpus.corpus_hash and _symbols(other) == _symbols(corpus):
        parts[OTHER] = (held_out_text(other), 0, other.held_out_tokens)
    length, rows, windows = manifest.model.tokens_per_row + 1, manifest.batch.rows, manifest.run.evaluate_windows
    found = {}
    for name, (text, begin, end) in parts.items():
        starts = begin + np.linspace(0, max(0, end - begin - length), windows * rows).astype(int)
        found[name] = [
            np.stack([text.read(int(start), min(length, end - begin)) for start in starts[at : at + rows]]).tobytes()
            for at in range(0, len(starts), rows)
        ]
    return found

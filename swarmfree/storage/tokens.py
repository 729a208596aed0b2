"""The tokens port over a prepared corpus: memory-mapped, so that a source keeps no text in memory
of its own.

Which sequence comes when is decided elsewhere (`policy.data_order`) and comes in as a function;
here it is only read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from swarmfree.protocol.errors import DataError
from swarmfree.protocol.manifest import Manifest
from swarmfree.storage.corpus import Corpus, require_vocabulary
from swarmfree.storage.token_text import TokenText


def require_enough(corpus: Corpus, manifest: Manifest) -> None:
    """Check that a corpus suits a run: every sequence of one iteration is another one, there is a
    held-out row, the vocabulary has its tokens.

    Raises:
        DataError: one line with what was expected and found.
    """
    length, needed = manifest.model.tokens_per_row, manifest.tokens_per_iteration + 1
    if corpus.train_tokens < needed:
        raise DataError(
            f"{corpus.name}: too short: {corpus.train_tokens:,} tokens to train on; one iteration of {manifest.batch.microbatches} microbatches "
            f"of {manifest.batch.rows} rows of {length} tokens needs {needed:,}"
        )
    if corpus.held_out_tokens < length + 1:
        raise DataError(
            f"{corpus.name}: too short: {corpus.held_out_tokens:,} tokens held out (data.held_out_percent = {manifest.data.held_out_percent}); "
            f"one row of {length} tokens needs {length + 1:,}"
        )
    if corpus.dataset is not None:
        require_vocabulary(corpus.name, corpus.token_max + 1, manifest.model.vocabulary)
    if corpus.token_max >= manifest.model.vocabulary:
        raise DataError(
            f"{corpus.name}: has the byte {corpus.token_max}; model.vocabulary = {manifest.model.vocabulary} must be at least {corpus.token_max + 1}"
        )


def train_text(corpus: Corpus) -> TokenText:
    """Training tokens, mapped."""
    if corpus.dataset is None:
        return TokenText.of_bytes(corpus.train_file)
    return TokenText.of_shards(corpus.dataset.paths(corpus.dataset.train))


def held_out_text(corpus: Corpus) -> TokenText:
    """Held-out tokens, mapped."""
    if corpus.dataset is None:
        return TokenText.of_bytes(corpus.held_out_file)
    return TokenText.of_shards(corpus.dataset.paths(corpus.dataset.held_out))


class CorpusTokens:
    """Implements `ports.Tokens`. Shapes: B rows, T tokens per row; sequence i is tokens i*T to i*T
    + T of the training text, both included.
    """

    def __init__(self, corpus: Corpus, manifest: Manifest, sequence_of: Callable[[int], int]) -> None:
        """Map the token files.

        Args:
            corpus: prepared on this machine.
            manifest: of the run; says the shapes, and the hash of the corpus that was meant.
            sequence_of: position in the run, from 0, to the index of a sequence.

        Raises:
            DataError: the corpus is not the run's, or does not suit it.
        """
        expected = manifest.data.corpus_hash
        if corpus.corpus_hash != expected:
            raise DataError(
                f"{corpus.name}: hash {corpus.corpus_hash[:12]}, but the run learns from {manifest.data.name} with hash {expected[:12]}: "
                "this peer cannot be a source and may serve the body"
            )
        require_enough(corpus, manifest)
        self._rows = manifest.batch.rows
        self._length = manifest.model.tokens_per_row + 1
        self._window_rows = manifest.run.evaluate_windows * self._rows
        self._sequence_of = sequence_of
        # Now, since a dataset may be moved away before the weights are written
        self.tokenizer = corpus.tokenizer_file.read_bytes() if corpus.tokenizer_file is not None else b""
        self._train, self._held_out = train_text(corpus), held_out_text(corpus)

    def microbatch(self, number: int, place: int | None = None) -> bytes:
        """Tokens of training microbatch `number`: int32 little endian, shape (B, T + 1)."""
        first = (number if place is None else place) * self._rows
        starts = [self._sequence_of(first + row) * (self._length - 1) for row in range(self._rows)]
        return self._gather(self._train, starts)

    def window(self, number: int) -> bytes:
        """Tokens of held-out window `number`, same shape; all rows of all windows are spread evenly
        over the held-out text.
        """
        free = len(self._held_out) - self._length
        between = max(1, self._window_rows - 1)
        starts = [(number * self._rows + row) % self._window_rows * free // between for row in range(self._rows)]
        return self._gather(self._held_out, starts)

    def _gather(self, text: TokenText, starts: list[int]) -> bytes:
        return np.stack([text.read(start, self._length) for start in starts]).tobytes()

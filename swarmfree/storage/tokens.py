"""The tokens port over a prepared corpus: memory-mapped, or read by ranges from where it lies, so
that a source keeps no text in memory of its own.

Which sequence comes when is decided elsewhere (`policy.data_order`) and comes in as a function;
here it is only read.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from swarmfree.protocol.errors import DataError
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.mixture import drawn_weights, epoch_shares, mixture_parts, sequence_count
from swarmfree.storage.corpus import Corpus, require_vocabulary
from swarmfree.storage.daemon_pool import DaemonPool
from swarmfree.storage.dataset import Dataset, TokenShard, TokenSplit
from swarmfree.storage.remote_shards import READERS, RemotePiece, RemoteShard
from swarmfree.storage.token_text import TokenText

AHEAD_MICROBATCHES = 16
"""Of a share, the blocks of so many are read ahead, as far as there is room."""


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
    if corpus.mixture is not None:
        _require_drawable(corpus, manifest)
    if corpus.dataset is not None:
        require_vocabulary(corpus.name, corpus.token_max + 1, manifest.model.vocabulary)
    if corpus.token_max >= manifest.model.vocabulary:
        raise DataError(
            f"{corpus.name}: has the byte {corpus.token_max}; model.vocabulary = {manifest.model.vocabulary} must be at least {corpus.token_max + 1}"
        )


def _require_drawable(corpus: Corpus, manifest: Manifest) -> None:
    """An epoch has sequences of each dataset, and enough for an iteration; what is looked at on
    held-out text is there.
    """
    length, datasets = manifest.model.tokens_per_row, corpus.datasets
    counts = [sequence_count(dataset.train.tokens, length) for dataset in datasets]
    shares = epoch_shares(counts, drawn_weights(corpus.parts, counts))
    needed = manifest.batch.microbatches * manifest.batch.rows
    for dataset, count in zip(datasets, counts, strict=True):
        if not count:
            raise DataError(
                f"{corpus.name}: {dataset.place} has {dataset.train.tokens:,} tokens; one row of {length} needs {length + 1:,}"
            )
    for dataset, share in zip(datasets, shares, strict=True):
        if not share:
            raise DataError(
                f"{corpus.name}: {dataset.place} has so small a weight that an epoch of {sum(shares):,} sequences has none of it; "
                "give it a larger one, or leave it out"
            )
    if sum(shares) < needed:
        raise DataError(
            f"{corpus.name}: an epoch of the mixture is {sum(shares):,} sequences ({', '.join(map(str, shares))}); one iteration of "
            f"{manifest.batch.microbatches} microbatches of {manifest.batch.rows} rows needs {needed:,}: give other weights, or more text"
        )
    ends = _row_ends(manifest.run.evaluate_windows * manifest.batch.rows, corpus.proportions)
    for dataset, begin, end in zip(datasets, [0, *ends], ends, strict=False):
        if begin < end and dataset.held_out.tokens < length + 1:
            raise DataError(
                f"{corpus.name}: {dataset.place} has {dataset.held_out.tokens:,} tokens held out; one row of {length} needs {length + 1:,}"
            )


def _why_another(corpus: Corpus, manifest: Manifest) -> str:
    """In which datasets a mixture here and that of the run differ; empty where either is none."""
    own, wanted = ({part.dataset: part for part in parts} for parts in (corpus.parts, mixture_parts(manifest.data.mixture)))
    if not own or not wanted:
        return ""
    names = {part.dataset: dataset.place for part, dataset in zip(corpus.parts, corpus.datasets, strict=True)}
    strange = [f"{names[key]} ({key[:12]}) is not in the run's" for key in own if key not in wanted]
    missing = [f"{key[:12]} of {part.train_tokens:,} tokens is not here" for key, part in wanted.items() if key not in own]
    other = [
        f"{names[key]} has the weight {part.weight:g}, in the run {wanted[key].weight:g}"
        for key, part in own.items()
        if key in wanted and wanted[key].weight != part.weight
    ]
    found = [*strange, *missing, *other]
    return f" ({'; '.join(found[:3])}{f'; and {len(found) - 3} more' if len(found) > 3 else ''})" if found else ""


def train_texts(corpus: Corpus) -> list[TokenText]:
    """Training tokens of each dataset of a corpus, or of its one text."""
    if not corpus.datasets:
        return [TokenText.of_bytes(corpus.train_file)]
    return [half_of(dataset, dataset.train) for dataset in corpus.datasets]


def held_out_texts(corpus: Corpus) -> list[TokenText]:
    """Held-out tokens, as `train_texts`."""
    if not corpus.datasets:
        return [TokenText.of_bytes(corpus.held_out_file)]
    return [half_of(dataset, dataset.held_out) for dataset in corpus.datasets]


def held_out_text(corpus: Corpus) -> TokenText:
    """Held-out tokens of all datasets, one after the other."""
    return TokenText.joined(held_out_texts(corpus))


def half_of(dataset: Dataset, half: TokenSplit) -> TokenText:
    """The tokens of one half of a dataset, wherever it lies."""
    if dataset.reader is None:
        return TokenText.of_shards(dataset.paths(half))
    return TokenText([RemotePiece(dataset.reader, remote_shard(dataset, shard)) for shard in half.shards])


def remote_shard(dataset: Dataset, shard: TokenShard) -> RemoteShard:
    """One shard of a dataset behind a URL."""
    return RemoteShard(shard.file, shard.tokens, shard.blocks_sha256, dataset.vocabulary)


class CorpusTokens:
    """Implements `ports.Tokens`. Shapes: B rows, T tokens per row; sequence i is tokens i*T to i*T
    + T of the training text, both included. Those of several datasets are counted one dataset after
    the other.
    """

    def __init__(self, corpus: Corpus, manifest: Manifest, sequence_of: Callable[[int], int]) -> None:
        """Map the token files that lie here.

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
                f"{corpus.name}: hash {corpus.corpus_hash[:12]}, but the run learns from {manifest.data.name} with hash {expected[:12]}"
                f"{_why_another(corpus, manifest)}: this peer cannot be a source and may serve the body"
            )
        require_enough(corpus, manifest)
        self._rows = manifest.batch.rows
        self._length = manifest.model.tokens_per_row + 1
        self._window_rows = manifest.run.evaluate_windows * self._rows
        self._sequence_of = sequence_of
        # Now, since a dataset may be moved away before the weights are written
        self.tokenizer = corpus.tokenizer_file.read_bytes() if corpus.tokenizer_file is not None else b""
        self._train, self._held_out = train_texts(corpus), held_out_texts(corpus)
        # Where the sequences of each dataset end, counted over all, and the rows of all windows
        counts = (sequence_count(len(text), self._length - 1) for text in self._train)
        self._ends = list(itertools.accumulate(counts))
        self._row_ends = _row_ends(self._window_rows, corpus.proportions)

    def microbatch(self, number: int, place: int | None = None) -> bytes:
        """Tokens of training microbatch `number`: int32 little endian, shape (B, T + 1)."""
        return self._gather(self.microbatch_places(number if place is None else place))

    def window(self, number: int) -> bytes:
        """Tokens of held-out window `number`, same shape; the rows of all windows are dealt to the
        datasets by their weights, and those of each are spread evenly over its held-out text.
        """
        return self._gather(self.window_places(number))

    def microbatch_places(self, place: int) -> list[tuple[TokenText, int]]:
        """Text and first token of each row of a microbatch of the run's data."""
        found = []
        for row in range(self._rows):
            sequence = self._sequence_of(place * self._rows + row)
            number = bisect.bisect_right(self._ends, sequence)
            before = self._ends[number - 1] if number else 0
            found.append((self._train[number], (sequence - before) * (self._length - 1)))
        return found

    def window_places(self, number: int) -> list[tuple[TokenText, int]]:
        """Text and first token of each row of a held-out window."""
        found = []
        for row in range(number * self._rows, (number + 1) * self._rows):
            index = row % self._window_rows
            which = bisect.bisect_right(self._row_ends, index)
            begin, end = self._row_ends[which - 1] if which else 0, self._row_ends[which]
            free = len(self._held_out[which]) - self._length
            found.append((self._held_out[which], (index - begin) * free // max(1, end - begin - 1)))
        return found

    def _gather(self, places: list[tuple[TokenText, int]]) -> bytes:
        return np.stack([text.read(start, self._length) for text, start in places]).tobytes()


class RemoteTokens(CorpusTokens):
    """Implements `ports.WaitingTokens`: some shards lie behind a URL, and what is read there is
    waited for on threads of its own.
    """

    def __init__(self, corpus: Corpus, manifest: Manifest, sequence_of: Callable[[int], int]) -> None:
        """As `CorpusTokens`; no token is read yet."""
        super().__init__(corpus, manifest, sequence_of)
        self._readers = [dataset.reader for dataset in corpus.datasets if dataset.reader is not None]
        self._pool = DaemonPool(READERS, "swarmfree-tokens")
        self._ahead: list[int] = []

    def expect(self, places: Sequence[int]) -> None:
        """Read ahead what these microbatches of the run's data hold, in this order, as far as there
        is room.
        """
        self._ahead = list(places)
        self._read_ahead()

    async def microbatch_once_there(self, number: int, place: int | None = None) -> bytes:
        """As `microbatch`, as long as it takes."""
        where = number if place is None else place
        if where in self._ahead:
            del self._ahead[: self._ahead.index(where) + 1]
        found = await asyncio.wrap_future(self._pool.submit(partial(self.microbatch, number, place)))
        self._read_ahead()
        return found

    async def window_once_there(self, number: int) -> bytes:
        """As `window`, as long as it takes."""
        return await asyncio.wrap_future(self._pool.submit(partial(self.window, number)))

    def waited_s(self) -> float:
        """For how long the oldest read under way has waited; 0 where none waits."""
        return max(reader.waited_s() for reader in self._readers)

    def _read_ahead(self) -> None:
        # Of each server as much as it has room for; the pool, since drawing places takes a while
        places = self._ahead[:AHEAD_MICROBATCHES]
        if places:
            self._pool.submit(partial(self._expect, places))

    def _expect(self, places: list[int]) -> None:
        blocks = [
            block
            for place in places
            for text, start in self.microbatch_places(place)
            for block in text.remote_blocks(start, self._length)
        ]
        for reader in self._readers:
            reader.expect((shard, number) for owner, shard, number in blocks if owner is reader)


def tokens_of(corpus: Corpus, manifest: Manifest, sequence_of: Callable[[int], int]) -> CorpusTokens:
    """What a source of a run reads; see `CorpusTokens`.

    Raises:
        DataError: the corpus is not the run's, or does not suit it.
    """
    is_remote = any(dataset.reader is not None for dataset in corpus.datasets)
    return (RemoteTokens if is_remote else CorpusTokens)(corpus, manifest, sequence_of)


def _row_ends(rows: int, proportions: Sequence[float]) -> list[int]:
    """Where the rows of each dataset end, of so many that are dealt by proportion."""
    ends = [round(rows * part) for part in itertools.accumulate(proportions)]
    ends[-1] = rows
    return ends

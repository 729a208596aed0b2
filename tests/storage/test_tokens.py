"""The tokens port: shapes, shifts, order and the held-out windows."""

from __future__ import annotations

import dataclasses
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from swarmfree.policy.data_order import SequenceOrder
from swarmfree.protocol.errors import DataError
from swarmfree.protocol.manifest import BatchSection, Manifest
from swarmfree.protocol.mixture import sequence_count
from swarmfree.protocol.ports import Tokens
from swarmfree.storage.corpus import Corpus, prepare_corpus
from swarmfree.storage.token_shards import shard_header
from swarmfree.storage.token_text import TokenText
from swarmfree.storage.tokens import CorpusTokens, require_enough

TEXT = bytes(range(256)) * 8


def corpus_of(tmp_path: Path, text: bytes = TEXT) -> Corpus:
    """A corpus of one file, the last tenth held out."""
    (tmp_path / "text").write_bytes(text)
    return prepare_corpus(str(tmp_path / "text"), tmp_path / "cache", 10)


def for_corpus(manifest: Manifest, corpus: Corpus) -> Manifest:
    """The manifest that `bootstrap` would make of this corpus."""
    data = dataclasses.replace(
        manifest.data, corpus_hash=corpus.corpus_hash, train_tokens=corpus.train_tokens, held_out_tokens=corpus.held_out_tokens
    )
    return dataclasses.replace(manifest, data=data)


def rows_of(content: bytes, manifest: Manifest) -> npt.NDArray[np.int32]:
    """The (B, T + 1) array that travels as bytes."""
    return np.frombuffer(content, "<i4").reshape(manifest.batch.rows, manifest.model.tokens_per_row + 1)


def test_rows_are_stretches_of_the_text(tmp_path: Path, small_manifest: Manifest) -> None:
    """Each row is T + 1 tokens in a row of the training text, beginning at a multiple of T, so that
    targets are inputs shifted by one.
    """
    corpus = corpus_of(tmp_path)
    tokens: Tokens = CorpusTokens(corpus, for_corpus(small_manifest, corpus), lambda position: position)
    train = corpus.train_file.read_bytes()
    for number in range(5):
        for row, found in enumerate(rows_of(tokens.microbatch(number), small_manifest)):
            start = (number * small_manifest.batch.rows + row) * 8
            assert found.tolist() == list(train[start : start + 9])


def test_an_epoch_reads_every_token_once(tmp_path: Path, small_manifest: Manifest) -> None:
    """With the run's order, the inputs of one epoch are every token of the training text once, but
    for a rest shorter than a row (I4).
    """
    corpus = corpus_of(tmp_path, bytes(number % 251 for number in range(2000)))
    manifest = for_corpus(small_manifest, corpus)
    count = sequence_count(corpus.train_tokens, 8)
    tokens = CorpusTokens(corpus, manifest, SequenceOrder(manifest.run.seed, count).sequence_of)
    assert count % 2 == 0
    read = np.concatenate([rows_of(tokens.microbatch(number), manifest)[:, :-1].ravel() for number in range(count // 2)])
    assert Counter(read.tolist()) == Counter(corpus.train_file.read_bytes()[: count * 8])


def test_a_microbatch_is_the_same_whoever_asks(tmp_path: Path, small_manifest: Manifest) -> None:
    """Two sources with the same corpus, asked in another order, give the same bytes for the same
    number.
    """
    corpus = corpus_of(tmp_path)
    manifest = for_corpus(small_manifest, corpus)
    order = SequenceOrder(1, sequence_count(corpus.train_tokens, 8)).sequence_of
    one, other = CorpusTokens(corpus, manifest, order), CorpusTokens(corpus, manifest, order)
    forwards = [one.microbatch(number) for number in range(300)]
    backwards = [other.microbatch(number) for number in reversed(range(300))]
    assert forwards == backwards[::-1]


def test_windows_are_fixed_and_spread_over_the_held_out_text(tmp_path: Path, small_manifest: Manifest) -> None:
    """Rows of all windows begin at the first held-out token, end at the last and are evenly apart;
    nothing of them is trained on.
    """
    corpus = corpus_of(tmp_path)
    tokens = CorpusTokens(corpus, for_corpus(small_manifest, corpus), lambda position: position)
    held_out = corpus.held_out_file.read_bytes()
    rows = np.concatenate([rows_of(tokens.window(number), small_manifest) for number in range(3)])
    starts = [index * (len(held_out) - 9) // 5 for index in range(6)]
    assert [row.tolist() for row in rows] == [list(held_out[start : start + 9]) for start in starts]
    assert starts[-1] + 9 == len(held_out)
    assert tokens.window(0) == tokens.window(0)


def test_a_single_held_out_row_is_enough(tmp_path: Path, small_manifest: Manifest) -> None:
    """Where only one row is held out, every window shows it."""
    corpus = corpus_of(tmp_path, b"0123456789" * 9)
    assert corpus.held_out_tokens == 9
    tokens = CorpusTokens(corpus, for_corpus(small_manifest, corpus), lambda position: position)
    assert {tuple(row) for row in rows_of(tokens.window(2), small_manifest).tolist()} == {tuple(b"123456789")}


def test_another_corpus_is_refused_as_a_source(tmp_path: Path, small_manifest: Manifest) -> None:
    """A peer whose text has another hash is told so, with both hashes and what it may do
    instead.
    """
    corpus = corpus_of(tmp_path)
    manifest = for_corpus(small_manifest, dataclasses.replace(corpus, corpus_hash="f" * 64))
    with pytest.raises(
        DataError, match=rf"^text: hash {corpus.corpus_hash[:12]}, but .* hash ffffffffffff: .* may serve the body$"
    ):
        CorpusTokens(corpus, manifest, lambda position: position)


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (
            Corpus("t", "", Path(), 64, 9, 255),
            "too short: 64 tokens to train on; one iteration of 4 microbatches of 2 rows of 8 tokens needs 65",
        ),
        (
            Corpus("t", "", Path(), 65, 8, 255),
            r"too short: 8 tokens held out \(data.held_out_percent = 5\); one row of 8 tokens needs 9",
        ),
        (Corpus("t", "", Path(), 65, 9, 256), "has the byte 256; model.vocabulary = 256 must be at least 257"),
    ],
)
def test_text_that_does_not_suit_the_run_is_told_in_one_line(small_manifest: Manifest, corpus: Corpus, message: str) -> None:
    """Too little to train on, too little to test on, or tokens beyond the vocabulary: expected and
    found stand in the line.
    """
    with pytest.raises(DataError, match=message) as caught:
        require_enough(corpus, small_manifest)
    assert "\n" not in str(caught.value)


def test_just_enough_is_enough(small_manifest: Manifest) -> None:
    """One iteration's rows and one held-out row suffice."""
    require_enough(Corpus("t", "", Path(), 65, 9, 255), small_manifest)


def test_an_iteration_shows_no_sequence_twice_where_the_text_just_suffices(tmp_path: Path, small_manifest: Manifest) -> None:
    """The shortest corpus allowed has one sequence for each row of an iteration."""
    draw = random.Random(3)
    corpus = corpus_of(tmp_path, draw.randbytes(90))
    manifest = for_corpus(dataclasses.replace(small_manifest, batch=BatchSection(rows=2, microbatches=5)), corpus)
    order = SequenceOrder(manifest.run.seed, sequence_count(corpus.train_tokens, 8))
    assert (corpus.train_tokens, order.count) == (81, 10)
    tokens = CorpusTokens(corpus, manifest, order.sequence_of)
    rows = {tuple(row) for number in range(5) for row in rows_of(tokens.microbatch(number), manifest).tolist()}
    assert len(rows) == 10


def test_a_shard_that_is_written_into_under_a_run_is_read_no_more(tmp_path: Path) -> None:
    """Neither in place nor cut short, where a read would end the process; one that is replaced, or
    removed, is what it was.
    """
    content = shard_header(90_000) + np.arange(90_000, dtype="<u2").tobytes()

    def written(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(len(content) - 4)
            file.write(bytes(4))

    def replaced(path: Path) -> None:
        other = path.with_suffix(".new")
        other.write_bytes(shard_header(1) + bytes(2))
        other.replace(path)

    for change, is_kept in (
        (written, False),
        (lambda path: os.truncate(path, 5000), False),
        (replaced, True),
        (lambda path: path.unlink(), True),
    ):
        path = tmp_path / "train.bin"
        path.write_bytes(content)
        os.utime(path, (0, 0))
        text = TokenText.of_shards([path])
        before = text.read(89_990, 5)
        change(path)
        if is_kept:
            assert (text.read(89_990, 5) == before).all()
        else:
            with pytest.raises(DataError, match=r"train\.bin: was changed while the run learned from it"):
                text.read(89_990, 5)

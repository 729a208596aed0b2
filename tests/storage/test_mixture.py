"""Mixtures: files that name several datasets with weights, and what a run reads of them."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from swarmfree.policy.data_order import MixtureOrder, order_of
from swarmfree.protocol.config import manifest_from_bytes
from swarmfree.protocol.errors import DataError
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.mixture import DATASETS_MAX, mixture_parts
from swarmfree.storage.corpus import Corpus, prepare_corpus, require_files, require_text, with_tokenizer
from swarmfree.storage.data_location import find_data
from swarmfree.storage.dataset_tokenizer import train_tokenizer
from swarmfree.storage.dataset_writer import PreparationOrder, prepare_dataset
from swarmfree.storage.mixture import Mixture
from swarmfree.storage.token_shards import shard_header
from swarmfree.storage.tokens import CorpusTokens, require_enough, tokens_of
from tests.storage.range_server import RangeServer
from tests.storage.test_tokens import for_corpus, rows_of

NAMES = ("ants", "bees", "cows")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three datasets of bytes of different sizes, one of a BPE, one of shards alone, and a text."""
    folder = tmp_path_factory.mktemp("mixture")
    for name, lines in zip(NAMES, (60, 120, 240), strict=True):
        text = folder / f"{name}.txt"
        text.write_text("".join(f"{number} {name} walk over the hill\n" for number in range(lines)))
        prepared(text, folder / name)
    bpe = folder / "tokenizer.json"
    bpe.write_bytes(train_tokenizer(iter([text.read_text()]), 300))
    prepared(folder / "cows.txt", folder / "bpe", tokenizer=str(bpe))
    bare = folder / "bare"
    bare.mkdir()
    for half in ("train", "val"):
        (bare / f"x_{half}_0.bin").write_bytes(shard_header(500) + bytes(1000))
    return folder


def prepared(text: Path, out: Path, tokenizer: str = "bytes") -> None:
    """A dataset with a fifth held out."""
    prepare_dataset(PreparationOrder((text,), tokenizer, out, held_out_percent=20.0), lambda _: None, lambda: 0.0)


def mixture_file(folder: Path, *entries: tuple[str, object], name: str = "mixture.toml") -> Path:
    """A file that names these with these weights; None = without one."""
    path = folder / name
    parts = (
        "".join(("[[dataset]]\n", f"path = {json.dumps(p)}\n", f"weight = {w}\n" if w is not None else "")) for p, w in entries
    )
    path.write_text("\n".join(parts))
    return path


def corpus_of(path: Path, cache: Path) -> Corpus:
    """Prepared from a file."""
    return prepare_corpus(str(path), cache, 5)


def tokens_for(corpus: Corpus, manifest: Manifest) -> tuple[CorpusTokens, MixtureOrder]:
    """What a source reads, and the order."""
    order = order_of(manifest.run.seed, corpus.parts, corpus.train_tokens, manifest.model.tokens_per_row)
    assert isinstance(order, MixtureOrder)
    known = dataclasses.replace(manifest, data=corpus.section(manifest.data))
    assert manifest_from_bytes(known.canonical()) == known
    return tokens_of(corpus, known, order.sequence_of), order


def test_an_epoch_draws_by_weight_and_repeats_no_row(folder: Path, tmp_path: Path, small_manifest: Manifest) -> None:
    """Rows of every dataset come as often as its weight says, each row once, none over the edge of
    two datasets; windows are held-out text in the same proportion.
    """
    corpus = corpus_of(mixture_file(folder, ("bees", 3), ("ants", 1)), tmp_path)
    tokens, order = tokens_for(corpus, small_manifest)
    rows, length = small_manifest.batch.rows, small_manifest.model.tokens_per_row
    microbatches = -(-order.epoch_length // rows)
    places = [(text, start) for n in range(microbatches) for text, start in tokens.microbatch_places(n)][: order.epoch_length]
    own = Counter(len(text) for text, _ in places)
    sizes = {dataset.name: dataset.train.tokens for dataset in corpus.datasets}
    assert own[sizes["ants"]] == (sizes["ants"] - 1) // length  # all of it
    assert own[sizes["bees"]] == 3 * own[sizes["ants"]]
    assert len(set(places)) == len(places)
    assert all(start % length == 0 and start + length < len(text) for text, start in places)
    text, start = places[0]
    assert rows_of(tokens.microbatch(0), small_manifest)[0].tolist() == text.read(start, length + 1).tolist()
    windows = Counter(id(text) for n in range(small_manifest.run.evaluate_windows) for text, _ in tokens.window_places(n))
    many = small_manifest.run.evaluate_windows * rows
    assert sorted(windows.values()) == [round(many / 4), many - round(many / 4)]


def test_who_lists_the_same_has_the_same_corpus(folder: Path, tmp_path: Path, small_manifest: Manifest) -> None:
    """Whatever the order, wherever they lie, here or behind a URL; another weight is another
    corpus.
    """
    first = corpus_of(mixture_file(folder, ("bees", 3), ("ants", 1.0)), tmp_path)
    other = corpus_of(mixture_file(tmp_path, (str(folder / "ants"), 1), (str(folder / "bees"), 3.0)), tmp_path)
    with RangeServer(folder) as server:
        mixed = corpus_of(mixture_file(folder, ("ants", 1), (f"{server.url}/bees", 3), name="a.mixture.toml"), tmp_path)
        assert mixed.name == "a"
        found = tokens_for(mixed, small_manifest)[0]
        assert [found.microbatch(n) for n in range(9)] == [tokens_for(first, small_manifest)[0].microbatch(n) for n in range(9)]
    heavier = corpus_of(mixture_file(folder, ("bees", 4), ("ants", 1)), tmp_path)
    assert first.corpus_hash == other.corpus_hash == mixed.corpus_hash != heavier.corpus_hash
    section = first.section(small_manifest.data)
    parts = mixture_parts(section.mixture)
    assert {part.dataset: part.weight for part in parts} == {
        dataset.dataset_hash[:32]: 3.0 if dataset.name == "bees" else 1.0 for dataset in first.datasets
    }
    assert (
        with_tokenizer(small_manifest, str(folder / "mixture.toml")).data.mixture == heavier.section(small_manifest.data).mixture
    )
    each = {dataset.name: dataset.bytes_per_token for dataset in first.datasets}
    assert section.bytes_per_token == pytest.approx(0.75 * each["bees"] + 0.25 * each["ants"])


def test_a_peer_with_another_mixture_is_told_in_what(folder: Path, tmp_path: Path, small_manifest: Manifest) -> None:
    """Which dataset is not the run's, which is missing, and which has another weight."""
    run = corpus_of(mixture_file(folder, ("bees", 3), ("ants", 1)), tmp_path)
    manifest = dataclasses.replace(small_manifest, data=run.section(small_manifest.data))
    own = corpus_of(mixture_file(folder, ("bees", 2), ("cows", 1)), tmp_path)
    with pytest.raises(DataError) as told:
        CorpusTokens(own, manifest, lambda sequence: sequence)
    assert f"{folder / 'cows'} (" in str(told.value)
    assert ") is not in the run's; " in str(told.value)
    assert " tokens is not here; " in str(told.value)
    assert f"{folder / 'bees'} has the weight 2, in the run 3)" in str(told.value)
    assert "this peer cannot be a source and may serve the body" in str(told.value)


BAD: list[tuple[tuple[tuple[str, object], ...], str]] = [
    ((("ants", 0), ("bees", 1)), "dataset 1: weight = 0: must be above 0 and at most 1e+09"),
    ((("ants", 1), ("bees", -2)), "dataset 2: weight = -2: must be above 0"),
    ((("ants", 1), ("bees", "nan")), "dataset 2: weight = nan: must be above 0"),
    ((("ants", 1), ("bees", "inf")), "dataset 2: weight = inf: must be above 0"),
    ((("ants", 1), ("bees", '"3"')), "dataset 2: weight = '3': a number above 0 expected"),
    ((("ants", 1), ("bees", "true")), "dataset 2: weight = True: a number above 0 expected"),
    ((("ants", 1), ("bees", "1" * 400)), "dataset 2: weight = 1111111111"),
    ((("ants", 1), ("bees", None)), "dataset 2: has no weight, and others have; give each one, or none"),
    ((("ants", 1), ("ants/../ants", 1)), "are the same dataset; name it once, with a larger weight"),
    ((("ants", 1),), "1 dataset; a mixture has 2 to 48"),
    ((("ants", 1),) * 1000, "1,000 datasets; a mixture has 2 to 48"),
    ((("ants", 1), ("", 1)), 'dataset 2: has the keys path, weight; [[dataset]] with path = "..."'),
    ((("ants", 1), ("nowhere", 1)), "nowhere: no such folder; `swarmfree data prepare` makes one of text"),
    ((("ants", 1), ("ants.txt", 1)), "ants.txt: no dataset; `swarmfree data prepare` makes one of text"),
    ((("ants", 1), ("x.mixture.toml", 1)), "is a mixture; name the datasets themselves"),
    ((("ants", 1), ("bpe", 1)), "a model learns tokens of one tokenizer: prepare both with the same, as --tokenizer "),
    ((("ants", 1), ("bare", 1)), "bare does not say its tokenizer; lay its tokenizer.json there"),
    ((("ants", 1), ("http://127.0.0.1:1/x", 1)), "http://127.0.0.1:1/x/index.json: nobody answers there"),
    ((("ants", 1), ("ftp://x/y", 1)), "'ftp://x/y': http://, https://, s3://, gs://, az:// with a host or a bucket expected"),
]


@pytest.mark.parametrize(("entries", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_a_mixture_that_cannot_be_is_told(folder: Path, entries: tuple[tuple[str, object], ...], words: str) -> None:
    """In one line that names the file or the entry, before a shard is read."""
    path = mixture_file(folder, *entries, name="bad.mixture.toml")
    with pytest.raises(DataError) as told:
        find_data(str(path))
    assert words in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has nothing in it; [[dataset]]"),
        (b"[[dataset]\n", "not TOML"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"dataset = 3", "has dataset in it; [[dataset]]"),
        (b"dataset = [1, 2]", "has dataset in it; [[dataset]]"),
        (b"[mixture]\nants = 1", "has mixture in it; [[dataset]]"),
        (b'[[dataset]]\npath = "ants"\nwieght = 1\n[[dataset]]\npath = "bees"', "has the keys path, wieght; [[dataset]]"),
        (b"#" * (1 << 21), "more than 1,048,576 bytes"),
        (b"a = " + b"[" * 50_000, "not TOML"),
    ],
)
def test_a_file_that_is_no_mixture_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    """Its name says that it is one, so it is not learned as text."""
    path = tmp_path / "mixture.toml"
    path.write_bytes(content)
    with pytest.raises(DataError) as told:
        require_files(str(path))
    assert words in str(told.value)
    assert str(told.value).startswith(str(path))
    assert "\n" not in str(told.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """As other data."""
    with pytest.raises(DataError, match=r"no such file or folder; --data names text to learn from"):
        require_files(str(tmp_path / "mixture.toml"))


@pytest.mark.parametrize(
    ("entries", "changes", "words"),
    [
        ((("ants", 1e9), ("bees", 1)), {}, "bees has so small a weight that an epoch of"),
        (
            (("ants", 1), ("bees", 1)),
            {"tokens_per_row": 600, "microbatches": 1, "rows": 1},
            "ants has 568 tokens; one row of 600 needs 601",
        ),
        (
            (("ants", 1), ("bees", 1)),
            {"tokens_per_row": 250},
            "is 4 sequences (2, 2); one iteration of 6 microbatches of 2 rows needs 12: give other weights",
        ),
        (
            (("cows", 1), ("bees", 1)),
            {"tokens_per_row": 800, "microbatches": 1, "rows": 1},
            "bees has 654 tokens held out; one row of 800 needs 801",
        ),
    ],
)
def test_a_mixture_that_does_not_suit_a_run_is_told(
    folder: Path,
    tmp_path: Path,
    small_manifest: Manifest,
    entries: tuple[tuple[str, object], ...],
    changes: dict[str, int],
    words: str,
) -> None:
    """Rows longer than a dataset, an epoch shorter than an iteration, too little held out."""
    corpus = corpus_of(mixture_file(folder, *entries), tmp_path)
    model = dataclasses.replace(small_manifest.model, tokens_per_row=changes.get("tokens_per_row", 8))
    batch = dataclasses.replace(
        small_manifest.batch, rows=changes.get("rows", 2), microbatches=changes.get("microbatches", 6), microbatches_max=64
    )
    with pytest.raises(DataError) as told:
        require_enough(corpus, dataclasses.replace(for_corpus(small_manifest, corpus), model=model, batch=batch))
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_mixtures_of_bare_shards_know_their_vocabulary_once_read(folder: Path, tmp_path: Path, small_manifest: Manifest) -> None:
    """As such shards alone do; two of the same bytes are one."""
    other = tmp_path / "other"
    other.mkdir()
    for half in ("train", "val"):
        (other / f"x_{half}_0.bin").write_bytes(shard_header(300) + b"\7\0" * 300)
    path = mixture_file(tmp_path, (str(folder / "bare"), 1), ("other", 2))
    corpus = corpus_of(path, tmp_path / "cache")
    assert (corpus.token_max, corpus.train_tokens) == (7, 800)
    assert with_tokenizer(small_manifest, str(path)).data.mixture == ""  # not known before all is read
    with pytest.raises(DataError, match="are the same dataset"):
        corpus_of(mixture_file(tmp_path, ("other", 1), (str(other), 1)), tmp_path / "cache")


def test_a_mixture_of_the_most_datasets_fits_a_manifest(tmp_path: Path, small_manifest: Manifest) -> None:
    """As many as may be, with long weights."""
    for number in range(DATASETS_MAX):
        (tmp_path / str(number)).mkdir()
        for half in ("train", "val"):
            content = shard_header(100) + bytes([number, 0]) * 100
            (tmp_path / str(number) / f"x_{half}_0.bin").write_bytes(content)
    path = mixture_file(tmp_path, *((str(number), 1 + number / 7) for number in range(DATASETS_MAX)))
    require_text(str(path), 100, 256)
    assert isinstance(find_data(str(path)), Mixture)
    corpus = corpus_of(path, tmp_path / "cache")
    tokens, order = tokens_for(corpus, small_manifest)
    assert len(tokens.microbatch(order.epoch_length)) == small_manifest.batch.rows * (small_manifest.model.tokens_per_row + 1) * 4

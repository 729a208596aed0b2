"""Datasets of token shards: made of text with any tokenizer, killed and gone on with, read as they
lie, and refused where they are not whole.
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmfree.protocol.errors import ConfigError, DataError, SwarmfreeError
from swarmfree.protocol.manifest import Manifest
from swarmfree.storage import dataset_writer
from swarmfree.storage.corpus import prepare_corpus, require_text, with_tokenizer
from swarmfree.storage.dataset import Dataset, checked, find_dataset
from swarmfree.storage.dataset_tokenizer import TextTokenizer, byte_tokenizer, train_tokenizer
from swarmfree.storage.dataset_writer import PreparationOrder, prepare_dataset
from swarmfree.storage.document_packing import best_fit_order
from swarmfree.storage.text_sources import BEGIN, find_sources, pieces_of
from swarmfree.storage.token_shards import shard_header
from swarmfree.storage.token_text import TokenText
from swarmfree.storage.tokens import CorpusTokens

WORDS = [
    "the",
    "sea",
    "was",
    "calm",
    "and",
    "the",
    "whale",
    "swam",
    "on",
    "until",
    "evening",
    "came",
    "over",
    "every",
    "äöü",
    "ship",
    "鯨",
]


def documents(count: int, seed: int = 0) -> list[str]:
    """Documents of a few dozen words, none like another."""
    draw = random.Random(seed)
    return [f"{number} " + " ".join(draw.choices(WORDS, k=draw.randint(5, 60))) for number in range(count)]


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 documents as JSON lines."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in documents(300)))
    return path


@pytest.fixture(scope="module")
def bpe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer.json."""
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    path.write_bytes(train_tokenizer(iter(documents(100, 7)), 300))
    return path


def prepared(out: Path, *paths: Path, tokenizer: str = "bytes", **changes: object) -> Dataset:
    """A dataset with a tenth held out."""
    order = PreparationOrder(paths, tokenizer, out, held_out_percent=10.0)
    return prepare_dataset(dataclasses.replace(order, **changes), lambda _: None, lambda: 0.0)  # type: ignore[arg-type]


def texts_in(dataset: Dataset) -> list[str]:
    """All documents of both halves, decoded."""
    path = dataset.folder / "tokenizer.json"
    tokenizer = TextTokenizer(path.read_bytes(), str(path))
    found: list[str] = []
    for half in (dataset.train, dataset.held_out):
        text = TokenText.of_shards(dataset.paths(half))
        tokens = text.read(0, len(text))
        assert len(tokens) == half.tokens
        ends = np.flatnonzero(tokens == tokenizer.end_token)
        assert ends[-1] == len(tokens) - 1
        found += [tokenizer.decode(part[:-1]) for part in np.split(tokens, ends + 1)[:-1]]
    return found


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Name -> content of every file."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_rows(folder: Path, kind: str) -> Path:
    """The same rows in one of the forms that are read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = documents(300)
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts).encode()
    path = folder / f"rows.{kind}"
    match kind:
        case "jsonl":
            path.write_bytes(lines)
        case "jsonl.gz":
            path.write_bytes(gzip.compress(lines))
        case "jsonl.zst":
            path.write_bytes(zstandard.compress(lines[:999]) + zstandard.compress(lines[999:]))
        case "parquet":
            pq.write_table(pa.table({"id": range(300), "body": texts}), path, row_group_size=70)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
@pytest.mark.parametrize("tokenizer", ["bytes", "file", "train:290"])
def test_every_document_is_in_one_half(tmp_path: Path, bpe_file: Path, kind: str, tokenizer: str) -> None:
    """Rows of each kind of file come out of the shards whole, each once, whatever the tokenizer;
    documents are separated, and which are held out does not depend on either.
    """
    name = str(bpe_file) if tokenizer == "file" else tokenizer
    dataset = prepared(tmp_path / "out", write_rows(tmp_path, kind), tokenizer=name, field="body", shard_tokens=5000)
    assert sorted(texts_in(dataset)) == sorted(documents(300))
    assert (dataset.train.documents, dataset.held_out.documents) == (269, 31)
    assert len(dataset.train.shards) > 1
    assert all(shard.tokens == 5000 for shard in dataset.train.shards[:-1])
    assert find_dataset(tmp_path / "out") == dataset == checked(dataset)
    assert dataset.held_out.text_bytes == sum(len(t.encode()) for t in texts_in(dataset)[-31:])
    assert dataset.bytes_per_token == pytest.approx(dataset.held_out.text_bytes / dataset.held_out.tokens)


@settings(max_examples=40)
@given(text=st.text(max_size=3000), part=st.integers(5, 400))
def test_a_text_file_comes_in_parts_that_join_to_it(tmp_path_factory: pytest.TempPathFactory, text: str, part: int) -> None:
    """Parts of a text file, whatever letters and line ends it has, are the file in order, the last
    one ends it, and reading goes on behind any of them.
    """
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes((text + "x").encode())
    (source,) = find_sources([path])
    pieces = list(pieces_of(source, BEGIN, "text", part))
    assert b"".join(piece.content for piece in pieces) == path.read_bytes()
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    middle = len(pieces) // 2
    assert list(pieces_of(source, pieces[middle].position, "text", part)) == pieces[middle + 1 :]


def test_one_command_twice_gives_the_same_bytes(tmp_path: Path, rows_file: Path) -> None:
    """A tokenizer is trained, and text is encoded, to the same bytes each time; a dataset that is
    whole is left as it is.
    """
    first, second = (prepared(tmp_path / name, rows_file, tokenizer="train:300") for name in "ab")
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert first.dataset_hash == second.dataset_hash
    before = (tmp_path / "a" / "index.json").stat()
    prepared(tmp_path / "a", rows_file, tokenizer="train:300")
    assert (tmp_path / "a" / "index.json").stat() == before


KILLED = (
    "import itertools, os, signal, sys; from pathlib import Path\n"
    "from swarmfree.storage import dataset_writer as writer\n"
    "writer._BATCH_PIECES = 10\n"
    "place, left = sys.argv[4], int(sys.argv[5])\n"
    "steps = itertools.count(1)\n"
    "def dying(function):\n"
    "    def call(*arguments, **names):\n"
    "        if next(steps) == left: os.kill(os.getpid(), signal.SIGKILL)\n"
    "        return function(*arguments, **names)\n"
    "    return call\n"
    "owner = {'append': writer._ShardWriter, 'finish': writer._ShardWriter, '_open': writer._ShardWriter}.get(place, writer)\n"
    "setattr(owner, place, dying(getattr(owner, place)))\n"
    "order = writer.PreparationOrder((Path(sys.argv[1]),), sys.argv[2], Path(sys.argv[3]), held_out_percent=10.0, shard_tokens=1500)\n"
    "writer.prepare_dataset(order, lambda _: None, itertools.count().__next__, checkpoint_s=2)\n"
)


def test_a_killed_preparation_goes_on_to_the_same_bytes(tmp_path: Path, rows_file: Path, bpe_file: Path) -> None:
    """SIGKILL before tokens are appended, at the end of a shard, after it was renamed, while
    progress is noted and before the index: five lives, and the same bytes as one life made.
    """
    whole = prepared(tmp_path / "whole", rows_file, tokenizer=str(bpe_file), shard_tokens=1500)
    assert len(whole.train.shards) > 5
    out = tmp_path / "out"
    for place, left in (("append", 9), ("finish", 2), ("_open", 3), ("_note", 4), ("write_whole", 6)):
        arguments = [str(rows_file), str(bpe_file), str(out), place, str(left)]
        ended = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, check=False)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        with pytest.raises(DataError, match="still being prepared"):
            find_dataset(out)
    prepared(out, rows_file, tokenizer=str(bpe_file), shard_tokens=1500)
    assert bytes_of(out) == bytes_of(tmp_path / "whole")


@given(lengths=st.lists(st.integers(1, 40), max_size=30), row=st.integers(1, 25), begun=st.integers(0, 60))
def test_best_fit_takes_each_document_once_and_the_longest_that_fits(lengths: list[int], row: int, begun: int) -> None:
    """None that waits would have filled the row better; where none fits, the longest is cut."""
    order = best_fit_order(lengths, row, begun)
    assert sorted(order) == list(range(len(lengths)))
    for place, index in enumerate(order):
        room, waiting = row - begun % row, [lengths[other] for other in order[place:]]
        assert lengths[index] == max((length for length in waiting if length <= room), default=max(waiting))
        begun += lengths[index]


def test_packed_documents_are_whole_and_fewer_are_cut(
    tmp_path: Path, rows_file: Path, bpe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same documents as without packing, and the same bytes after a kill; a file of text in
    parts stays in order.
    """
    row, whole = 64, prepared(tmp_path / "whole", rows_file, tokenizer=str(bpe_file))
    monkeypatch.setattr(dataset_writer, "_BATCH_PIECES", 40)
    packed = prepared(tmp_path / "packed", rows_file, tokenizer=str(bpe_file), row_tokens=row)
    assert sorted(texts_in(packed)) == sorted(texts_in(whole)) and packed.train.tokens == whole.train.tokens
    cuts = []
    for dataset in (whole, packed):
        text = TokenText.of_shards(dataset.paths(dataset.train))
        ends = np.flatnonzero(text.read(0, len(text)) == 0) + 1
        begins = np.concatenate([[0], ends[:-1]])
        cuts.append(int(((ends - begins <= row) & (begins // row != (ends - 1) // row)).sum()))
    assert cuts[1] < cuts[0] / 2, cuts
    monkeypatch.setattr(dataset_writer, "_BATCH_PIECES", 10)
    again = prepared(tmp_path / "again", rows_file, tokenizer=str(bpe_file), shard_tokens=1500, row_tokens=row)
    killed = KILLED.replace("shard_tokens=1500", f"shard_tokens=1500, row_tokens={row}")
    arguments = [str(rows_file), str(bpe_file), str(tmp_path / "out"), "append", "99"]
    ended = subprocess.run([sys.executable, "-c", killed, *arguments], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert prepared(
        tmp_path / "out", rows_file, tokenizer=str(bpe_file), shard_tokens=1500, row_tokens=row
    ) == dataclasses.replace(again, folder=tmp_path / "out")
    (tmp_path / "long.txt").write_text("".join(f"line {number}\n" for number in range(3000)))
    ordered, long = (prepared(tmp_path / f"{n}", tmp_path / "long.txt", row_tokens=n) for n in (0, row))
    assert (ordered.train, ordered.held_out) == (long.train, long.held_out)


def damaged(folder: Path, what: str) -> None:
    """Damage a dataset."""
    shard = folder / "train_000000.bin"
    content = bytearray(shard.read_bytes())
    match what:
        case "truncated":
            shard.write_bytes(content[:-2])
        case "flipped":
            content[5000] ^= 1
            shard.write_bytes(content)
        case "no shard":
            shard.write_bytes(b"x" * 5000)
        case "short":
            shard.write_bytes(b"x" * 50)
        case "missing":
            shard.unlink()
        case "other index":
            path = folder / "index.json"
            path.write_text(path.read_text().replace('"vocabulary": 300', '"vocabulary": 299'))
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "torn index":
            (folder / "index.json").write_text("{")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("truncated", r"train_000000\.bin: truncated: [\d,]+ bytes, but its header says"),
        ("flipped", r"train_000000\.bin: SHA-256 \w{12}, but index.json says \w{12}: the shard is damaged$"),
        ("no shard", r"train_000000\.bin: magic \d+, version \d+; a token shard has magic 20240520"),
        ("short", r"train_000000\.bin: 50 bytes; a token shard begins with a header of 1024$"),
        ("missing", r"train_000000\.bin: cannot be read: No such file"),
        ("other index", r"index\.json: says hash \w{12}, but what it lists has"),
        ("no tokenizer", r"tokenizer\.json: cannot be read: No such file"),
        ("torn index", r"index\.json: not JSON"),
    ],
)
def test_a_damaged_dataset_is_refused_by_name(tmp_path: Path, rows_file: Path, bpe_file: Path, what: str, words: str) -> None:
    """Whatever is damaged, the line names the file; a peer that would learn from it does not
    start.
    """
    prepared(tmp_path / "out", rows_file, tokenizer=str(bpe_file))
    prepare_corpus(str(tmp_path / "out"), tmp_path / "cache", 5)  # what was once checked is checked again
    damaged(tmp_path / "out", what)
    with pytest.raises(DataError, match=words):
        prepare_corpus(str(tmp_path / "out"), tmp_path / "cache", 5)


def test_a_run_reads_a_dataset_as_it_lies(tmp_path: Path, rows_file: Path, bpe_file: Path, small_manifest: Manifest) -> None:
    """Rows cross the ends of shards; the manifest gets hash, tokenizer and bytes per token, and a
    vocabulary that is too small is told with what to set.
    """
    dataset = prepared(tmp_path / "out", rows_file, tokenizer=str(bpe_file), shard_tokens=701)
    corpus = prepare_corpus(str(tmp_path / "out"), tmp_path / "cache", 5)
    data = corpus.section(small_manifest.data)
    assert (data.corpus_hash, data.train_tokens) == (dataset.dataset_hash, dataset.train.tokens)
    assert (data.vocabulary, data.end_of_text) == (300, "<|endoftext|>")
    assert data.bytes_per_token == dataset.bytes_per_token > 1.2
    assert with_tokenizer(small_manifest, str(tmp_path / "out")).data.tokenizer_hash == data.tokenizer_hash
    manifest = dataclasses.replace(small_manifest, data=data)
    fix = r"^out: its tokens have 300 symbols, but model.vocabulary = 256; add --set model.vocabulary=300$"
    with pytest.raises(DataError, match=fix):
        CorpusTokens(corpus, manifest, lambda position: position)
    with pytest.raises(DataError, match=fix):
        require_text(str(tmp_path / "out"), 100, 256)
    given = r"but the model in there has 256; make others with its tokenizer: swarmfree data prepare SOURCE --tokenizer there --out DIR"
    with pytest.raises(DataError, match=given):
        require_text(str(tmp_path / "out"), 100, 256, "there")
    require_text(str(tmp_path / "out"), 100, 300)
    manifest = dataclasses.replace(manifest, model=dataclasses.replace(manifest.model, vocabulary=300))
    tokens = CorpusTokens(corpus, manifest, lambda position: position)
    shards = [np.fromfile(path, "<u2", offset=1024) for path in dataset.paths(dataset.train)]
    text, length = np.concatenate(shards), manifest.model.tokens_per_row
    for number in range(dataset.train.tokens // length // manifest.batch.rows - 1):
        rows = np.frombuffer(tokens.microbatch(number), "<i4").reshape(manifest.batch.rows, -1)
        for row, found in enumerate(rows):
            start = (number * manifest.batch.rows + row) * length
            assert found.tolist() == text[start : start + length + 1].tolist()


def test_finished_shards_are_used_without_an_index(tmp_path: Path) -> None:
    """A folder of llm.c's shards is a dataset; its vocabulary is what its largest token needs, and
    bytes for each token stay what the run config says.
    """
    for name, tokens in (
        ("fineweb_train_000001", range(50_000)),
        ("fineweb_train_000002", [50_256]),
        ("fineweb_val_000000", range(99)),
    ):
        (tmp_path / f"{name}.bin").write_bytes(shard_header(len(tokens)) + np.array(tokens, "<u2").tobytes())
    corpus = prepare_corpus(str(tmp_path), tmp_path / "cache", 5)
    assert (corpus.train_tokens, corpus.held_out_tokens, corpus.token_max) == (50_001, 99, 50_256)
    set_by_hand = dataclasses.replace(Manifest().data, bytes_per_token=4.5)
    section = corpus.section(set_by_hand)
    assert (section.vocabulary, section.bytes_per_token, section.is_bytes) == (50_257, 4.5, False)
    assert prepare_corpus(str(tmp_path), tmp_path / "cache", 5) == corpus
    (tmp_path / "fineweb_val_000000.bin").unlink()
    with pytest.raises(DataError, match=r"2 token shards, but none is named \*val\*\.bin"):
        find_dataset(tmp_path)


def bad_inputs(folder: Path) -> Iterator[tuple[dict[str, object], type[SwarmfreeError], str]]:
    """(changes of an order, error, its line) of everything that a person can get wrong."""
    places = (folder / f"bad{number}" for number in itertools.count())

    def text(name: str, content: bytes) -> tuple[Path]:
        place = next(places)
        place.mkdir()
        (place / name).write_bytes(content)
        return (place / name,)

    good = text("good.txt", "\n".join(documents(200)).encode())
    yield {"paths": text("a.txt", b"")}, DataError, "no file with a single byte"
    yield {"paths": text("a.jsonl", b"\n\n")}, DataError, "no document with any text"
    yield {"paths": (folder / "none",)}, DataError, "no such file or folder"
    yield {"paths": text("a.txt", b"abc\n" * 50 + b"\xe8")}, DataError, r"a\.txt: not UTF-8 at byte offset 200 \(byte 0xe8\)"
    yield (
        {"paths": text("a.jsonl", b'{"text": "a"}\n{"body": ""}\n')},
        DataError,
        r"a\.jsonl, line 2: no text in the field 'text'",
    )
    yield {"paths": text("a.jsonl", b'{"text": "a"}\n{"te\n')}, DataError, r"a\.jsonl, line 2: no JSON"
    yield {"paths": text("a.jsonl", b'{"text": "a"}\n{"text": "\xe8"}\n')}, DataError, "line 2: not UTF-8 at byte offset 24"
    yield {"paths": text("a.jsonl", b'{"text": "\\ud800"}\n')}, DataError, "line 1: half a surrogate pair"
    yield {"paths": text("a.jsonl.gz", gzip.compress(b'{"text": "a"}')[:-9])}, DataError, r"a\.jsonl\.gz: cannot be read"
    yield {"paths": text("a.jsonl.zst", b"nonsense")}, DataError, r"a\.jsonl\.zst: cannot be unpacked"
    yield {"paths": text("a.parquet", b"nonsense")}, DataError, r"a\.parquet: no readable Parquet file"
    yield {"paths": (write_rows(folder, "parquet"),)}, DataError, "no column 'text', but id, body"
    yield {"paths": text("a.txt", b"short")}, DataError, "1 documents, of which none is held out at --held-out-percent 10"
    yield {"tokenizer": str(folder / "none.json")}, ConfigError, "no such file; bytes, train:VOCAB or the path"
    yield {"tokenizer": str(folder)}, ConfigError, "no such file; bytes, train:VOCAB or the path"
    yield {"tokenizer": "train:99"}, ConfigError, "257 to 65,536 symbols expected"
    yield {"tokenizer": str(text("t.json", b"{}")[0])}, ConfigError, "it has no model"
    yield {"tokenizer": str(text("t.json", b'{"model": {}}')[0])}, ConfigError, "no tokenizer that the library"
    fields = json.loads(byte_tokenizer())
    fields["added_tokens"] = [
        dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"id": 256, "content": "<end>", "special": True}
    ]
    unusual = str(text("t.json", json.dumps(fields).encode())[0])
    yield {"tokenizer": unusual}, ConfigError, "name one of its tokens with --end-of-text"
    fields["model"]["vocab"] = {f"w{number}": number for number in range(70_000)}
    yield {"tokenizer": str(text("t.json", json.dumps(fields).encode())[0])}, ConfigError, "70,001 symbols; .* 65,536 at most"
    yield {"out": good[0].parent}, ConfigError, "holds good.txt; a new or empty folder expected"
    yield {"out": good[0]}, ConfigError, "is a file"
    prepared(folder / "other", *good)
    yield (
        {"out": folder / "other", "tokenizer": unusual, "end_of_text": "<end>"},
        ConfigError,
        "made with another tokenizer, end of text, sources",
    )
    prepared(folder / "packed", *good, row_tokens=32)
    yield {"out": folder / "packed", "paths": good}, ConfigError, "made with another pack; name"


def test_bad_input_is_told_in_one_line(tmp_path: Path, rows_file: Path) -> None:
    """Each thing that a person can get wrong has a line of its own, with the file and the place in
    it.
    """
    order = PreparationOrder((rows_file,), "bytes", tmp_path / "unused", held_out_percent=10.0)
    for number, (changes, kind, words) in enumerate(bad_inputs(tmp_path)):
        asked = dataclasses.replace(order, **({"out": tmp_path / f"out{number}"} | changes))  # type: ignore[arg-type]
        with pytest.raises(kind, match=words) as told:
            prepare_dataset(asked, lambda _: None, lambda: 0.0)
        assert "\n" not in str(told.value)


def test_what_is_not_installed_is_told_with_how_to_install_it(
    tmp_path: Path, bpe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without tokenizers or pyarrow the line names the extra; bytes of text need neither."""
    parquet, text = (write_rows(tmp_path, kind) for kind in ("parquet", "jsonl"))
    for name in ("tokenizers", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SwarmfreeError, match=r'Parquet files need pyarrow; .* pip install "swarmfree\[data\]"'):
        prepared(tmp_path / "a", parquet)
    with pytest.raises(SwarmfreeError, match=r'the library tokenizers; .* pip install "swarmfree\[data\]"'):
        prepared(tmp_path / "b", text, field="body", tokenizer=str(bpe_file))
    assert prepared(tmp_path / "c", text, field="body").vocabulary == 256

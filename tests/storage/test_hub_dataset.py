"""Datasets of the Hugging Face hub as a source: with the library `datasets`, from a folder in its
form; the hub itself is not reached.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from swarmfree.protocol.errors import DataError
from swarmfree.storage.dataset import Dataset
from swarmfree.storage.dataset_writer import PreparationOrder, PreparationProgress, prepare_dataset
from swarmfree.storage.hub_dataset import HubName, load_hub_rows, parse_hub_name
from swarmfree.storage.text_sources import BEGIN, find_sources, pieces_of

pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

TEXTS = [f"document {number} of the sea" if number % 7 else "" for number in range(700)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset of two splits in the hub's form, and a cache of its own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "made"
    (folder / "data").mkdir(parents=True)
    for split, texts in (("train", TEXTS), ("test", TEXTS[:5])):
        rows = "".join(json.dumps({"text": text, "number": number}) + "\n" for number, text in enumerate(texts))
        (folder / "data" / f"{split}-0.jsonl").write_text(rows)
    return folder


def prepared(source: Path, out: Path, said: list[str] | None = None, field: str = "text") -> Dataset:
    """A dataset of bytes, a tenth held out."""
    order = PreparationOrder((source,), "bytes", out, field, held_out_percent=10.0)

    def say(progress: PreparationProgress) -> None:
        if said is not None and not progress.total_bytes:
            said.append(progress.doing)

    return prepare_dataset(order, say, lambda: 0.0)


def test_rows_of_the_hub_become_the_tokens_of_the_same_rows_in_a_file(folder: Path, tmp_path: Path) -> None:
    """It is said what is read, before it is; a second preparation reads nothing anew, and is
    whole already.
    """
    said: list[str] = []
    there = prepared(Path(f"hf:{folder}"), tmp_path / "out", said)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    here = prepared(rows, tmp_path / "here")
    assert dataclasses.replace(there, folder=here.folder, sources=here.sources) == here
    assert said[0] == f"hf:{folder}: is looked up, in the hub and in the cache"
    assert said[1].startswith(f"hf:{folder}: 2 files, ") and f"downloaded to {tmp_path / 'cache'}" in said[1]
    assert prepared(Path(f"hf:{folder}"), tmp_path / "out", said) == there
    assert said[3].startswith(f"hf:{folder}: lies in {tmp_path / 'cache'}") and said[3].endswith("nothing is downloaded")
    assert len(said) == 4
    ((name, size, digest),) = there.sources
    assert (name, size) == (f"hf:{folder}", sum(map(len, TEXTS)))
    assert len(digest) == 64


def test_reading_goes_on_behind_any_row(folder: Path) -> None:
    """As a preparation does that was killed."""
    (source,) = find_sources([Path(f"hf:{folder}")])
    pieces = list(pieces_of(source, BEGIN, "text", 512))
    assert [piece.text for piece in pieces] == [text for text in TEXTS if text]
    assert pieces[-1].read_bytes == source.size_bytes
    for number in (0, 254, 255, 256, 511, len(pieces) - 1):
        assert list(pieces_of(source, pieces[number].position, "text", 512)) == pieces[number + 1 :]


@pytest.mark.parametrize(
    ("ending", "field", "words"),
    [
        (":default:nowhere", "text", "has no split 'nowhere', but test, train; write hf:OWNER/NAME:CONFIG:SPLIT"),
        ("", "body", "no column 'body', but text, number; name another with --field"),
        ("", "number", "row 1: int in the column 'number'; text expected"),
        (":other", "text", ": BuilderConfig 'other' not found"),
        ("/nowhere", "text", "Couldn't find any data file"),
    ],
)
def test_what_the_hub_has_not_is_told(folder: Path, ending: str, field: str, words: str) -> None:
    """In one line that names the dataset."""
    with pytest.raises(DataError) as told:
        load_hub_rows(f"hf:{folder}{ending}", field, lambda _: None)
    assert str(told.value).startswith(f"hf:{folder}{ending}")
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_a_split_is_named(folder: Path) -> None:
    """Behind the config."""
    assert len(load_hub_rows(f"hf:{folder}:default:test", "text", lambda _: None)) == 5
    assert parse_hub_name("hf:a/b:c:d@main") == HubName("a/b", "c", "d", "main")
    assert parse_hub_name("hf:a/b@v1") == HubName("a/b", "", "train", "v1")


def test_a_hub_that_does_not_answer_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, where it is not in the cache either."""
    import datasets
    import huggingface_hub

    for module in (datasets.config, huggingface_hub.constants):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError) as told:
        load_hub_rows("hf:owner/name", "text", lambda _: None)
    assert str(told.value).startswith("hf:owner/name: the hub cannot be reached, and it is not in the cache (")
    assert "\n" not in str(told.value)

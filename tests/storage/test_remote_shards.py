"""Shards behind a URL: the same tokens as on the own disk, whatever a server does, and none that
the index does not say.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from benchmarks.s3_endpoint import BUCKET, s3_endpoint
from swarmfree.policy.data_order import order_of
from swarmfree.protocol.errors import DataError, SwarmfreeError
from swarmfree.protocol.manifest import Manifest
from swarmfree.storage import remote_shards
from swarmfree.storage.corpus import prepare_corpus, require_text, with_tokenizer
from swarmfree.storage.data_location import find_data
from swarmfree.storage.dataset import Dataset
from swarmfree.storage.dataset_writer import PreparationOrder, prepare_dataset
from swarmfree.storage.remote_folder import RemoteError, RemoteFolder
from swarmfree.storage.remote_shards import BlockReader, RemoteShard, check_shard
from swarmfree.storage.token_shards import BLOCK_SIZE_BYTES, HEADER_SIZE_BYTES
from swarmfree.storage.tokens import CorpusTokens, RemoteTokens, half_of, remote_shard, tokens_of
from tests.storage.range_server import FLOOD_BYTES, Fault, RangeServer
from tests.storage.test_tokens import for_corpus

TOKENS = 100_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of bytes in shards of 80,000 tokens: three blocks each."""
    source = tmp_path_factory.mktemp("text") / "text.txt"
    source.write_text("".join(f"{number} the sea was calm and the whale swam on\n" for number in range(TOKENS // 24)))
    out = source.parent / "out"
    order = PreparationOrder((source,), "bytes", out, held_out_percent=5.0, shard_tokens=80_000)
    prepare_dataset(order, lambda _: None, lambda: 0.0)
    return out


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    """It serves the dataset."""
    with RangeServer(folder) as server:
        yield server


def tokens_at(data: str, folder: Path, manifest: Manifest, say: Callable[[str], None] = lambda _: None) -> CorpusTokens:
    """What a source of a run over it reads."""
    corpus = prepare_corpus(data, folder, 5, say)
    order = order_of(manifest.run.seed, corpus.parts, corpus.train_tokens, manifest.model.tokens_per_row)
    return tokens_of(corpus, for_corpus(manifest, corpus), order.sequence_of)


def test_tokens_behind_a_url_are_those_on_the_disk(
    folder: Path, server: RangeServer, tmp_path: Path, small_manifest: Manifest
) -> None:
    """Every microbatch and window, by ranges of the blocks that they need alone; the corpus has the
    same hash, so who has a copy and who has none are sources of one run.
    """
    here, there = (tokens_at(data, tmp_path / "cache", small_manifest) for data in (str(folder), server.url))
    assert type(here) is CorpusTokens
    assert isinstance(there, RemoteTokens)
    assert [there.microbatch(number) for number in range(40)] == [here.microbatch(number) for number in range(40)]
    assert [there.window(number) for number in range(4)] == [here.window(number) for number in range(4)]
    assert there.tokenizer == here.tokenizer
    ranges = [(path, asked) for path, asked in server.asked if asked]
    assert len(ranges) == len(set(ranges)) <= 12  # each block once: they all have room
    assert with_tokenizer(small_manifest, server.url).data == with_tokenizer(small_manifest, str(folder)).data
    require_text(server.url, 1000, 256)


async def test_a_share_is_read_ahead_and_each_block_once(
    folder: Path, server: RangeServer, tmp_path: Path, small_manifest: Manifest
) -> None:
    """What a source is told to expect is fetched before it is asked for, as far as the cache has
    room; and the event loop goes on meanwhile.
    """
    here, there = (tokens_at(data, tmp_path / "cache", small_manifest) for data in (str(folder), server.url))
    assert isinstance(there, RemoteTokens)
    there.expect(range(20))
    while there.waited_s() or not any("train" in path and asked for path, asked in server.asked):
        await asyncio.sleep(0.001)
    server.fault = "fails"  # what is asked for now does not come
    found = await asyncio.wait_for(there.microbatch_once_there(0), 5)
    assert found == here.microbatch(0)
    server.fault = "none"
    assert [await there.microbatch_once_there(number) for number in range(20)] == [here.microbatch(n) for n in range(20)]
    assert await there.window_once_there(1) == here.window(1)
    ranges = [(path, asked) for path, asked in server.asked if asked]
    assert len(ranges) - len(set(ranges)) <= 1  # one may have failed once


def reader_of(url: str, said: list[str], cache_blocks: int = 2, within_s: float = 0.3) -> BlockReader:
    """It asks again at once."""
    folder = RemoteFolder(url, timedelta(seconds=within_s))
    return BlockReader(folder, said.append, cache_blocks * BLOCK_SIZE_BYTES, clock=lambda: 5.0, pause=lambda _: False)


def shards_of(folder: Path) -> list[RemoteShard]:
    """All of its training shards."""
    dataset = find_data(str(folder))
    assert isinstance(dataset, Dataset)
    return [RemoteShard(shard.file, shard.tokens, shard.blocks_sha256) for shard in dataset.train.shards]


def test_the_cache_is_bounded(folder: Path, server: RangeServer) -> None:
    """With room for two blocks the third is fetched again, and what comes is the same."""
    reader, shard = reader_of(server.url, []), shards_of(folder)[0]
    content = (folder / shard.file).read_bytes()
    for number in (0, 1, 2, 0, 2, 2):
        assert reader.block(shard, number) == content[number * BLOCK_SIZE_BYTES : (number + 1) * BLOCK_SIZE_BYTES]
    assert reader.fetched_blocks == 4


FAULTS: list[tuple[Fault, str]] = [
    ("refuses", "refused (401 or 403)"),
    ("fails", "answers 500 Internal Server Error"),
    ("no ranges", "its server gives no ranges of files; take one that does, or copy the dataset here"),
    ("gzip", "bytes from 0 on were asked for, and"),
    ("cuts", "65,536 bytes from 0 on were asked for, and 65,535 came"),
    ("flips", "the shard is damaged or another one, and is not used"),
    ("circles", "error following redirect"),
    ("hangs", "no answer in time"),
    ("hangs up", "nobody answers there"),
    ("other place", "Requested 0..65536, got 1..65537"),
    ("goes on", "65,536 bytes from 0 on were asked for, and more came"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_server_that_does_wrong_is_waited_for(folder: Path, server: RangeServer, fault: Fault, words: str) -> None:
    """One line says which shard, and why; no other byte comes out; one line says that it is over,
    and what comes then is right.
    """
    said: list[str] = []
    reader, shard = reader_of(server.url, said), shards_of(folder)[0]
    reader.read_block(shard, 1)  # the hashes of the blocks are known
    server.fault, server.only = fault, ".bin"
    pauses = 0

    def pause(_: float) -> bool:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            server.fault = "none"
            server.released.set()
        return False

    reader._pause = pause
    assert reader.block(shard, 0) == (folder / shard.file).read_bytes()[:BLOCK_SIZE_BYTES]
    assert pauses == 3
    assert len(said) == 2
    assert said[0].startswith(f"{server.url}/{shard.file}: ")
    assert words in said[0]
    assert "\n" not in said[0]
    assert said[1] == f"{server.url}: answers again, after 0 s"
    assert server.flooded_bytes < FLOOD_BYTES / 4  # it hangs up on who sends far more than was asked for


def test_a_token_that_no_model_has_a_row_for_is_not_used(folder: Path, server: RangeServer) -> None:
    """However right the hash of its block is; the first one has a header, which is none of the
    tokens.
    """
    shard = shards_of(folder)[0]
    largest = int(np.frombuffer((folder / shard.file).read_bytes(), "<u2", offset=HEADER_SIZE_BYTES).max())
    reader = reader_of(server.url, [])
    assert reader.read_block(replace(shard, symbols=largest + 1), 0)
    with pytest.raises(RemoteError, match=f"{shard.file}: has the token {largest}, but its tokenizer has {largest} symbols"):
        reader.read_block(replace(shard, symbols=largest), 0)
    dataset = find_data(server.url)
    assert isinstance(dataset, Dataset)
    assert remote_shard(dataset, dataset.train.shards[0]) == replace(shard, symbols=dataset.vocabulary)


def test_a_redirect_is_followed(folder: Path, server: RangeServer) -> None:
    """A shard that has moved is read where it is now."""
    server.fault = "redirects"
    reader, shard = reader_of(server.url, []), shards_of(folder)[0]
    assert reader.block(shard, 1) == (folder / shard.file).read_bytes()[BLOCK_SIZE_BYTES : 2 * BLOCK_SIZE_BYTES]


def test_every_damaged_shard_is_named_once(folder: Path, server: RangeServer) -> None:
    """Also while another one has failed before; a block that is whole is used meanwhile."""
    said: list[str] = []
    reader, shards = reader_of(server.url, said, cache_blocks=8), shards_of(folder)
    server.fault = "flips"
    over = threading.Event()
    reader._pause = lambda _: over.wait(0.01)
    reader.expect([(shards[0], 0), (shards[0], 1), (shards[1], 0)])
    with pytest.raises(RemoteError, match="SHA-256"):
        reader.read_block(shards[0], 0)
    while len(said) < 2 or len(server.asked) < 12:
        over.wait(0.001)
    assert sorted(line.split(": ")[0].rpartition("/")[2] for line in said) == sorted(shard.file for shard in shards[:2])
    reader.close()
    over.set()
    with pytest.raises(DataError, match="is read no more"):
        reader.block(shards[0], 0)


def copied(folder: Path, out: Path, change: Callable[[Path], object]) -> Path:
    """A copy in which something is changed."""
    shutil.copytree(folder, out)
    change(out)
    return out


def changed_index(**changes: object) -> Callable[[Path], object]:
    """An index with other values."""

    def change(out: Path) -> None:
        path = out / "index.json"
        path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))

    return change


def of_an_earlier_swarmfree(out: Path) -> None:
    """Without hashes of blocks."""
    path = out / "index.json"
    content = json.loads(path.read_bytes())
    content["format"] = "swarmfree-tokens-1"
    for half in ("train", "val"):
        for shard in content[half]["shards"]:
            del shard["blocks_sha256"]
    path.write_text(json.dumps(content))
    try:
        find_data(str(out))
    except DataError as error:
        content["dataset_hash"] = str(error).rpartition("what it lists has ")[2][:12]
    import hashlib

    halves = [
        [content[half]["documents"], content[half]["text_bytes"], [[s["tokens"], s["sha256"]] for s in content[half]["shards"]]]
        for half in ("train", "val")
    ]
    listed = ["swarmfree-tokens-1", 256, "", "", halves]
    content["dataset_hash"] = hashlib.sha256(json.dumps(listed, separators=(",", ":")).encode()).hexdigest()
    path.write_text(json.dumps(content))


TOKENIZER = {"vocabulary": 256, "sha256": "", "end_of_text": ""}


def half(file: str = "val.bin", text_bytes: int = 0) -> dict[str, object]:
    """One half of an index."""
    return {"documents": 0, "text_bytes": text_bytes, "shards": [{"file": file, "tokens": 1, "sha256": "0" * 64}]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda out: (out / "index.json").unlink(), "index.json: not there (404)"),
        (lambda out: (out / "index.json").write_text("<html>"), "index.json: not JSON; the folder of a dataset"),
        (lambda out: (out / "index.json").write_text("[]"), "index.json: not the index of a dataset"),
        (lambda out: (out / "index.json").write_text("{}"), "format None; this swarmfree reads swarmfree-tokens-2"),
        (changed_index(dataset_hash="0" * 64), "says hash 000000000000, but what it lists has"),
        (changed_index(train={}), "not the index of a dataset (KeyError"),
        (changed_index(tokenizer=TOKENIZER | {"vocabulary": math.inf}), "not the index of a dataset (OverflowError"),
        (changed_index(tokenizer=TOKENIZER | {"vocabulary": -5}), "a tokenizer of -5 symbols"),
        (changed_index(val=half(text_bytes=-1)), "less than no text"),
        (changed_index(val=half("a\0.bin")), "a name that cannot be shown"),
        (changed_index(val=half("\ud800.bin")), "a name that cannot be shown"),
        (changed_index(val=half("..")), "a shard lies in another folder"),
        (lambda out: (out / "index.json").write_text('{"format": "swarmfree-tokens-9"}'), "format 'swarmfree-tokens-9'"),
        (
            of_an_earlier_swarmfree,
            "without hashes of blocks, as an earlier swarmfree wrote it; prepare it again, or copy it here",
        ),
    ],
)
def test_what_is_no_dataset_behind_a_url_is_told(
    folder: Path, tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    """Before a token is read, in one line that names the file."""
    with RangeServer(copied(folder, tmp_path / "out", change)) as server, pytest.raises(DataError) as told:
        find_data(server.url)
    assert words in str(told.value)
    assert str(told.value).startswith(f"{server.url}/index.json: ")
    assert "\n" not in str(told.value)


def test_a_dataset_of_an_earlier_swarmfree_is_read_where_it_lies(folder: Path, tmp_path: Path) -> None:
    """Its hash is what it was."""
    old = find_data(str(copied(folder, tmp_path / "out", of_an_earlier_swarmfree)))
    new = find_data(str(folder))
    assert isinstance(old, Dataset)
    assert isinstance(new, Dataset)
    assert old.train.tokens == new.train.tokens
    assert old.dataset_hash != new.dataset_hash


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda shard: shard.write_bytes(shard.read_bytes()[:-2]),
            "29,952 bytes from 131,072 on were asked for, and 29,950 came",
        ),
        (lambda shard: shard.write_bytes(b"\1" + shard.read_bytes()[1:]), "the shard is damaged or another one"),
        (lambda shard: shard.unlink(), "not there (404)"),
        (lambda shard: shard.with_suffix(".blocks").unlink(), ".blocks: not there (404)"),
        (lambda shard: shard.with_suffix(".blocks").write_bytes(bytes(96)), "not the hashes of this shard"),
        (lambda shard: shard.with_suffix(".blocks").write_bytes(bytes(1 << 20)), "1,048,576 bytes; at most 96 expected"),
    ],
)
def test_a_shard_that_is_not_the_index_s_is_refused_by_name(
    folder: Path, tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    """``data info --check`` says so at once."""
    shard = shards_of(folder)[0]
    changed = copied(folder, tmp_path / "out", lambda out: change(out / shard.file))
    with RangeServer(changed) as server, pytest.raises(RemoteError) as told:
        check_shard(reader_of(server.url, []), shard, "")
    assert f"{server.url}/{shard.file.removesuffix('.bin')}" in str(told.value)
    assert words in str(told.value)


def test_a_shard_that_grew_is_the_same_as_far_as_the_run_reads(folder: Path, tmp_path: Path) -> None:
    """What was appended is never asked for."""
    shard = shards_of(folder)[0]
    content = (folder / shard.file).read_bytes() + bytes(99_999)
    grown = copied(folder, tmp_path / "out", lambda out: (out / shard.file).write_bytes(content))
    with RangeServer(grown) as server:
        dataset = find_data(str(folder))
        assert isinstance(dataset, Dataset)
        check_shard(reader_of(server.url, []), shard, dataset.train.shards[0].sha256)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/data", "'ftp://host/data': http://, https://, s3://, gs://, az:// with a host or a bucket expected"),
        ("https://", "with a host or a bucket expected"),
        ("s3://", "with a host or a bucket expected"),
        ("file:///etc", "with a host or a bucket expected"),
        ("http://[::1/data", "no URL: Invalid IPv6 URL"),
        ("http://host:99999/data", "no URL: Port out of range"),
        ("https://me:secret@host/data", "https://host...: no user, password, ? or #"),
        ("https://host/data?token=secret", "https://host...: no user, password, ? or #"),
        ("http://127.0.0.1:1/data", "http://127.0.0.1:1/data/index.json: nobody answers there"),
    ],
)
def test_a_url_that_leads_nowhere_is_told(url: str, words: str) -> None:
    """In one line, without what may be secret."""
    with pytest.raises(DataError) as told:
        find_data(url)
    assert words in str(told.value)
    assert "secret" not in str(told.value)
    assert "\n" not in str(told.value)


def test_without_obstore_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A volunteer does not need it."""
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(SwarmfreeError, match=r"needs obstore; it comes with: pip install"):
        find_data("s3://bucket/data")


def test_tokens_in_a_bucket_are_those_on_the_disk(
    folder: Path, tmp_path: Path, small_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By way of a real endpoint that speaks S3; a key that is not there, and a bucket that is not,
    are told.
    """
    import obstore
    from obstore.store import S3Store

    with s3_endpoint() as endpoint:
        for name, value in endpoint.environment().items():
            monkeypatch.setenv(name, value)
        store = S3Store(BUCKET, client_options={"allow_http": True})
        for path in folder.iterdir():
            obstore.put(store, f"some/books/{path.name}", path)
        here, there = (tokens_at(d, tmp_path / "cache", small_manifest) for d in (str(folder), f"s3://{BUCKET}/some/books"))
        assert [there.microbatch(number) for number in range(8)] == [here.microbatch(number) for number in range(8)]
        dataset = find_data(f"s3://{BUCKET}/some/books/")
        assert isinstance(dataset, Dataset)
        assert dataset.name == "books"
        assert len(half_of(dataset, dataset.held_out).read(0, 50)) == 50
        for url in (f"s3://{BUCKET}/none", "s3://no-such-bucket/books"):
            with pytest.raises(DataError, match=rf"{url}/index.json: not there \(404\)"):
                find_data(url)


def test_reads_of_a_process_that_ends_are_not_waited_for() -> None:
    """The threads are daemons."""
    pool = remote_shards.DaemonPool(2, "reads")
    ended = threading.Event()
    future = pool.submit(lambda: threading.current_thread().daemon)
    assert future.result(5)
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(5)
    pool.close()
    pool.submit(ended.set)

"""Snapshots in a bucket behind a real endpoint: whole sets only, whatever the endpoint does."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import IO, Literal

import obstore
import pytest
import pytest_asyncio
from obstore.store import S3Store

from benchmarks.s3_endpoint import BUCKET, S3Endpoint, s3_endpoint
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.storage import snapshot_store
from swarmfree.storage.snapshot_store import PART_SIZE_BYTES, BucketSnapshots
from swarmfree.storage.snapshots import FolderSnapshots
from tests.storage.faulty_endpoint import FaultyEndpoint
from tests.storage.test_snapshots import RUN, SNAPSHOT, numbered

HELD = SNAPSHOT.held
LARGE = [bytes(PART_SIZE_BYTES), b"\1" * 64]
"""Written in more than one part."""
SOON = timedelta(seconds=0.2)


async def at_once() -> None:
    """Nothing keeps it from its place."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Endpoint]:
    """One for all tests here."""
    with s3_endpoint() as endpoint:
        yield endpoint


@pytest_asyncio.fixture
async def endpoint(server: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FaultyEndpoint]:
    """It, behind what makes it fail; the environment says where."""
    async with FaultyEndpoint(server.port) as proxy:
        for name, value in server.environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


async def store_of(folder: Path, parts: list[bytes] = LARGE) -> BucketSnapshots:
    """Of a peer with this snapshot on its disk; each test's own prefix."""
    snapshots = FolderSnapshots(folder / "disk", RUN)
    await snapshots.write(SNAPSHOT, parts, ())
    return BucketSnapshots(url(folder), snapshots, RUN)


def url(folder: Path) -> str:
    """No other test looks there."""
    return f"s3://{BUCKET}/{folder.name}"


def newcomer(folder: Path, name: str = "empty") -> tuple[FolderSnapshots, BucketSnapshots]:
    """The store as a peer has it whose disk is empty."""
    disk = FolderSnapshots(folder / name, RUN)
    return disk, BucketSnapshots(url(folder), disk, RUN)


async def read(bucket: S3Store, key: str) -> bytes:
    """An object."""
    return bytes(await (await obstore.get_async(bucket, key)).bytes_async())


async def test_a_peer_with_an_empty_disk_gets_what_was_uploaded(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """In several parts, to the bit, in place of another stage of the same set; nothing else is
    uploaded for it a second time.
    """
    store = await store_of(tmp_path)
    await store.upload(HELD)
    await store.upload(HELD)
    disk, theirs = newcomer(tmp_path)
    other = Snapshot(1, SNAPSHOT.record, {}, 2)
    await disk.write(other, LARGE, ())
    assert await theirs.stored() == (HELD,)
    await theirs.fetch(HELD, at_once)
    assert disk.held() == (HELD,)
    assert await disk.read(HELD) == SNAPSHOT
    assert [await disk.read_part(HELD, part) for part in range(2)] == LARGE
    assert len(await theirs._objects()) == 2
    assert not [place.name for place in disk._folder.iterdir() if place.name.startswith(".")]


async def test_what_may_not_take_a_place_leaves_what_lies_there(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """That is asked once all of it has come, and nothing is left of it."""
    await (await store_of(tmp_path)).upload(HELD)
    disk, theirs = newcomer(tmp_path)
    other = Snapshot(1, SNAPSHOT.record, {}, 2)
    await disk.write(other, LARGE, ())
    come = list[int]()

    async def never() -> None:
        come.extend(place.stat().st_size for place in disk._folder.iterdir() if place.name.startswith("."))
        raise SwarmfreeError("nobody else has what lies here")

    with pytest.raises(SwarmfreeError, match="nobody else has"):
        await theirs.fetch(HELD, never)
    assert len(come) == 1
    assert come[0] >= PART_SIZE_BYTES
    assert disk.held() == (other.held,)
    assert not [place.name for place in disk._folder.iterdir() if place.name.startswith(".")]
    await theirs.fetch(HELD, at_once)
    assert disk.held() == (HELD,)


async def test_another_runs_snapshots_are_passed_over(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """Runs share a bucket and a prefix."""
    await (await store_of(tmp_path)).upload(HELD)
    assert await BucketSnapshots(url(tmp_path), newcomer(tmp_path)[0], "ef" * 32).stored() == ()


async def test_what_is_torn_is_never_told_of(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """Data without a record, a record without data, data of another size, a record of another run,
    of another file, or of nothing.
    """
    store = await store_of(tmp_path, parts=[b"\1" * 8, b"\2" * 8])
    await store.upload(HELD)
    record_key = next(key for key in await store._objects() if key.endswith(".json"))
    data_key = next(key for key in await store._objects() if not key.endswith(".json"))
    bucket, prefix = store._store(), store._prefix
    content = await read(bucket, f"{prefix}/{record_key}")
    data = await read(bucket, f"{prefix}/{data_key}")
    said = json.loads(content)
    for record in (
        None,
        b"",
        b"{}",
        b"[1]",
        json.dumps(said | {"run": "ef" * 32}).encode(),
        json.dumps(said | {"data": data_key.replace("stage-2", "stage-1")}).encode(),
        json.dumps(said | {"size_bytes": said["size_bytes"] + 1}).encode(),
        json.dumps(said | {"size_bytes": "many"}).encode(),
        json.dumps({name: value for name, value in said.items() if name != "blake3"}).encode(),
        content + bytes(5000),
    ):
        await obstore.delete_async(bucket, f"{prefix}/{record_key}")
        if record is not None:
            await obstore.put_async(bucket, f"{prefix}/{record_key}", record)
        assert await newcomer(tmp_path)[1].stored() == (), record
    await obstore.put_async(bucket, f"{prefix}/{record_key}", content)
    assert await newcomer(tmp_path)[1].stored() == (HELD,)
    await obstore.put_async(bucket, f"{prefix}/{data_key}", data[:-1])
    assert await newcomer(tmp_path)[1].stored() == ()
    await obstore.delete_async(bucket, f"{prefix}/{data_key}")
    assert await newcomer(tmp_path)[1].stored() == ()


async def test_an_endpoint_that_dies_in_mid_upload_leaves_nothing_to_fetch(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """Wherever it dies; once it is back, the upload is done from its beginning."""
    store = await store_of(tmp_path)
    for bytes_through in (0, 1 << 16, PART_SIZE_BYTES // 2):
        endpoint.fault, endpoint.dies_after_bytes = "dies", bytes_through
        with pytest.raises(SwarmfreeError, match=r"^s3://[^\n]* failed: [^\n]*$"):
            await store.upload(HELD)
        endpoint.fault = "none"
        assert await newcomer(tmp_path)[1].stored() == (), bytes_through
    await store.upload(HELD)
    assert await newcomer(tmp_path)[1].stored() == (HELD,)


async def test_an_endpoint_that_dies_in_mid_fetch_leaves_nothing_on_the_disk(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """What lay there is there."""
    await (await store_of(tmp_path)).upload(HELD)
    disk, theirs = newcomer(tmp_path)
    other = Snapshot(1, SNAPSHOT.record, {}, 2)
    await disk.write(other, LARGE, ())
    assert await theirs.stored() == (HELD,)
    endpoint.fault, endpoint.dies_after_bytes = "dies", PART_SIZE_BYTES // 2
    with pytest.raises(SwarmfreeError, match="failed: "):
        await theirs.fetch(HELD, at_once)
    assert [place.name for place in disk._folder.iterdir()] == [disk.place(other.held).name]


@pytest.mark.parametrize("fault", ["refuses", "hangs", "down"])
async def test_an_endpoint_that_does_not_serve_is_told_of_in_one_line(
    endpoint: FaultyEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Within seconds, and the loop that trains runs on meanwhile."""
    store = await store_of(tmp_path)
    store._answered_within = SOON
    if fault == "down":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    else:
        endpoint.fault = "refuses" if fault == "refuses" else "hangs"
    expected = (
        "failed: the credentials in the environment may not do that .*or this machine's clock is minutes off"
        if fault == "refuses"
        else "failed: "
    )
    longest_s, begun_s = 0.0, time.monotonic()

    async def tick() -> None:
        nonlocal longest_s
        while True:
            looked_s = time.monotonic()
            await asyncio.sleep(0.01)
            longest_s = max(longest_s, time.monotonic() - looked_s)

    async with asyncio.TaskGroup() as group:
        ticks = group.create_task(tick())
        for call in (store.upload(HELD), store.stored()):
            with pytest.raises(SwarmfreeError, match=rf"^{store.where}: [^\n]*{expected}[^\n]*$"):
                await call
        ticks.cancel()
    assert time.monotonic() - begun_s < 20
    assert longest_s < (time.monotonic() - begun_s) / 2 + 0.5


async def test_a_slow_endpoint_gets_it_all_the_same(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """A part that takes longer than a request may is another matter."""
    store = await store_of(tmp_path, parts=[bytes(1 << 19)])
    endpoint.fault = "slow"
    await store.upload(HELD)
    assert await store.stored() == (HELD,)


async def test_a_fetch_may_take_longer_than_a_request(
    endpoint: FaultyEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage of some gigabytes does; what one request brings comes in time."""
    store = await store_of(tmp_path, parts=[bytes(4 << 20), b"\1" * 64])
    await store.upload(HELD)
    disk, theirs = newcomer(tmp_path)
    theirs._answered_within = timedelta(seconds=0.3)
    monkeypatch.setattr(snapshot_store, "PART_SIZE_BYTES", 1 << 17)
    endpoint.fault = "slow"
    begun_s = time.monotonic()
    await theirs.fetch(HELD, at_once)
    assert time.monotonic() - begun_s > 4 * theirs._answered_within.total_seconds(), "else this shows nothing"
    assert disk.held() == (HELD,)


async def test_of_two_writers_at_once_one_has_written(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """One record, and the file that it names, though their files differ; nothing is left of the
    other.
    """
    (tmp_path / "b").mkdir()
    first = await store_of(tmp_path)
    disk = FolderSnapshots(tmp_path / "b", RUN)
    await disk.write(replace(SNAPSHOT, past={}), [LARGE[1], LARGE[0]], ())
    second = BucketSnapshots(url(tmp_path), disk, RUN)
    async with asyncio.TaskGroup() as group:
        for store in (first, second):
            group.create_task(store.upload(HELD))
    got, theirs = newcomer(tmp_path)
    assert await theirs.stored() == (HELD,)
    assert len(await theirs._objects()) == 2
    await theirs.fetch(HELD, at_once)
    assert [await got.read_part(HELD, part) for part in range(2)] in (LARGE, [LARGE[1], LARGE[0]])


@pytest.mark.parametrize("snapshot", [replace(SNAPSHOT, past={}), SNAPSHOT], ids=["another file", "the same file"])
async def test_who_was_second_removes_its_own_file_only(endpoint: FaultyEndpoint, tmp_path: Path, snapshot: Snapshot) -> None:
    """The record came to be while this one wrote; where both have the same file, it stays."""
    first = await store_of(tmp_path)
    disk = FolderSnapshots(tmp_path / "b", RUN)
    await disk.write(snapshot, LARGE, ())

    class Late(BucketSnapshots):
        async def _write(self, key: str, content: bytes, mode: Literal["create", "overwrite"]) -> bool:
            await first.upload(HELD)
            return await super()._write(key, content, mode)

    await Late(url(tmp_path), disk, RUN).upload(HELD)
    assert await first.stored() == (HELD,)
    assert len(await first._objects()) == 2


async def test_what_was_changed_in_the_bucket_is_refused_by_name(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """Of the right size and with other bits: it is told of no more once it has come so twice, and
    nothing comes to the disk. The first time it may have been damaged on its way.
    """
    store = await store_of(tmp_path, parts=[b"\1" * 8, b"\2" * 8])
    await store.upload(HELD)
    key = next(key for key in await store._objects() if not key.endswith(".json"))
    data = bytearray(await read(store._store(), f"{store._prefix}/{key}"))
    data[-1] ^= 1
    await obstore.put_async(store._store(), f"{store._prefix}/{key}", bytes(data))
    disk, theirs = newcomer(tmp_path)
    for _ in range(2):
        assert await theirs.stored() == (HELD,)
        with pytest.raises(SwarmfreeError, match=f"{key}: .* it is not what was uploaded, and is not used"):
            await theirs.fetch(HELD, at_once)
    assert await theirs.stored() == ()
    assert not list(disk._folder.iterdir())


async def test_what_a_version_before_has_uploaded_is_fetched_and_checked(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """It named data by SHA-256."""
    store = await store_of(tmp_path, parts=[b"\1" * 8, b"\2" * 8])
    await store.upload(HELD)
    bucket, prefix, keys = store._store(), store._prefix, sorted(await store._objects())
    (data_key,), (record_key,) = ([key for key in keys if key.endswith(".json") is is_record] for is_record in (False, True))
    data, said = await read(bucket, f"{prefix}/{data_key}"), json.loads(await read(bucket, f"{prefix}/{record_key}"))
    digest = hashlib.sha256(data).hexdigest()
    before = data_key.replace(said.pop("blake3"), digest)
    await obstore.delete_async(bucket, f"{prefix}/{data_key}")
    await obstore.put_async(bucket, f"{prefix}/{before}", data)
    await obstore.put_async(bucket, f"{prefix}/{record_key}", json.dumps(said | {"data": before, "sha256": digest}).encode())
    disk, theirs = newcomer(tmp_path)
    await theirs.fetch(HELD, at_once)
    assert await disk.read(HELD) == SNAPSHOT
    await obstore.put_async(bucket, f"{prefix}/{before}", data[:-1] + b"\3")
    with pytest.raises(SwarmfreeError, match=r"sha256 .* it is not what was uploaded"):
        await newcomer(tmp_path, "another")[1].fetch(HELD, at_once)


async def test_a_record_that_says_nothing_is_written_again(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """Else its set would never be whole, and each upload would take itself for done."""
    store = await store_of(tmp_path, parts=[b"\1" * 8, b"\2" * 8])
    await store.upload(HELD)
    key = next(key for key in await store._objects() if key.endswith(".json"))
    for content in (b"", b"{", b"[]", b"x" * 5000, b"[" * 4000):
        await obstore.put_async(store._store(), f"{store._prefix}/{key}", content)
        _, theirs = newcomer(tmp_path)
        assert await theirs.stored() == ()
        await store.upload(HELD)
        assert await theirs.stored() == (HELD,)
        await theirs.fetch(HELD, at_once)
    assert len(await store._objects()) == 2


async def test_old_sets_go_and_may_come_again(endpoint: FaultyEndpoint, tmp_path: Path) -> None:
    """All before an iteration, of all stages, and nothing of it or later."""
    store = await store_of(tmp_path, parts=[b"\1" * 8, b"\2" * 8])
    await store.upload(HELD)
    await store.prune(HELD.iteration)
    assert await store.stored() == (HELD,)
    await store.prune(HELD.iteration + 1)
    assert await store._objects() == {}
    with pytest.raises(SwarmfreeError, match=f"no snapshot of stage {HELD.stage} of iteration {HELD.iteration} any more"):
        await newcomer(tmp_path)[1].fetch(HELD, at_once)
    await store.upload(HELD)
    assert await store.stored() == (HELD,)


async def test_what_is_not_set_up_is_told_in_one_line(
    endpoint: FaultyEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such bucket, an address that is none, and no library."""
    disk = (await store_of(tmp_path))._folder
    for call in ("stored", "upload"):
        store = BucketSnapshots("s3://nobodys", disk, RUN)
        with pytest.raises(SwarmfreeError, match=r"^s3://nobodys: [^\n]*no such bucket"):
            await (store.stored() if call == "stored" else store.upload(HELD))
    with monkeypatch.context() as environment:
        for name, value in (("ENDPOINT_URL", "not an address"), ("ENDPOINT_URL", "localhost:9000"), ("ACCESS_KEY_ID", "a\n")):
            environment.setenv(f"AWS_{name}", value)
            with pytest.raises(SwarmfreeError, match=r"^s3://[^\n]*$") as told:
                store = BucketSnapshots(url(tmp_path), disk, RUN, endpoint=value if name == "ENDPOINT_URL" else "")
                await store.stored()
            assert (repr(value) in str(told.value)) == (name == "ENDPOINT_URL"), "an address that is none is shown"
            environment.undo()
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(SwarmfreeError, match=r"obstore is not installed; it comes with: pip install '\.\[s3\]'"):
        await BucketSnapshots(url(tmp_path), disk, RUN).stored()


async def test_what_is_uploaded_is_not_written_over_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload may take longer than it is until the next two are written."""
    disk, found = FolderSnapshots(tmp_path, RUN), list[bytes]()
    snapshot, parts = numbered(1)
    await disk.write(snapshot, parts, ())
    content, store = disk.place(snapshot.held).read_bytes(), BucketSnapshots("s3://bucket", disk, RUN)

    async def no_record(_: str) -> None:
        return

    async def put(_: str, file: IO[bytes]) -> None:
        for number in (2, 3):
            await disk.write(*numbered(number), ())
        file.seek(0)
        found.append(file.read())

    async def write(*_: object) -> bool:
        return True

    monkeypatch.setattr(store, "_record", no_record)
    monkeypatch.setattr(store, "_put", put)
    monkeypatch.setattr(store, "_write", write)
    await store.upload(snapshot.held)
    assert found == [content]

"""The snapshot store port over a bucket that speaks S3, by way of obstore.

A snapshot there is two objects: the file as it lies on its peer's disk, under a name that holds its
BLAKE3, written in parts where it is large; and after that a record of a few hundred bytes, created
only where none is there. The first record counts, and names the file that belongs to it. So nobody
reads half of anything, and of two writers one has written nothing.

Endpoint, region and credentials stand in the environment, where obstore reads them as other S3
clients do: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY. Where several
writers share a bucket for long, a lifecycle rule that ends incomplete multipart uploads removes
what killed ones leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import mmap
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

from blake3 import blake3

from swarmfree.protocol.canonical_json import json_object
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.storage.snapshots import CHECKSUMS, FolderSnapshots, checksum_in

if TYPE_CHECKING:
    from obstore.store import S3Store

PART_SIZE_BYTES, PARTS_AT_ONCE = 5 << 20, 4
"""S3 takes no smaller ones but the last."""
CONNECTED_WITHIN, ANSWERED_WITHIN = timedelta(seconds=5), timedelta(seconds=60)
RETRIES_MAX, RETRIED_WITHIN = 2, timedelta(seconds=30)
RECORD_SIZE_BYTES_MAX, DAMAGED_TIMES = 4096, 2
"""What came damaged once may have been so on its way alone."""
_INSTANCE_METADATA = "169.254.169.254"
"""Where obstore looks for credentials last."""
_REFUSED = (
    "the credentials in the environment may not do that (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), "
    "or this machine's clock is minutes off"
)
_ADDRESS = re.compile(r"https?://(\[[0-9a-fA-F:]+\]|[^/\s:\[\]]+)(:\d+)?(/\S*)?")
_KEY = re.compile(r"iteration-(\d{9})/([0-9a-f]{64})/stage-(\d{1,4})(\.json|-[0-9a-f]{64}\.safetensors)")


class BucketSnapshots:
    """The snapshots of one run in a bucket.

    Args:
        url: `s3://BUCKET` or `s3://BUCKET/PREFIX`.
        folder: this peer's own snapshots: what is uploaded lies there, what is fetched comes there.
        run: the manifest's fingerprint; snapshots of another run are passed over.
        answered_within: a request that takes longer has failed.
        endpoint: AWS_ENDPOINT_URL as the environment has it, to be looked at; empty = not set.
    """

    def __init__(
        self, url: str, folder: FolderSnapshots, run: str, answered_within: timedelta = ANSWERED_WITHIN, endpoint: str = ""
    ) -> None:
        """Nobody is asked yet."""
        self.where = url
        self._folder, self._run, self._answered_within = folder, run, answered_within
        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/{run}" if prefix else run
        self._opened: S3Store | None = None
        self._endpoint = endpoint
        self._records: dict[str, dict[str, Any]] = {}
        self._damaged = Counter[HeldSnapshot]()

    async def stored(self) -> tuple[HeldSnapshot, ...]:
        """Those whose data is there as their record names it, newest first.

        Raises:
            SwarmfreeError: it does not answer, or refuses.
        """
        objects = await self._objects()
        records = {key: held for key in objects if (held := _held(key)) is not None and key.endswith(".json")}
        self._records = {key: record for key, record in self._records.items() if key in records}
        found = []
        for key, held in records.items():
            record = await self._record(key)
            is_there = record is not None and objects.get(record["data"]) == record["size_bytes"]
            if is_there and self._damaged[held] < DAMAGED_TIMES:
                found.append(held)
        return tuple(sorted(found, key=lambda held: (-held.iteration, held.stage, held.lineage)))

    async def upload(self, held: HeldSnapshot) -> None:
        """Copy one there from this peer's disk, unless it is there.

        Raises:
            SwarmfreeError: it does not answer, or refuses, or the disk does.
        """
        key = _key(held)
        self._records.pop(key, None)  # it may have been removed
        if await self._record(key) is not None:
            return
        with self._folder.opened(held) as file:
            size_bytes, digest = await asyncio.to_thread(_digest, file)
            data = _data_key(key, digest)
            await self._put(data, file)
        record = {"run": self._run, "data": data, "size_bytes": size_bytes, "blake3": digest}
        content = json.dumps(record).encode()
        if not await self._write(key, content, "create"):
            first = await self._record(key)
            if first is None:  # what is there says nothing: else no set of this iteration were whole, ever
                await self._write(key, content, "overwrite")
            elif first["data"] != data:  # of two writers the other one was first
                await self._delete([data])

    async def fetch(self, held: HeldSnapshot, may_replace: Callable[[], Awaitable[None]]) -> None:
        """Copy one from there to this peer's disk, checked.

        Raises:
            SwarmfreeError: it does not answer, or refuses, or what it has is not what was uploaded;
                or it may not take the place of what lies there.
        """
        import obstore  # noqa: PLC0415 - only where a run has a store

        record = await self._record(_key(held))
        if record is None:
            raise SwarmfreeError(f"{self.where}: no snapshot of stage {held.stage} of iteration {held.iteration} any more")
        checksum, size_bytes = CHECKSUMS[record["checksum"]](), 0
        async with self._folder.received(held, may_replace) as file:
            with self._told(f"reading {record['data']}"):
                # In requests of their own: one for all would have to end within `answered_within`
                store, place, whole = self._store(), f"{self._prefix}/{record['data']}", record["size_bytes"]
                for start in range(0, whole, PART_SIZE_BYTES):
                    length = min(PART_SIZE_BYTES, whole - start)
                    piece = await obstore.get_range_async(store, place, start=start, length=length)
                    await asyncio.to_thread(file.write, piece)
                    await asyncio.to_thread(checksum.update, piece)
                    size_bytes += len(piece)
            if (size_bytes, checksum.hexdigest()) != (record["size_bytes"], record["digest"]):
                self._damaged[held] += 1
                expected = f"{record['size_bytes']:,} bytes with {record['checksum']} {record['digest'][:16]} expected"
                raise SwarmfreeError(
                    f"{self.where}/{self._run}/{record['data']}: {expected}, {size_bytes:,} bytes with "
                    f"{checksum.hexdigest()[:16]} found: it is not what was uploaded, and is not used"
                )

    async def prune(self, before: int) -> None:
        """Remove all that is ready for an iteration before this one, records first: what is half
        removed is told of no more.

        Raises:
            SwarmfreeError: it does not answer, or refuses.
        """
        old = [key for key in await self._objects() if (held := _held(key)) is not None and held.iteration < before]
        await self._delete([key for key in old if key.endswith(".json")])
        await self._delete([key for key in old if not key.endswith(".json")])

    # ---- the bucket ------------------------------------------------------------------------------

    def _store(self) -> S3Store:
        """Open it.

        Raises:
            SwarmfreeError: obstore is not installed, or something in the environment is no setting.
        """
        if self._opened is None:
            try:
                from obstore.exceptions import BaseError  # noqa: PLC0415 - only where a run has a store
                from obstore.store import S3Store  # noqa: PLC0415 - as above
            except ImportError:
                why = "obstore is not installed; it comes with: pip install '.[s3]' in a clone of swarmfree"
                raise SwarmfreeError(f"{self.where}: {why}") from None
            # Else obstore panics at each request, with pages of its own trace on stderr
            if self._endpoint and not _ADDRESS.fullmatch(self._endpoint):
                why = f"AWS_ENDPOINT_URL in the environment is {self._endpoint!r}: http://HOST:PORT or https://HOST expected"
                raise SwarmfreeError(f"{self.where}: {why}")
            try:
                self._opened = S3Store(
                    self._bucket,
                    client_options={
                        "allow_http": True,  # an endpoint without TLS is its owner's choice
                        "connect_timeout": min(CONNECTED_WITHIN, self._answered_within),
                        "timeout": self._answered_within,
                    },
                    retry_config={"max_retries": RETRIES_MAX, "retry_timeout": RETRIED_WITHIN},
                )
            except BaseError as error:
                raise SwarmfreeError(f"{self.where}: AWS_... in the environment: {_one_line(error)}") from error
        return self._opened

    async def _objects(self) -> dict[str, int]:
        """Key below this run -> size in bytes."""
        import obstore  # noqa: PLC0415 - only where a run has a store

        store, cut, found = self._store(), len(self._prefix) + 1, dict[str, int]()
        with self._told("listing"):
            async for some in obstore.list(store, self._prefix):
                found.update({one["path"][cut:]: one["size"] for one in some})
        return found

    async def _record(self, key: str) -> dict[str, Any] | None:
        """What a record says, None where there is none that says anything; records never change."""
        import obstore  # noqa: PLC0415 - only where a run has a store

        if key not in self._records:
            store = self._store()
            with self._told(f"reading {key}"):
                try:
                    answer = await obstore.get_async(store, f"{self._prefix}/{key}")
                    content = bytes(await answer.bytes_async()) if answer.meta["size"] <= RECORD_SIZE_BYTES_MAX else b""
                except FileNotFoundError:
                    return None
            with contextlib.suppress(LookupError, TypeError, ValueError):
                said = json_object(content, RECORD_SIZE_BYTES_MAX)
                data, (checksum, digest) = str(said["data"]), checksum_in(said)
                if said["run"] == self._run and data == _data_key(key, str(digest)):
                    size_bytes = int(said["size_bytes"])
                    self._records[key] = {"data": data, "size_bytes": size_bytes, "checksum": checksum, "digest": str(digest)}
        return self._records.get(key)

    async def _put(self, key: str, file: IO[bytes]) -> None:
        import obstore  # noqa: PLC0415 - only where a run has a store

        store, content = self._store(), memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        parts = (content[start : start + PART_SIZE_BYTES] for start in range(0, len(content), PART_SIZE_BYTES))
        with self._told(f"writing {key}"):
            # Not as a file, each part of which were read into memory of its own, at twice the cost
            place = f"{self._prefix}/{key}"
            await obstore.put_async(store, place, parts, chunk_size=PART_SIZE_BYTES, max_concurrency=PARTS_AT_ONCE)

    async def _write(self, key: str, content: bytes, mode: Literal["create", "overwrite"]) -> bool:
        """Write a record; False where it is to be created and there is one."""
        import obstore  # noqa: PLC0415 - only where a run has a store
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415 - as above

        store = self._store()
        with self._told(f"writing {key}"):
            try:
                await obstore.put_async(store, f"{self._prefix}/{key}", content, mode=mode)
            except AlreadyExistsError:
                return False
        return True

    async def _delete(self, keys: list[str]) -> None:
        import obstore  # noqa: PLC0415 - only where a run has a store

        store = self._store()
        if keys:
            with self._told(f"removing {len(keys)} old objects"):
                await obstore.delete_async(store, [f"{self._prefix}/{key}" for key in keys])

    def _told(self, what: str) -> _InOneLine:
        return _InOneLine(self.where, what)


class _InOneLine:
    """Raises what obstore says about the block as one `SwarmfreeError`.

    A setting that it cannot use, such as credentials with a line break, makes it panic: that has a
    class of its own, which no module gives.
    """

    def __init__(self, where: str, what: str) -> None:
        self._where, self._what = where, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        from obstore.exceptions import (  # noqa: PLC0415 - only where a run has a store
            BaseError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        how = ""
        match error:
            case PermissionDeniedError() | UnauthenticatedError():
                how = f" failed: {_REFUSED}"
            case FileNotFoundError():
                how = " failed: no such bucket, or not there any more"
            case BaseError():
                how = f" failed: {_one_line(error)}"
            case Exception() if type(error).__name__ == "RustPanic":
                how = " failed: a setting in the environment (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, ...) is no such thing"
        if how:
            raise SwarmfreeError(f"{self._where}: {self._what}{how}") from error


def _key(held: HeldSnapshot) -> str:
    """Of its record."""
    return f"iteration-{held.iteration:09}/{held.lineage}/stage-{held.stage}.json"


def _data_key(record: str, digest: str) -> str:
    """Of the data that a record of this key names by its digest."""
    return f"{record.removesuffix('.json')}-{digest}.safetensors"


def _held(key: str) -> HeldSnapshot | None:
    """Whose record or data it is."""
    match = _KEY.fullmatch(key)
    return HeldSnapshot(int(match[3]), int(match[1]), match[2]) if match is not None else None


def _digest(file: IO[bytes]) -> tuple[int, str]:
    """Size and BLAKE3 of a file."""
    digest = hashlib.file_digest(file, blake3)  # type: ignore[arg-type]
    return file.tell(), digest.hexdigest()


def _one_line(error: Exception) -> str:
    """What obstore says, without its innards and what comes after the first line."""
    said = re.sub(r"^Generic S3 error: (Error performing [a-z ]+: )?", "", str(error).strip()).partition("\n")[0]
    if _INSTANCE_METADATA in said:
        return "no credentials in the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
    if re.search(r" 40[13] ", said):
        return _REFUSED
    if " 404 " in said:
        return "no such bucket: it is made by hand, before the run"
    return re.sub(r"\?\S*| in [\d.]+m?s\b|, max_retries: .*?(?= - )|Error performing ", "", said)[:300] or type(error).__name__

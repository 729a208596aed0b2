"""Text that a dataset is made from: text files, JSON lines and Parquet files, folders of them, or
datasets of the Hugging Face hub, as pieces in a fixed order.

A row of JSON lines, Parquet or a hub's dataset is one document and one piece. A text file is one
document; a long one comes in parts that end with a line, so that no file is held in memory as a
whole. Reading may begin again at the position behind any piece.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from swarmfree.protocol.errors import DataError, SwarmfreeError
from swarmfree.storage.dataset import file_hash
from swarmfree.storage.hub_dataset import HubRows, is_hub_name, load_hub_rows

PART_BYTES_MIN, PART_BYTES_MAX = 512, 1 << 16
_LINE_BYTES_MAX = 1 << 28
_PARQUET_ROWS = 256
_JSON_LINES = (".jsonl", ".ndjson")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
Position = tuple[int, int]
"""Byte offset in the unpacked file and lines before it; of Parquet the row, and 0."""
BEGIN: Position = (0, 0)


@dataclass(frozen=True, slots=True)
class TextSource:
    """One file of text.

    Args:
        path: where.
        name: below the folder that was named, for the index.
        kind: how it is read.
        packing: how it is compressed, empty if it is not.
        size_bytes: as it lies.
        sha256: of the file as it lies, hex.
        rows: of a dataset of the hub.
    """

    path: Path
    name: str
    kind: Literal["text", "jsonl", "parquet", "hub"]
    packing: Literal["", "gz", "zst"]
    size_bytes: int
    sha256: str
    rows: HubRows | None = None

    def state(self) -> tuple[int, int]:
        """Time of change and size, by which a file that changes is found out; a table of the hub's
        does not.
        """
        if self.rows is not None:
            return 0, self.size_bytes
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A document, or a part of one.

    Args:
        text: never empty.
        content: the same in UTF-8.
        ends: the document ends here.
        position: where the next piece begins.
        read_bytes: how much of the file, as it lies, has been read.
    """

    text: str
    content: bytes
    ends: bool
    position: Position
    read_bytes: int


def find_sources(paths: Sequence[Path], field: str = "text", say: Callable[[str], object] = lambda _: None) -> list[TextSource]:
    """All files that were named, or lie in folders that were, in the order of their names.

    Args:
        paths: files, folders, or ``hf:OWNER/NAME``.
        field: name of the text in rows.
        say: told in one line what is downloaded.

    Raises:
        DataError: one is missing, unreadable, or there is nothing.
        SwarmfreeError: there are Parquet files and no pyarrow.
    """
    found: list[TextSource] = []
    for path in paths:
        if is_hub_name(str(path)):
            rows = load_hub_rows(str(path), field, say)
            found.append(TextSource(path, rows.name, "hub", "", rows.size_bytes, rows.sha256, rows))
            continue
        if not path.exists():
            hub = f"; for a dataset of the Hugging Face hub write hf:{path}" if _HUB_NAME.fullmatch(str(path)) else ""
            raise DataError(f"{path}: no such file or folder; text, .jsonl or .parquet files expected{hub}")
        files = [path] if path.is_file() else _files_below(path)
        found += [_source(file, file.relative_to(path.parent).as_posix()) for file in files]
    if not sum(source.size_bytes for source in found):
        raise DataError(f"{', '.join(map(str, paths))}: no file with a single byte; text expected")
    if any(source.kind == "parquet" for source in found):
        _parquet()
    return found


def _files_below(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".") and Path(place, name).is_file()]
    return sorted(found, key=lambda path: os.fsencode(path.relative_to(folder).as_posix()))


def _source(path: Path, name: str) -> TextSource:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing: Literal["", "gz", "zst"] = ""
    if suffixes and suffixes[-1] in {".gz", ".zst"}:
        packing = "gz" if suffixes.pop() == ".gz" else "zst"
    kind: Literal["text", "jsonl", "parquet"] = "text"
    if suffixes and suffixes[-1] in _JSON_LINES:
        kind = "jsonl"
    elif suffixes and suffixes[-1] == ".parquet" and not packing:
        kind = "parquet"
    return TextSource(path, name, kind, packing, path.stat().st_size, file_hash(path))


def part_size(sources: Sequence[TextSource], held_out_percent: float) -> int:
    """Bytes of the parts of a text file: so small that about eight of them are held out, between
    512 bytes and 64 KiB.
    """
    total = sum(source.size_bytes for source in sources)
    return min(PART_BYTES_MAX, max(PART_BYTES_MIN, int(total * held_out_percent / 100 / 8)))


def pieces_of(source: TextSource, position: Position, field: str, part_bytes: int) -> Iterator[TextPiece]:
    """The pieces of a file, from `position` on; empty documents are passed over.

    Args:
        source: the file.
        position: `BEGIN`, or that of a piece.
        field: name of the text in rows.
        part_bytes: of parts of text files, see `part_size`.

    Raises:
        DataError: not UTF-8, no JSON, no such field, unreadable; the line names file and place.
    """
    try:
        if source.rows is not None:
            yield from _hub_rows(source, source.rows, position)
            return
        if source.kind == "parquet":
            yield from _rows(source, position, field)
            return
        with _opened(source) as (stream, read_bytes):
            _skip(stream, position[0], source)
            if source.kind == "jsonl":
                yield from _lines(source.path, stream, position, field, read_bytes)
            else:
                yield from _parts(source.path, stream, position, part_bytes, read_bytes)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{source.path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


@contextlib.contextmanager
def _opened(source: TextSource) -> Iterator[tuple[IO[bytes], Callable[[], int]]]:
    """The unpacked bytes, and how much of the file has been read."""
    with source.path.open("rb") as raw:
        if source.packing == "gz":
            with gzip.open(raw) as stream:
                yield io.BufferedReader(stream), raw.tell
        elif source.packing == "zst":
            import zstandard  # noqa: PLC0415 - only where a file needs it

            try:
                with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as stream:
                    yield io.BufferedReader(stream), raw.tell
            except zstandard.ZstdError as error:
                raise DataError(f"{source.path}: cannot be unpacked: {error}") from error
        else:
            yield raw, raw.tell


def _skip(stream: IO[bytes], offset: int, source: TextSource) -> None:
    if not source.packing:
        stream.seek(offset)
        return
    while offset:
        passed = len(stream.read(min(offset, 1 << 20)))
        if not passed:
            raise DataError(f"{source.path}: ends before the place where the preparation had come to; it has changed")
        offset -= passed


def _parts(
    path: Path, stream: IO[bytes], position: Position, part_bytes: int, read_bytes: Callable[[], int]
) -> Iterator[TextPiece]:
    offset, _ = position
    content = _one_part(stream, part_bytes)
    while content:
        following = _one_part(stream, part_bytes)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: not UTF-8 at byte offset {offset + error.start:,} (byte 0x{content[error.start]:02x}); "
                "convert it (iconv -t UTF-8), or leave it out"
            ) from error
        offset += len(content)
        yield TextPiece(text, content, not following, (offset, 0), min(offset, read_bytes()))
        content = following


def _one_part(stream: IO[bytes], part_bytes: int) -> bytes:
    """About so many bytes, to the end of a line, or of a letter where no line ends for long."""
    content = stream.read(part_bytes)
    if len(content) == part_bytes:
        content += stream.readline(part_bytes)
        for _ in range(3):
            if not _is_cut(content):
                break
            content += stream.read(1)
    return content


def _is_cut(content: bytes) -> bool:
    """Whether the last letter, in UTF-8, is not whole."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return length > back
    return False


def _lines(path: Path, stream: IO[bytes], position: Position, field: str, read_bytes: Callable[[], int]) -> Iterator[TextPiece]:
    offset, number = position
    while line := stream.readline(_LINE_BYTES_MAX):
        offset, number = offset + len(line), number + 1
        where = f"{path}, line {number:,}"
        if len(line) == _LINE_BYTES_MAX:
            raise DataError(f"{where}: longer than {_LINE_BYTES_MAX:,} bytes; one JSON object a line expected")
        if line.isspace():
            continue
        try:
            row = json.loads(line)
        except UnicodeDecodeError as error:
            at = offset - len(line) + error.start
            raise DataError(f"{where}: not UTF-8 at byte offset {at:,}; convert it (iconv -t UTF-8)") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: no JSON ({error}); one JSON object a line expected") from error
        text = row.get(field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            keys = f"the fields {', '.join(map(str, row))}"[:80] if isinstance(row, dict) else type(row).__name__
            raise DataError(f"{where}: no text in the field {field!r}, but {keys}; name another with --field")
        if text:
            yield TextPiece(text, _encoded(text, where), True, (offset, number), min(offset, read_bytes()))


def _encoded(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: half a surrogate pair at letter {error.start:,}, which no UTF-8 has") from error


def _hub_rows(source: TextSource, rows: HubRows, position: Position) -> Iterator[TextPiece]:
    for row, text in rows.texts(position[0]):
        if isinstance(text, str) and text:
            where = f"{source.name}, row {row + 1:,}"
            yield TextPiece(text, _encoded(text, where), True, (row + 1, 0), source.size_bytes * (row + 1) // len(rows))


def _rows(source: TextSource, position: Position, field: str) -> Iterator[TextPiece]:
    pyarrow, parquet = _parquet()
    try:
        with parquet.ParquetFile(source.path) as file:
            if field not in file.schema_arrow.names:
                names = ", ".join(file.schema_arrow.names)[:80]
                raise DataError(f"{source.path}: no column {field!r}, but {names}; name another with --field")
            total, row = file.metadata.num_rows, 0
            groups: list[int] = []
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if not groups and row + size <= position[0]:
                    row += size  # passed over whole
                else:
                    groups.append(group)
            for batch in file.iter_batches(_PARQUET_ROWS, groups, [field]) if groups else ():
                for text in batch.column(0).to_pylist():
                    row += 1
                    if row <= position[0] or text is None or not text:
                        continue
                    where = f"{source.path}, row {row:,}"
                    if not isinstance(text, str):
                        raise DataError(f"{where}: {type(text).__name__} in the column {field!r}; text expected")
                    yield TextPiece(text, _encoded(text, where), True, (row, 0), source.size_bytes * row // total)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{source.path}: no readable Parquet file: {str(error).splitlines()[0]}") from error


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - of the extra `data`
        import pyarrow.parquet as pq  # noqa: PLC0415 - the same
    except ImportError as error:
        raise SwarmfreeError(missing_extra("Parquet files need pyarrow")) from error
    return pa, pq


def missing_extra(what: str) -> str:
    """How to install what is missing."""
    return f'{what}; install it with: pip install "swarmfree[data]", in a checkout: pip install ".[data]"'

"""A dataset of the Hugging Face hub as a source of text, by way of the library `datasets`: rows of
one split, which that library downloads into its own cache and maps into memory.

It is named ``hf:OWNER/NAME``, and where the dataset has several, ``hf:OWNER/NAME:CONFIG`` and
``hf:OWNER/NAME:CONFIG:SPLIT``; ``@REVISION`` behind it names a branch, a tag or a commit. A folder
that the library can load, such as a clone, may stand in place of OWNER/NAME. Nothing is downloaded
that was not named so, and no code of a dataset is run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from swarmfree.protocol.errors import DataError, SwarmfreeError

PREFIX = "hf:"
SPLIT = "train"
_ROWS = 256


@dataclass(frozen=True, slots=True)
class HubName:
    """What is named.

    Args:
        path: OWNER/NAME, or a folder.
        config: empty = the only one, or the default.
        split: which part.
        revision: branch, tag or commit; empty = the newest.
    """

    path: str
    config: str = ""
    split: str = SPLIT
    revision: str = ""


@dataclass(frozen=True, slots=True)
class HubRows:
    """The rows of one split, in the library's cache.

    Args:
        name: as it was named.
        table: the library's own dataset.
        field: the column of text.
        size_bytes: of all text in UTF-8.
        sha256: of the texts, each with its length, hex; whatever file they lie in.
    """

    name: str
    table: Any
    field: str
    size_bytes: int
    sha256: str

    def __len__(self) -> int:
        """How many rows."""
        return len(self.table)

    def texts(self, first: int) -> Iterator[tuple[int, object]]:
        """Number of each row, from 0, and what stands in the column, from a row on."""
        return _texts(self.table, self.field, first)


def is_hub_name(text: str) -> bool:
    """Whether a source is named as a dataset of the hub."""
    return text.startswith(PREFIX)


def parse_hub_name(text: str) -> HubName:
    """Take ``hf:OWNER/NAME[:CONFIG[:SPLIT]][@REVISION]`` apart.

    Raises:
        DataError: it is none.
    """
    named, _, revision = text.removeprefix(PREFIX).partition("@")
    path, *others = named.split(":")
    if not path or len(others) > 2 or not all(others) or ("@" in text and not revision) or not text.isprintable():
        raise DataError(
            f"{text:.100}: {PREFIX}OWNER/NAME expected, with :CONFIG, :CONFIG:SPLIT or @REVISION behind it where needed"
        )
    config, split = (*others, *("", SPLIT)[len(others) :])
    return HubName(path, config, split, revision)


def load_hub_rows(text: str, field: str, say: Callable[[str], object]) -> HubRows:
    """Download a dataset into the library's cache, unless it lies there, and hash its text.

    Args:
        text: how it is named.
        field: the column of text.
        say: told in one line what is downloaded, before it is.

    Raises:
        DataError: there is no such dataset, column or text, or the hub does not answer.
        SwarmfreeError: the library is not installed.
    """
    name = parse_hub_name(text)
    try:
        import datasets  # noqa: PLC0415 - of the extra `datasets`
    except ImportError as error:
        raise SwarmfreeError(
            f"{text}: datasets of the Hugging Face hub need the library datasets; install it with: "
            'pip install "swarmfree[datasets]", in a checkout: pip install ".[datasets]"'
        ) from error
    say(f"{text}: is looked up, in the hub and in the cache")  # which takes half a minute where the hub is out
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # a line for each time that it asks again
    options = {"name": name.config or None, "revision": name.revision or None}
    with _HubWords(text):
        builder = datasets.load_dataset_builder(name.path, **options)
        say(_announced(text, builder))
        builder.download_and_prepare()
        splits = sorted(map(str, builder.info.splits or ()))
        table = builder.as_dataset(split=name.split) if name.split in splits else None
    if table is None:
        raise DataError(
            f"{text}: has no split {name.split!r}, but {', '.join(splits)[:80]}; write {PREFIX}OWNER/NAME:CONFIG:SPLIT"
        )
    if field not in table.column_names:
        raise DataError(f"{text}: no column {field!r}, but {', '.join(table.column_names)[:80]}; name another with --field")
    size_bytes, digest = 0, hashlib.sha256()
    for row, value in _texts(table, field, 0):
        if value is not None and not isinstance(value, str):
            raise DataError(f"{text}, row {row + 1:,}: {type(value).__name__} in the column {field!r}; text expected")
        content = (value or "").encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)
        size_bytes += len(content)
    return HubRows(text, table, field, size_bytes, digest.hexdigest())


def _texts(table: Any, field: str, first: int) -> Iterator[tuple[int, object]]:
    column = table.select_columns([field]).with_format("arrow")
    for begin in range(first, len(column), _ROWS):
        values = column[begin : begin + _ROWS].column(0).to_pylist()
        yield from enumerate(values, start=begin)


def _announced(text: str, builder: Any) -> str:
    """What is downloaded, or that nothing is."""
    if Path(builder.cache_dir).is_dir():
        return f"{text}: lies in {builder.cache_dir}, nothing is downloaded"
    files = sum(len(each) for each in (builder.config.data_files or {}).values())
    size_bytes = builder.info.download_size
    size = f"{size_bytes / 1e6:,.1f} MB" if size_bytes else "of a size that the hub does not tell"
    return f"{text}: {files:,} files, {size}, are read or downloaded to {builder.cache_dir}"


class _HubWords:
    """Raises what the library says about the block as one `DataError`: it has errors of its own, of
    the hub's client, of HTTP, of Arrow and of Python.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, Exception):
            raise DataError(f"{self._where}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The first line of what a library says."""
    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"ConnectionError", "ConnectError", "TimeoutException", "OfflineModeIsEnabled", "LocalEntryNotFoundError"}:
        return f"the hub cannot be reached, and it is not in the cache ({said[:120]})"
    return said[:240]

"""A dataset of tokens: a folder of shards with an index that names the tokenizer, every shard with
its hash, and one hash over all.

A folder of finished shards without our index, named as llm.c names them, is one as well; what only
an index could say is not known of it. `storage.dataset_writer` makes the first kind. Nothing heavy
is imported: a wrong folder is refused at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmfree.protocol.errors import DataError
from swarmfree.storage.atomic_files import write_whole
from swarmfree.storage.token_shards import HEADER_SIZE_BYTES, SYMBOLS_MAX, has_shard_magic, shard_tokens

if TYPE_CHECKING:
    from swarmfree.storage.remote_shards import BlockReader

FORMAT, FORMAT_WITHOUT_BLOCKS = "swarmfree-tokens-2", "swarmfree-tokens-1"
"""The first one has no hashes of blocks: it is read where it lies, and not from elsewhere."""
INDEX_FILE, PROGRESS_FILE, TOKENIZER_FILE = "index.json", "preparing.json", "tokenizer.json"
TRAIN, HELD_OUT = "train", "val"
_CHUNK_SIZE_BYTES = 1 << 20
_CHECKED_FILE = "checked-shards.json"


@dataclass(frozen=True, slots=True)
class TokenShard:
    """One file of tokens.

    Args:
        file: its name in the dataset's folder.
        tokens: how many.
        sha256: of the whole file, hex; empty where nobody has read it yet.
        blocks_sha256: of the file beside it that lists the hashes of its blocks, hex; empty where
            there is none.
    """

    file: str
    tokens: int
    sha256: str = ""
    blocks_sha256: str = ""


@dataclass(frozen=True, slots=True)
class TokenSplit:
    """The shards of one half, in order.

    Args:
        shards: its files.
        documents: how many documents, or parts of long ones, are in it; 0 = not known.
        text_bytes: of their text in UTF-8; 0 = not known.
    """

    shards: tuple[TokenShard, ...]
    documents: int = 0
    text_bytes: int = 0

    @property
    def tokens(self) -> int:
        """Tokens in all its shards."""
        return sum(shard.tokens for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Dataset:
    """What lies in a dataset's folder.

    Args:
        folder: where.
        vocabulary: how many symbols the tokenizer has, 0 = not known.
        tokenizer_hash: SHA-256 of its tokenizer.json, hex; empty where a token is a byte, or where
            no tokenizer is known.
        end_of_text: the token behind each document, as text; empty where it has none.
        train, held_out: the halves.
        sources: name, size and SHA-256 of each file that it was made from.
        is_indexed: it has an index of ours.
        row_tokens: its documents are packed into rows of so many tokens; 0 = as they came.
        reader: of the shards of a dataset behind a URL; None where they lie in `folder`.
    """

    folder: Path
    vocabulary: int
    tokenizer_hash: str
    end_of_text: str
    train: TokenSplit
    held_out: TokenSplit
    sources: tuple[tuple[str, int, str], ...] = ()
    is_indexed: bool = True
    row_tokens: int = 0
    reader: BlockReader | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """For people."""
        return self.folder.resolve().name if self.reader is None else self.reader.folder.name

    @property
    def place(self) -> str:
        """Where its shards lie: a folder, or a URL."""
        return str(self.folder) if self.reader is None else self.reader.folder.url

    @property
    def is_hashed(self) -> bool:
        """Whether the hash of every shard is known."""
        return all(shard.sha256 for shard in (*self.train.shards, *self.held_out.shards))

    @property
    def format(self) -> str:
        """Of its index."""
        return FORMAT if any(shard.blocks_sha256 for shard in self.train.shards) else FORMAT_WITHOUT_BLOCKS

    @property
    def bytes_per_token(self) -> float:
        """Mean bytes of held-out text for each held-out token, ends of documents counted as tokens
        without text; 0 = not known.
        """
        return self.held_out.text_bytes / self.held_out.tokens if self.held_out.tokens else 0.0

    @property
    def dataset_hash(self) -> str:
        """SHA-256, hex, over what is learned from it: tokenizer, sizes and hashes of all shards.

        Where it lies and what its sources are called does not count.
        """
        halves = [
            [half.documents, half.text_bytes, [_hashed(shard) for shard in half.shards]] for half in (self.train, self.held_out)
        ]
        content = [self.format, self.vocabulary, self.tokenizer_hash, self.end_of_text, halves]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    def paths(self, half: TokenSplit) -> list[Path]:
        """Files of a half, in order."""
        return [self.folder / shard.file for shard in half.shards]

    def to_json(self) -> dict[str, Any]:
        """The index; `find_dataset` reads it back."""
        return {
            "format": self.format,
            "dataset_hash": self.dataset_hash,
            "bytes_per_token": self.bytes_per_token,
            "tokenizer": {
                "vocabulary": self.vocabulary,
                "sha256": self.tokenizer_hash,
                "is_bytes": not self.tokenizer_hash,
                "end_of_text": self.end_of_text,
            },
            **{name: _half_to_json(half) for name, half in ((TRAIN, self.train), (HELD_OUT, self.held_out))},
            "sources": [{"name": name, "bytes": size, "sha256": digest} for name, size, digest in self.sources],
        }


def _hashed(shard: TokenShard) -> list[int | str]:
    """What a dataset's hash covers of a shard."""
    return [shard.tokens, shard.sha256, *([shard.blocks_sha256] if shard.blocks_sha256 else [])]


def _half_to_json(half: TokenSplit) -> dict[str, Any]:
    shards = [
        {"file": shard.file, "tokens": shard.tokens, "sha256": shard.sha256}
        | ({"blocks_sha256": shard.blocks_sha256} if shard.blocks_sha256 else {})
        for shard in half.shards
    ]
    return {"tokens": half.tokens, "documents": half.documents, "text_bytes": half.text_bytes, "shards": shards}


def _half_from_json(content: dict[str, Any]) -> TokenSplit:
    shards = tuple(
        TokenShard(str(each["file"]), int(each["tokens"]), str(each["sha256"]), str(each.get("blocks_sha256", "")))
        for each in content["shards"]
    )
    if any(Path(shard.file).name != shard.file or shard.file in {"", ".."} for shard in shards):
        raise ValueError("a shard lies in another folder")
    if not all(shard.file.isprintable() for shard in shards):  # nor could it be opened with a NUL in it
        raise ValueError("a shard has a name that cannot be shown")
    if any(not 0 <= shard.tokens < 1 << 31 for shard in shards):
        raise ValueError("a shard has more tokens than its header can say")
    documents, text_bytes = int(content["documents"]), int(content["text_bytes"])
    if documents < 0 or text_bytes < 0:
        raise ValueError("less than no text")
    return TokenSplit(shards, documents, text_bytes)


def find_dataset(folder: Path) -> Dataset | None:
    """The dataset in a folder, sizes of its shards checked; None where the folder holds none, but
    text.

    Raises:
        DataError: it is one, and it is not whole.
    """
    if not folder.is_dir():
        return None
    if (index := _index_of(folder)) is not None:
        return _indexed(folder, index)
    if is_in_preparation(folder):
        raise DataError(f"{folder}: a dataset that is still being prepared; let `swarmfree data prepare` end, or run it again")
    return _bare(folder)


def is_in_preparation(folder: Path) -> bool:
    """Whether a preparation has begun there and not ended."""
    return (folder / PROGRESS_FILE).is_file() and not (folder / INDEX_FILE).is_file()


def _index_of(folder: Path) -> dict[str, Any] | None:
    """The index in a folder; None where there is none of ours."""
    path = folder / INDEX_FILE
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if any(folder.glob("*.bin")):
            raise DataError(f"{path}: not JSON ({error}); prepare the dataset again") from error
        return None
    is_ours = isinstance(content, dict) and str(content.get("format", "")).startswith("swarmfree-tokens-")
    return content if is_ours else None


def _indexed(folder: Path, index: dict[str, Any]) -> Dataset:
    dataset = dataset_of(index, folder, str(folder / INDEX_FILE))
    for shard in (*dataset.train.shards, *dataset.held_out.shards):
        if (found := shard_tokens(folder / shard.file)) != shard.tokens:
            raise DataError(f"{folder / shard.file}: {found:,} tokens, but {INDEX_FILE} says {shard.tokens:,}")
    return dataset


def dataset_of(index: dict[str, Any], folder: Path, where: str, reader: BlockReader | None = None) -> Dataset:
    """What an index says; its shards are not looked at.

    Args:
        index: its content.
        folder: of the dataset.
        where: place of the index, for errors.
        reader: of shards that lie elsewhere.

    Raises:
        DataError: it is no index, or its hash is not that of what it lists.
    """
    if index.get("format") not in {FORMAT, FORMAT_WITHOUT_BLOCKS}:
        raise DataError(f"{where}: format {index.get('format')!r:.40}; this swarmfree reads {FORMAT}")
    try:
        tokenizer = index["tokenizer"]
        dataset = Dataset(
            folder,
            int(tokenizer["vocabulary"]),
            str(tokenizer["sha256"]),
            str(tokenizer["end_of_text"]),
            _half_from_json(index[TRAIN]),
            _half_from_json(index[HELD_OUT]),
            tuple((str(each["name"]), int(each["bytes"]), str(each["sha256"])) for each in index["sources"]),
            row_tokens=int(index.get("settings", {}).get("row_tokens", 0)),
            reader=reader,
        )
        expected = str(index["dataset_hash"])
        if not 0 < dataset.vocabulary <= SYMBOLS_MAX:
            raise ValueError(f"a tokenizer of {dataset.vocabulary} symbols")  # noqa: TRY301 - as what the lines above raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"{where}: not the index of a dataset ({error!r:.80}); prepare the dataset again") from error
    if dataset.dataset_hash != expected:
        raise DataError(
            f"{where}: says hash {expected[:12]}, but what it lists has {dataset.dataset_hash[:12]}; prepare it again"
        )
    return dataset


def _bare(folder: Path) -> Dataset | None:
    """Finished shards without an index of ours."""
    shards = sorted(path for path in folder.glob("*.bin") if has_shard_magic(path))
    if not shards:
        return None
    halves = {name: tuple(path for path in shards if name in path.name) for name in (TRAIN, HELD_OUT)}
    for name, paths in halves.items():
        if not paths:
            raise DataError(f"{folder}: {len(shards)} token shards, but none is named *{name}*.bin as llm.c names them")
    train, held_out = (
        TokenSplit(tuple(TokenShard(path.name, shard_tokens(path)) for path in paths)) for paths in halves.values()
    )
    tokenizer = folder / TOKENIZER_FILE
    tokenizer_hash = file_hash(tokenizer) if tokenizer.is_file() else ""
    return Dataset(folder, 0, tokenizer_hash, "", train, held_out, is_indexed=False)


def file_hash(path: Path, look: Callable[[bytes], None] = lambda _: None) -> str:
    """SHA-256 of a file, hex; `look` sees every part of it.

    Raises:
        DataError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_SIZE_BYTES):
                digest.update(chunk)
                look(chunk)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def checked(dataset: Dataset, cache_folder: Path | None = None) -> Dataset:
    """The dataset once every shard has been read and has the hash that its index names; of shards
    without an index, with their hashes and the vocabulary that their largest token needs.

    Args:
        dataset: as found.
        cache_folder: where it is noted which files were read, with size and time of change, so that
            the next start of a peer does not read them again; None = read all.

    Raises:
        DataError: a shard has another hash; the line names it.
    """
    if dataset.reader is not None:
        return dataset  # each block is checked when it is read
    known = _known_files(cache_folder)
    seen: dict[str, tuple[str, int]] = {}

    def checked_half(half: TokenSplit) -> TokenSplit:
        return replace(half, shards=tuple(one(shard) for shard in half.shards))

    def one(shard: TokenShard) -> TokenShard:
        path = dataset.folder / shard.file
        state = path.stat()
        key = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
        seen[key] = known.get(key) or _read_shard(path)
        found = seen[key][0]
        if shard.sha256 and found != shard.sha256:
            raise DataError(f"{path}: SHA-256 {found[:12]}, but {INDEX_FILE} says {shard.sha256[:12]}: the shard is damaged")
        return replace(shard, sha256=found)

    done = replace(dataset, train=checked_half(dataset.train), held_out=checked_half(dataset.held_out))
    largest = max((token for _, token in seen.values()), default=0)
    if dataset.is_indexed and largest >= dataset.vocabulary:
        raise DataError(f"{dataset.folder}: has the token {largest}, but its tokenizer has {dataset.vocabulary} symbols")
    if dataset.tokenizer_hash:  # it is written beside the weights
        found = file_hash(dataset.folder / TOKENIZER_FILE)
        if found != dataset.tokenizer_hash:
            raise DataError(
                f"{dataset.folder / TOKENIZER_FILE}: SHA-256 {found[:12]}, but {INDEX_FILE} says {dataset.tokenizer_hash[:12]}"
            )
    if cache_folder is not None and seen.keys() - known.keys():
        write_whole(cache_folder / _CHECKED_FILE, json.dumps(known | seen).encode())
    return done if dataset.is_indexed else replace(done, vocabulary=largest + 1)


def _known_files(cache_folder: Path | None) -> dict[str, tuple[str, int]]:
    try:
        content = json.loads((cache_folder / _CHECKED_FILE).read_bytes()) if cache_folder is not None else {}
        return {str(key): (str(digest), int(token)) for key, (digest, token) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _read_shard(path: Path) -> tuple[str, int]:
    """SHA-256 of a shard and its largest token."""
    import numpy as np  # noqa: PLC0415 - a wrong folder is refused before it is loaded

    largest, ahead = 0, HEADER_SIZE_BYTES

    def look(chunk: bytes) -> None:
        nonlocal largest, ahead
        tokens = np.frombuffer(chunk, "<u2", offset=ahead)
        ahead = 0
        largest = max(largest, int(tokens.max(initial=0)))

    return file_hash(path, look), largest


def totals(halves: Iterable[TokenSplit]) -> tuple[int, int]:
    """Tokens and documents of all halves."""
    found = list(halves)
    return sum(half.tokens for half in found), sum(half.documents for half in found)

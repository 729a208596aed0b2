"""Make a dataset of token shards from text; a preparation that is killed goes on where it was, and
ends in the same bytes.

Text is read in a fixed order in batches of a few MB. One batch is encoded while the next is read.
Behind a batch, every few seconds, the lengths of the unfinished shards and the place in the text
are noted in one file; what lies behind these lengths is cut off by the next life. Shards and the
index are renamed into place once they are whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarmfree.protocol.errors import ConfigError, DataError, SwarmfreeError
from swarmfree.storage.atomic_files import flush_to_disk, told_in_one_line, write_whole
from swarmfree.storage.dataset import (
    HELD_OUT,
    INDEX_FILE,
    PROGRESS_FILE,
    TOKENIZER_FILE,
    TRAIN,
    Dataset,
    TokenShard,
    TokenSplit,
    file_hash,
    find_dataset,
)
from swarmfree.storage.dataset_tokenizer import BYTES_NAME, TextTokenizer, byte_tokenizer, train_tokenizer, vocabulary_of
from swarmfree.storage.document_packing import best_fit_order
from swarmfree.storage.text_sources import BEGIN, Position, TextPiece, TextSource, find_sources, part_size, pieces_of
from swarmfree.storage.token_shards import HEADER_SIZE_BYTES, TOKEN_SIZE_BYTES, shard_header

SHARD_TOKENS = 100_000_000
"""As in llm.c: 200 MB a shard."""
_BATCH_BYTES = 4 << 20
"""The library keeps about 120 bytes for each token that it has just made."""
_BATCH_PIECES = 1 << 14
_CHECKPOINT_S = 3.0
_TRAINING_BYTES = 1 << 28
"""A tokenizer is trained on a share of the text so large that it comes to about so many bytes."""
_PART_SUFFIX = ".part"


@dataclass(frozen=True, slots=True)
class PreparationOrder:
    """What is to be made of what.

    Args:
        paths: text files, or folders of them.
        tokenizer: ``bytes``, path of a tokenizer.json, or ``train:VOCAB``.
        out: folder of the dataset, new or empty, or one whose preparation goes on.
        field: name of the text in rows.
        held_out_percent: share of the documents that is not trained on.
        end_of_text: the token behind each document; empty = the tokenizer's usual one.
        shard_tokens: tokens of a shard.
        row_tokens: documents are packed by best fit into rows of so many tokens; 0 = in the order
            of the sources.
    """

    paths: tuple[Path, ...]
    tokenizer: str
    out: Path
    field: str = "text"
    held_out_percent: float = 1.0
    end_of_text: str = ""
    shard_tokens: int = SHARD_TOKENS
    row_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PreparationProgress:
    """How far a preparation is.

    Args:
        doing: what, for people.
        done_bytes, total_bytes: of the sources as they lie.
        tokens: written so far.
    """

    doing: str
    done_bytes: int
    total_bytes: int
    tokens: int = 0


Say = Callable[[PreparationProgress], None]


@dataclass(slots=True)
class _HalfBooks:
    """What is noted of a half: finished shards, tokens in the unfinished one, totals."""

    shards: list[tuple[str, int, str]] = field(default_factory=list)
    open_tokens: int = 0
    documents: int = 0
    text_bytes: int = 0

    @property
    def tokens(self) -> int:
        """Written so far."""
        return sum(tokens for _, tokens, _ in self.shards) + self.open_tokens


@dataclass(slots=True)
class _ResumePoint:
    """Where a preparation goes on: the next file and the place in it."""

    source: int = 0
    position: Position = BEGIN
    tokenizer_hash: str = ""
    halves: dict[str, _HalfBooks] = field(default_factory=lambda: {TRAIN: _HalfBooks(), HELD_OUT: _HalfBooks()})


@dataclass(frozen=True, slots=True)
class _Batch:
    pieces: list[TextPiece]
    source: int
    done_bytes: int


class _ShardWriter:
    """Appends the tokens of one half, and finishes each shard that is full."""

    def __init__(self, folder: Path, half: str, books: _HalfBooks, shard_tokens: int) -> None:
        """Cut off what was written behind the books, and go on there."""
        self._folder, self._half, self.books, self._shard_tokens = folder, half, books, shard_tokens
        kept = {name for name, _, _ in books.shards}
        path, part = self._path(), self._part()
        if path.exists():
            path.replace(part)  # it was finished behind the books
        for stray in (*folder.glob(f"{half}_*.bin"), *folder.glob(f"{half}_*{_PART_SUFFIX}")):
            if stray.name not in kept and stray != part:
                stray.unlink()
        size_bytes = HEADER_SIZE_BYTES + TOKEN_SIZE_BYTES * books.open_tokens
        if not books.open_tokens:
            part.write_bytes(bytes(HEADER_SIZE_BYTES))
        elif not part.exists() or part.stat().st_size < size_bytes:
            raise DataError(f"{part}: shorter than {PROGRESS_FILE} says; delete the folder {folder} and prepare it again")
        os.truncate(part, size_bytes)
        self._stream = part.open("ab")

    def _path(self) -> Path:
        return self._folder / f"{self._half}_{len(self.books.shards):06d}.bin"

    def _part(self) -> Path:
        return self._path().with_suffix(_PART_SUFFIX)

    def append(self, tokens: NDArray[np.uint16]) -> None:
        """Write tokens, over as many shards as they need."""
        while len(tokens):
            taken = tokens[: self._shard_tokens - self.books.open_tokens]
            self._stream.write(taken.astype("<u2").tobytes())
            self.books.open_tokens += len(taken)
            tokens = tokens[len(taken) :]
            if self.books.open_tokens == self._shard_tokens:
                self.finish()
                self._open()

    def _open(self) -> None:
        self._stream = self._part().open("wb")
        self._stream.write(bytes(HEADER_SIZE_BYTES))

    def flush(self) -> None:
        """What was appended lies on the disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def finish(self) -> None:
        """Rename the open shard into its place; one without tokens is removed."""
        self.close()
        part, path, tokens = self._part(), self._path(), self.books.open_tokens
        if not tokens:
            part.unlink()
            return
        with part.open("r+b") as stream:
            stream.write(shard_header(tokens))
        flush_to_disk(part)
        digest = file_hash(part)
        part.replace(path)
        self.books.shards.append((path.name, tokens, digest))
        self.books.open_tokens = 0

    def close(self) -> None:
        """No more is written for now."""
        self._stream.close()

    def split(self) -> TokenSplit:
        """What lies there, once it is finished."""
        shards = tuple(TokenShard(*shard) for shard in self.books.shards)
        return TokenSplit(shards, self.books.documents, self.books.text_bytes)


def prepare_dataset(
    order: PreparationOrder, say: Say, clock: Callable[[], float], checkpoint_s: float = _CHECKPOINT_S
) -> Dataset:
    """Make the dataset, or go on with it where an earlier life was ended; one that is whole is left
    as it is.

    Args:
        order: what of what.
        say: hears how far it is, after each batch.
        clock: monotonic seconds, for when progress is noted; what is written does not depend on it.
        checkpoint_s: seconds between two notes.

    Raises:
        DataError: the text is missing, unreadable or no text.
        ConfigError: the folder holds something else, the tokenizer cannot be used.
        SwarmfreeError: the disk is full, a library is missing.
    """
    vocabulary_of(order.tokenizer)
    sources = find_sources(order.paths)
    settings = _settings(order, sources)
    with told_in_one_line(order.out, "preparing"), _locked(order.out):
        if (done := _finished(order, settings)) is not None:
            return done
        point = _resume_point(order, settings)
        tokenizer = _tokenizer(order, sources, point, say)
        point.tokenizer_hash = hashlib.sha256(tokenizer.content).hexdigest()
        writers = {half: _ShardWriter(order.out, half, books, order.shard_tokens) for half, books in point.halves.items()}

        def note() -> None:
            for writer in writers.values():
                writer.flush()
            _note(order.out, settings, point)

        try:
            noted_s = clock()
            note()
            for batch, encoded in _encoded_batches(order, sources, point, tokenizer):
                _write(batch, encoded, writers, tokenizer.end_token, order)
                point.source, point.position = batch.source, batch.pieces[-1].position
                if clock() - noted_s >= checkpoint_s:
                    note()
                    noted_s = clock()
                tokens = sum(books.tokens for books in point.halves.values())
                total_bytes = sum(source.size_bytes for source in sources)
                say(PreparationProgress("writes tokens", batch.done_bytes, total_bytes, tokens))
            _require_both(order, writers)
            for writer in writers.values():
                writer.finish()
        finally:
            for writer in writers.values():
                writer.close()
        dataset = Dataset(
            order.out,
            tokenizer.vocabulary,
            "" if tokenizer.is_bytes else point.tokenizer_hash,
            tokenizer.end_of_text,
            writers[TRAIN].split(),
            writers[HELD_OUT].split(),
            tuple((source.name, source.size_bytes, source.sha256) for source in sources),
        )
        index = {**dataset.to_json(), "settings": settings}
        write_whole(order.out / INDEX_FILE, (json.dumps(index, indent=2) + "\n").encode())
        (order.out / PROGRESS_FILE).unlink()
        return dataset


def _settings(order: PreparationOrder, sources: list[TextSource]) -> dict[str, Any]:
    """What decides which bytes come out; a preparation goes on only where all of it is the same."""
    tokenizer = order.tokenizer
    if tokenizer != BYTES_NAME and vocabulary_of(tokenizer) is None:
        path = _tokenizer_file(tokenizer)
        if not path.is_file():
            raise ConfigError(
                f"--tokenizer {tokenizer}: no such file; bytes, train:VOCAB or the path of a tokenizer.json expected"
            )
        tokenizer = file_hash(path)
    return {
        "tokenizer": tokenizer,
        "field": order.field,
        "held_out_percent": order.held_out_percent,
        "end_of_text": order.end_of_text,
        "shard_tokens": order.shard_tokens,
        **({"row_tokens": order.row_tokens} if order.row_tokens else {}),
        "sources": [[source.name, source.size_bytes, source.sha256] for source in sources],
    }


def _finished(order: PreparationOrder, settings: dict[str, Any]) -> Dataset | None:
    """The dataset that lies there whole, made of the same; None where something is to be done.

    Raises:
        ConfigError: the folder holds something else.
    """
    if not (order.out / INDEX_FILE).exists():
        for torn in order.out.glob(".*.json.*"):  # of a life that was killed while it wrote a file
            torn.unlink()
        others = sorted(path.name for path in order.out.iterdir())
        if others and PROGRESS_FILE not in others:
            raise ConfigError(f"--out {order.out}: holds {', '.join(others[:3])}; a new or empty folder expected")
        return None
    dataset = find_dataset(order.out)
    if dataset is None or not dataset.is_indexed:
        raise ConfigError(f"--out {order.out}: holds an {INDEX_FILE} of something else; a new or empty folder expected")
    _require_same(order, json.loads((order.out / INDEX_FILE).read_bytes()).get("settings", {}), settings, "holds a dataset")
    (order.out / PROGRESS_FILE).unlink(missing_ok=True)
    return dataset


def _require_same(order: PreparationOrder, kept: dict[str, Any], settings: dict[str, Any], what: str) -> None:
    # What is left out in one of the two counts as well, as --pack
    differ = [key for key in kept | settings if kept.get(key) != settings.get(key)]
    other = ["pack" if key == "row_tokens" else key.replace("_", " ") for key in differ]
    if other:
        raise ConfigError(
            f"--out {order.out}: {what} made with another {', '.join(other)}; name another folder, or delete this one"
        )


def _resume_point(order: PreparationOrder, settings: dict[str, Any]) -> _ResumePoint:
    path = order.out / PROGRESS_FILE
    if not path.exists():
        _note(order.out, settings, _ResumePoint())
        return _ResumePoint()
    try:
        kept = json.loads(path.read_bytes())
        point = kept["point"]
        if kept["settings"] != settings and not any(books["text_bytes"] for books in point["halves"].values()):
            return _ResumePoint()  # nothing is lost
        _require_same(order, kept["settings"], settings, "holds a preparation")
        halves = {
            half: _HalfBooks(**{**books, "shards": [tuple(shard) for shard in books["shards"]]})
            for half, books in point["halves"].items()
        }
        offset, number = point["position"]
        return _ResumePoint(int(point["source"]), (int(offset), int(number)), str(point["tokenizer_hash"]), halves)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: damaged ({error!r:.60}); delete the folder and prepare it again") from error


def _note(folder: Path, settings: dict[str, Any], point: _ResumePoint) -> None:
    write_whole(folder / PROGRESS_FILE, json.dumps({"settings": settings, "point": asdict(point)}).encode())


def _tokenizer(order: PreparationOrder, sources: list[TextSource], point: _ResumePoint, say: Say) -> TextTokenizer:
    """The tokenizer, whose file lies in the folder when this returns."""
    path = order.out / TOKENIZER_FILE
    vocabulary = vocabulary_of(order.tokenizer)
    where = str(path) if vocabulary is not None else order.tokenizer
    if point.tokenizer_hash:
        if not path.is_file() or file_hash(path) != point.tokenizer_hash:
            raise DataError(f"{path}: not the tokenizer that the preparation began with; delete the folder and prepare it again")
        content = path.read_bytes()
    elif vocabulary is not None:
        content = train_tokenizer(_training_texts(order, sources, say), vocabulary)
    else:
        content = byte_tokenizer() if order.tokenizer == BYTES_NAME else _tokenizer_file(order.tokenizer).read_bytes()
    tokenizer = TextTokenizer(content, where, order.end_of_text)
    if not point.tokenizer_hash:
        write_whole(path, content)
    return tokenizer


def _tokenizer_file(name: str) -> Path:
    """The tokenizer.json that is named, or that of the folder that is named."""
    path = Path(name).expanduser()
    return path / TOKENIZER_FILE if path.is_dir() else path


def _training_texts(order: PreparationOrder, sources: list[TextSource], say: Say) -> Iterator[str]:
    """Text that a tokenizer learns from: nothing that is held out, and of much text a share by the
    hashes of its pieces.
    """
    total = sum(source.size_bytes for source in sources)
    share = min(1.0, _TRAINING_BYTES / total)
    for _, piece, done in _all_pieces(order, sources, _ResumePoint()):
        drawn = _fraction(piece.content)
        held_out = order.held_out_percent / 100
        if held_out <= drawn < held_out + share * (1 - held_out):
            yield piece.text
            say(PreparationProgress("reads text to train the tokenizer", done, total))


def _fraction(content: bytes) -> float:
    """A number from 0 to 1 that only the text decides: equal documents stay together."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest()) / (1 << 48)


def _all_pieces(order: PreparationOrder, sources: list[TextSource], point: _ResumePoint) -> Iterator[tuple[int, TextPiece, int]]:
    """(number of the file, piece, bytes of sources that are done) from where it goes on."""
    part_bytes = part_size(sources, order.held_out_percent)
    before = sum(source.size_bytes for source in sources[: point.source])
    position = point.position
    for number, source in enumerate(sources[point.source :], start=point.source):
        state = source.path.stat()
        for piece in pieces_of(source, position, order.field, part_bytes):
            yield number, piece, before + piece.read_bytes
        after = source.path.stat()
        if (state.st_mtime_ns, source.size_bytes) != (after.st_mtime_ns, after.st_size):
            raise DataError(f"{source.path}: changed while it was being read; run the same command on text that stays as it is")
        before, position = before + source.size_bytes, BEGIN


def _batches(order: PreparationOrder, sources: list[TextSource], point: _ResumePoint) -> Iterator[_Batch]:
    pieces: list[TextPiece] = []
    size_bytes = number = done = 0
    for number, piece, done in _all_pieces(order, sources, point):
        pieces.append(piece)
        size_bytes += len(piece.content)
        if size_bytes >= _BATCH_BYTES or len(pieces) >= _BATCH_PIECES:
            yield _Batch(pieces, number, done)
            pieces, size_bytes = [], 0
    if pieces:
        yield _Batch(pieces, number, done)


def _encoded_batches(
    order: PreparationOrder, sources: list[TextSource], point: _ResumePoint, tokenizer: TextTokenizer
) -> Iterator[tuple[_Batch, list[NDArray[np.uint16]]]]:
    """Batches with the tokens of their pieces; one is encoded while the next is read and the one
    before is written.
    """
    begin = _ResumePoint(point.source, point.position)  # the books go on while this is read
    ahead: tuple[_Batch, Future[list[NDArray[np.uint16]]]] | None = None
    with ThreadPoolExecutor(1) as pool:
        for batch in _batches(order, sources, begin):
            following = (batch, pool.submit(tokenizer.encode, [piece.content for piece in batch.pieces]))
            if ahead is not None:
                yield ahead[0], ahead[1].result()
            ahead = following
        if ahead is not None:
            yield ahead[0], ahead[1].result()


def _write(
    batch: _Batch,
    encoded: list[NDArray[np.uint16]],
    writers: dict[str, _ShardWriter],
    end_token: int,
    order: PreparationOrder,
) -> None:
    end = np.array([end_token], np.uint16)
    # Of each half its documents, each as its parts; the last one is of what comes next
    found: dict[str, list[list[NDArray[np.uint16]]]] = {half: [[]] for half in writers}
    for piece, tokens in zip(batch.pieces, encoded, strict=True):
        half = HELD_OUT if _fraction(piece.content) < order.held_out_percent / 100 else TRAIN
        found[half][-1] += [tokens, end] if piece.ends else [tokens]
        writers[half].books.documents += 1
        writers[half].books.text_bytes += len(piece.content)
        if piece.ends:
            for documents in found.values():
                documents.append([])
    for half, documents in found.items():
        joined = [np.concatenate(parts) for parts in documents if parts]
        for document in _packed(joined, writers[half].books.tokens, order.row_tokens):
            writers[half].append(document)


def _packed(documents: list[NDArray[np.uint16]], begun_tokens: int, row_tokens: int) -> list[NDArray[np.uint16]]:
    """Documents of one batch in the order in which they are written. The first may go on from the
    batch before, and the last in the next one: they stay where they are.
    """
    if not row_tokens or len(documents) <= 3:
        return documents
    first, *between, last = documents
    order = best_fit_order([len(document) for document in between], row_tokens, begun_tokens + len(first))
    return [first, *(between[index] for index in order), last]


def _require_both(order: PreparationOrder, writers: dict[str, _ShardWriter]) -> None:
    train, held_out = (writers[half].books for half in (TRAIN, HELD_OUT))
    if not train.documents + held_out.documents:
        raise DataError(f"{', '.join(map(str, order.paths))}: no document with any text; text to learn from expected")
    for books, what in ((held_out, "held out"), (train, "left to train on")):
        if not books.documents:
            raise DataError(
                f"{train.documents + held_out.documents} documents, of which none is {what} at --held-out-percent {order.held_out_percent:g}; "
                "give another share, or more text"
            )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder, made if missing, for this process alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"--out {folder}: is a file; a new or empty folder expected") from error
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SwarmfreeError(f"--out {folder}: another process prepares it now") from error
    else:
        yield
    finally:
        os.close(descriptor)

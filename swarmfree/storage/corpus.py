"""The corpus: which files a run learns from, cut once into a flat training file and a flat held-out
file of tokens.

Tokens are bytes, 0 to 255, one byte each on disk; a dataset of token shards, or a mixture of them,
is taken as it lies. The default is the Python standard library's own
source without its tests, whose bytes differ between patch releases; `--data` names a file or a
folder instead. Nothing is downloaded, nothing is shuffled here.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from platform import python_version
from uuid import uuid4

from swarmfree.protocol.errors import DataError
from swarmfree.protocol.manifest import BYTES, DataSection, Manifest
from swarmfree.protocol.mixture import MixturePart, mixture_text
from swarmfree.storage.atomic_files import flush_to_disk, told_in_one_line
from swarmfree.storage.data_location import Say, checked_data, find_data, say_on_stderr
from swarmfree.storage.dataset import TOKENIZER_FILE, Dataset
from swarmfree.storage.mixture import Mixture

_CHUNK_SIZE_BYTES = 1 << 20
_NOT_SOURCE = frozenset({"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"})
_BUILT_PREFIXES = (b"_sysconfigdata", b"config-")
_TRAIN, _HELD_OUT, _INDEX = "train.u8", "held_out.u8", "index.json"
_TEMPORARY_PREFIX = ".preparing-"
_TRIES = 3
_LOOK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus cut into token files.

    Args:
        name: for people.
        corpus_hash: SHA-256, hex, over name, size and bytes of every file in order; same text, same
            hash, on any machine.
        folder: where its token files lie.
        train_tokens, held_out_tokens: sizes; a token is one byte of a file.
        token_max: the largest token in it, or that its tokenizer has.
        dataset: what it lies in as token shards; None where it is cut into files of bytes.
        mixture: the datasets that it is made of, where these are several; then `dataset` is the
            first of them.
    """

    name: str
    corpus_hash: str
    folder: Path
    train_tokens: int
    held_out_tokens: int
    token_max: int
    dataset: Dataset | None = None
    mixture: Mixture | None = None

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """All datasets that it is made of; none where it is cut into files of bytes."""
        if self.mixture is not None:
            return self.mixture.datasets
        return (self.dataset,) if self.dataset is not None else ()

    @property
    def parts(self) -> tuple[MixturePart, ...]:
        """Of a mixture, its datasets as the manifest names them; else none."""
        return self.mixture.parts() if self.mixture is not None else ()

    @property
    def proportions(self) -> tuple[float, ...]:
        """Which part of what is drawn comes from each of `datasets`."""
        return self.mixture.proportions if self.mixture is not None else (1.0,)

    @property
    def tokenizer_file(self) -> Path | None:
        """The tokenizer.json of its tokens; None where a token is a byte, or where it is not
        known.
        """
        if self.dataset is None or not self.dataset.tokenizer_hash:
            return None
        return self.dataset.folder / TOKENIZER_FILE

    def section(self, section: DataSection) -> DataSection:
        """The manifest's section about it; name and share of held-out text stay as `section` has
        them.
        """
        known = replace(
            section, corpus_hash=self.corpus_hash, train_tokens=self.train_tokens, held_out_tokens=self.held_out_tokens
        )
        return _with_tokenizer(known, self.mixture or self.dataset)

    @property
    def train_file(self) -> Path:
        """Training tokens, one byte each."""
        return self.folder / _TRAIN

    @property
    def held_out_file(self) -> Path:
        """Held-out tokens, one byte each."""
        return self.folder / _HELD_OUT


@dataclass(frozen=True, slots=True)
class _Text:
    """One file of the corpus: `name` is its path below the corpus in bytes, empty where the corpus
    is this one file.
    """

    path: Path
    name: bytes
    size_bytes: int
    digest: bytes


def prepare_corpus(data_path: str, cache_folder: Path, held_out_percent: int, say: Say = say_on_stderr) -> Corpus:
    """Cut a corpus into token files in `cache_folder`, or find it there; safe against other
    processes that do the same.

    All files are read once to know the hash, and a second time only where the cache has not got
    them. Held-out files are chosen by hash of their bytes: in the order of their hashes, each that
    still fits into `held_out_percent` of the bytes. Equal files stay together. Where that finds
    less than half the share (one file, or few large ones), the last `held_out_percent` of each file
    are held out instead. The shards of a dataset are read once to check their hashes, and used as
    they lie.

    Args:
        data_path: a file or a folder of text in any encoding, "" = Python's standard library. Of a
            folder all files count but hidden ones. Or the folder of a dataset, its URL, or the file
            of a mixture.
        cache_folder: made if missing.
        held_out_percent: 0 to 50; of 0, all text is in the training file, file after file.
        say: told, later and from any thread, that a server with shards is waited for.

    Raises:
        DataError: missing, empty or unreadable, or it changed while being read.
        SwarmfreeError: the cache cannot be written.
    """
    if data_path and (found := find_data(data_path, cache_folder, say)) is not None:
        return _corpus_of(checked_data(found, cache_folder))
    name, files = _standard_library() if not data_path else _files_of(Path(data_path).expanduser())
    texts = [_read_text(path, relative) for path, relative in files]
    if not sum(text.size_bytes for text in texts):
        raise DataError(f"{name}: {len(texts)} file{'s' * (len(texts) != 1)} without a single byte; text to learn from expected")
    overall = hashlib.sha256()
    for text in texts:
        overall.update(len(text.name).to_bytes(8, "little") + text.name + text.size_bytes.to_bytes(8, "little") + text.digest)
    corpus_hash = overall.hexdigest()
    folder = cache_folder / f"{corpus_hash[:16]}-{held_out_percent}"
    with told_in_one_line(cache_folder, "keeping the corpus", sum(text.size_bytes for text in texts)):
        cache_folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(cache_folder)
        for _ in range(_TRIES):
            if cached := _cached(folder, corpus_hash):
                return replace(cached, name=name)
            _prepare(Corpus(name, corpus_hash, folder, 0, 0, 0), texts, held_out_percent)
    raise DataError(f"{folder}: somebody else removed or changed the corpus {_TRIES} times as soon as it was written")


def _corpus_of(found: Dataset | Mixture) -> Corpus:
    if isinstance(found, Mixture):
        first, sizes = found.datasets[0], (found.train_tokens, found.held_out_tokens)
        return Corpus(found.name, found.mixture_hash, first.folder, *sizes, found.vocabulary - 1, first, found)
    sizes = found.train.tokens, found.held_out.tokens
    return Corpus(found.name, found.dataset_hash, found.folder, *sizes, found.vocabulary - 1, found)


def _with_tokenizer(section: DataSection, found: Dataset | Mixture | None) -> DataSection:
    """What is not known of shards without an index stays as the run config has it."""
    if found is None:
        return replace(section, vocabulary=BYTES, tokenizer_hash="", end_of_text="", bytes_per_token=1.0, mixture="")
    first = found.datasets[0] if isinstance(found, Mixture) else found
    return replace(
        section,
        vocabulary=found.vocabulary or section.vocabulary,
        tokenizer_hash=first.tokenizer_hash,
        end_of_text=first.end_of_text,
        bytes_per_token=found.bytes_per_token or section.bytes_per_token,
        mixture=mixture_text(found.parts()) if isinstance(found, Mixture) else "",
    )


def with_tokenizer(manifest: Manifest, data_path: str) -> Manifest:
    """A run config's manifest with what a dataset's index says of its tokenizer, or with the bytes
    that any other text is.

    Raises:
        DataError: it is a dataset, and it is not whole.
    """
    found = find_data(data_path) if data_path else None
    if isinstance(found, Mixture) and not all(dataset.is_hashed for dataset in found.datasets):
        data = replace(_with_tokenizer(manifest.data, found.datasets[0]), mixture="")  # not known before all shards are read
    else:
        data = _with_tokenizer(manifest.data, found)
    if found is not None and not found.vocabulary:  # not known before all shards are read
        data = replace(data, vocabulary=manifest.model.vocabulary)
    return replace(manifest, data=data)


def copied_bytes(data_path: str) -> int:
    """How much `prepare_corpus` writes: all of a text, nothing of a dataset.

    Raises:
        DataError: as `prepare_corpus`.
    """
    if data_path and find_data(data_path) is not None:
        return 0
    _, files = _standard_library() if not data_path else _files_of(Path(data_path).expanduser())
    return sum(path.stat().st_size for path, _ in files)


def require_files(data_path: str) -> None:
    """Look whether data is there at all; what is in it is not looked at.

    Raises:
        DataError: one line with what was found.
    """
    if data_path and find_data(data_path) is None:
        _files_of(Path(data_path).expanduser())


def require_text(data_path: str, bytes_min: int, vocabulary: int = 0, init_from: str = "") -> None:
    """Look at data before it is read whole: it is there, there is enough of it, and what it begins
    with is text in UTF-8, or it is a dataset whose symbols the model has.

    Args:
        data_path: as for `prepare_corpus`; "" = Python's standard library, which is not looked at.
        bytes_min: what one iteration needs; a file of text shorter than that is of no use to the
            run. Of a dataset, tokens.
        vocabulary: of the model; 0 = not looked at.
        init_from: folder of the model that the run begins with, which says its vocabulary; empty =
            the run config does.

    Raises:
        DataError: one line with what was found, and what to do.
    """
    if not data_path:
        return
    if (found := find_data(data_path)) is not None:
        tokens = found.train.tokens if isinstance(found, Dataset) else found.train_tokens
        if tokens < bytes_min:
            raise DataError(f"{found.name}: too short: {tokens:,} tokens to train on; one iteration alone needs {bytes_min:,}")
        if vocabulary:
            require_vocabulary(found.name, found.vocabulary, vocabulary, init_from)
        return
    name, files = _files_of(Path(data_path).expanduser())
    sizes = {path: path.stat().st_size for path, _ in files}
    if not sum(sizes.values()):
        raise DataError(f"{name}: {len(files)} file{'s' * (len(files) != 1)} without a single byte; text to learn from expected")
    strange = [path for path, _ in files if not _is_text(path)]
    if strange:
        which = f"{strange[0]} is" if len(files) == 1 else f"{len(strange)} of {len(files)} files, {strange[0]} first, are"
        raise DataError(f"{which} no text in UTF-8; to take its bytes as they are, add --data-is-bytes")
    if sum(sizes.values()) < bytes_min:
        raise DataError(f"{name}: too short: {sum(sizes.values()):,} bytes; one iteration alone needs {bytes_min:,}")


def require_vocabulary(name: str, symbols: int, vocabulary: int, init_from: str = "") -> None:
    """Whether a model with `vocabulary` rows has a row for each of so many symbols. One that lies
    in the folder `init_from` has the rows that it has, whatever the run config says.

    Raises:
        DataError: it has not, and what to set.
    """
    if symbols > vocabulary:
        if init_from:
            raise DataError(
                f"{name}: its tokens have {symbols:,} symbols, but the model in {init_from} has {vocabulary:,}; make others with its "
                f"tokenizer: swarmfree data prepare SOURCE --tokenizer {init_from} --out DIR, then --data DIR"
            )
        raise DataError(
            f"{name}: its tokens have {symbols:,} symbols, but model.vocabulary = {vocabulary:,}; add --set model.vocabulary={symbols}"
        )


def _is_text(path: Path) -> bool:
    """Whether a file's first bytes are UTF-8 without NUL, a letter that is cut off at the end
    allowed.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(_LOOK_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return b"\0" not in start


# ---- which files ---------------------------------------------------------------------------------


def _standard_library() -> tuple[str, list[tuple[Path, bytes]]]:
    """Python's own source: .py files without tests, and without what is written when an interpreter
    is built, which differs by machine.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = [
        (path, relative)
        for path, relative in _walk(folder, _NOT_SOURCE)
        if path.suffix == ".py" and not any(part.startswith(_BUILT_PREFIXES) for part in relative.split(b"/"))
    ]
    if not files:
        raise DataError(f"{folder}: this Python has no source of its standard library; name a file or folder with --data")
    return f"python-stdlib-{python_version()}", files


def _files_of(path: Path) -> tuple[str, list[tuple[Path, bytes]]]:
    try:
        if path.is_file():
            return path.name, [(path, b"")]
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; --data names text to learn from")
        if not path.is_dir():
            raise DataError(f"{path}: neither a file nor a folder; --data names text to learn from")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    files = list(_walk(path))
    if not files:
        raise DataError(f"{path}: a folder without files; --data names text to learn from")
    return path.resolve().name or str(path), files


def _walk(folder: Path, left_out: frozenset[str] = frozenset()) -> Iterator[tuple[Path, bytes]]:
    """Regular files below `folder` with their relative paths, sorted by these as bytes; hidden ones
    and folders in `left_out` are passed over.
    """

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    found: list[tuple[bytes, Path]] = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in left_out]
        paths = (Path(place, name) for name in names if not name.startswith("."))
        found += [(os.fsencode(path.relative_to(folder).as_posix()), path) for path in paths if path.is_file()]
    for relative, path in sorted(found):
        yield path, relative


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_SIZE_BYTES):
                yield chunk
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _read_text(path: Path, relative: bytes) -> _Text:
    digest, size_bytes = hashlib.sha256(), 0
    for chunk in _chunks(path):
        digest.update(chunk)
        size_bytes += len(chunk)
    return _Text(path, relative, size_bytes, digest.digest())


def _train_sizes(texts: list[_Text], held_out_percent: int) -> list[int]:
    """How many bytes of each text, from its start, are trained on; the rest is held out."""
    total = sum(text.size_bytes for text in texts)
    size_of_all_equal = Counter[bytes]()
    for text in texts:
        size_of_all_equal[text.digest] += text.size_bytes
    held_out: set[bytes] = set()
    room = total * held_out_percent // 100
    for digest, size_bytes in sorted(size_of_all_equal.items()):
        if size_bytes <= room:
            held_out.add(digest)
            room -= size_bytes
    if room > total * held_out_percent // 200:
        return [text.size_bytes - text.size_bytes * held_out_percent // 100 for text in texts]
    return [0 if text.digest in held_out else text.size_bytes for text in texts]


# ---- the cache -----------------------------------------------------------------------------------


def _cached(folder: Path, corpus_hash: str) -> Corpus | None:
    """The corpus in `folder`; None where it is missing, torn or another one."""
    try:
        content = json.loads((folder / _INDEX).read_bytes())
        corpus = Corpus(**content, folder=folder)
        whole = (
            corpus.train_file.stat().st_size == corpus.train_tokens
            and corpus.held_out_file.stat().st_size == corpus.held_out_tokens
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    return corpus if whole and corpus.corpus_hash == corpus_hash else None


def _prepare(corpus: Corpus, texts: list[_Text], held_out_percent: int) -> None:
    """Write the token files under a name of their own and rename the folder; who comes second finds
    it there and takes it.
    """
    with _temporary_folder(corpus.folder.parent) as temporary:
        written = _write_tokens(replace(corpus, folder=temporary), texts, held_out_percent)
        content = asdict(written)
        del content["folder"], content["dataset"], content["mixture"]
        (temporary / _INDEX).write_text(json.dumps(content))
        for file in (written.train_file, written.held_out_file, temporary / _INDEX):
            flush_to_disk(file)
        if corpus.folder.exists() and _cached(corpus.folder, corpus.corpus_hash) is None:
            with _temporary_folder(corpus.folder.parent) as torn, contextlib.suppress(FileNotFoundError):
                corpus.folder.rename(torn / corpus.folder.name)
        # Renaming onto a folder that is not empty fails: another process was first, and its bytes
        # are the same.
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            _rename_folder(temporary, corpus.folder)


def _rename_folder(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise FileExistsError(error.errno, error.strerror, str(folder)) from error
        raise


def _write_tokens(corpus: Corpus, texts: list[_Text], held_out_percent: int) -> Corpus:
    import numpy as np  # noqa: PLC0415 - bad data is refused before it is loaded

    token_max = 0
    with corpus.train_file.open("wb") as train, corpus.held_out_file.open("wb") as held_out:
        for text, train_size in zip(texts, _train_sizes(texts, held_out_percent), strict=True):
            digest, done = hashlib.sha256(), 0
            for chunk in _chunks(text.path):
                digest.update(chunk)
                split = min(len(chunk), max(0, train_size - done))
                train.write(chunk[:split])
                held_out.write(chunk[split:])
                done += len(chunk)
                token_max = max(token_max, int(np.frombuffer(chunk, np.uint8).max()))
            if digest.digest() != text.digest:
                raise DataError(f"{text.path}: changed while it was being read; the corpus must not change during a run")
        return replace(corpus, train_tokens=train.tell(), held_out_tokens=held_out.tell(), token_max=token_max)


@contextlib.contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder that nobody else touches while this process lives, and that the next one removes if
    this one is killed.
    """
    folder, descriptor = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    """Make a folder and lock it; one that somebody takes for a leftover before it is locked is
    given up for another.
    """
    while True:
        folder = parent / f"{_TEMPORARY_PREFIX}{uuid4().hex}"
        folder.mkdir()
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if folder.exists():
                    return folder, descriptor
            os.close(descriptor)


def _remove_leftovers(parent: Path) -> None:
    """Remove temporary folders of processes that were killed: those that nobody holds locked."""
    for folder in parent.glob(f"{_TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)

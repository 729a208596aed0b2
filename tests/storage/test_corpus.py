"""The corpus: what is in it, what is held out, and a cache that many processes may prepare at
once.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.errors import DataError, SwarmfreeError
from swarmfree.storage.corpus import Corpus, prepare_corpus, require_text

LimitedRun = Callable[[str, int], "subprocess.CompletedProcess[str]"]


def write_texts(folder: Path, texts: dict[str, bytes]) -> Path:
    """Write files below `folder`."""
    for name, content in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def many_texts(count: int, size_bytes: int = 400) -> dict[str, bytes]:
    """Different files of one size, drawn from a fixed seed."""
    draw = random.Random(5)
    return {f"{number % 7}/text{number}.txt": draw.randbytes(size_bytes) for number in range(count)}


def test_standard_library_is_the_default(tmp_path: Path) -> None:
    """Without --data the corpus is Python's own source, about 11 MB without tests, 5 % of it held
    out, ready in less than a second.
    """
    started_s = time.perf_counter()
    corpus = prepare_corpus("", tmp_path, 5)
    assert time.perf_counter() - started_s < 5  # 0.1 s on a quiet machine
    assert corpus.name == f"python-stdlib-{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    total = corpus.train_tokens + corpus.held_out_tokens
    assert total > 5_000_000
    assert 0.045 * total < corpus.held_out_tokens <= 0.05 * total
    assert corpus.token_max < 256
    text = corpus.train_file.read_bytes() + corpus.held_out_file.read_bytes()
    assert b"class TaskGroup:" in text
    # Written when an interpreter is built, so it differs between machines
    assert b"build_time_vars = {" not in text


def test_every_byte_is_in_exactly_one_of_the_two_files(tmp_path: Path) -> None:
    """Training and held-out text together are the corpus, in the order of names, nothing lost and
    nothing twice.
    """
    texts = many_texts(60)
    corpus = prepare_corpus(str(write_texts(tmp_path / "data", texts)), tmp_path / "cache", 10)
    train, held_out = corpus.train_file.read_bytes(), corpus.held_out_file.read_bytes()
    for name in sorted(texts):
        assert (texts[name] in train) != (texts[name] in held_out)
    assert len(train) == corpus.train_tokens
    assert len(held_out) == corpus.held_out_tokens == 6 * 400
    in_order = [texts[name] for name in sorted(texts) if texts[name] in train]
    assert train == b"".join(in_order)


def test_equal_files_fall_on_the_same_side(tmp_path: Path) -> None:
    """A text that is there twice is never both learned and tested."""
    texts = many_texts(40)
    copies = {f"copy/{name}": content for name, content in texts.items()}
    corpus = prepare_corpus(str(write_texts(tmp_path / "data", texts | copies)), tmp_path / "cache", 20)
    train, held_out = corpus.train_file.read_bytes(), corpus.held_out_file.read_bytes()
    assert not any(content in train and content in held_out for content in texts.values())
    assert held_out


def test_one_file_gives_its_end(tmp_path: Path) -> None:
    """Of a single file the last part is held out."""
    file = tmp_path / "book.txt"
    file.write_bytes(b"a" * 950 + b"b" * 50)
    corpus = prepare_corpus(str(file), tmp_path / "cache", 5)
    assert corpus.train_file.read_bytes() == b"a" * 950
    assert corpus.held_out_file.read_bytes() == b"b" * 50
    assert corpus.token_max == ord("b")


def test_few_large_files_give_their_ends(tmp_path: Path) -> None:
    """Where no file is small enough to be held out whole, the last part of each is."""
    folder = write_texts(tmp_path / "data", {"a": b"a" * 90 + b"A" * 10, "b": b"b" * 180 + b"B" * 20})
    corpus = prepare_corpus(str(folder), tmp_path / "cache", 10)
    assert corpus.train_file.read_bytes() == b"a" * 90 + b"b" * 180
    assert corpus.held_out_file.read_bytes() == b"A" * 10 + b"B" * 20


def test_hash_names_the_text_and_not_the_place(tmp_path: Path) -> None:
    """Equal files under equal names have one hash wherever they lie; a byte, a name or a boundary
    between files changes it.
    """
    base = {"a.txt": b"xy", "b.txt": b"z" * 100}

    def corpus_hash(number: int, texts: dict[str, bytes]) -> str:
        return prepare_corpus(str(write_texts(tmp_path / str(number), texts)), tmp_path / "cache", 5).corpus_hash

    assert corpus_hash(0, base) == corpus_hash(1, base)
    others = [{"a.txt": b"xx", "b.txt": b"z" * 100}, {"c.txt": b"xy", "b.txt": b"z" * 100}, {"a.txt": b"xyz", "b.txt": b"z" * 99}]
    assert len({corpus_hash(2 + number, texts) for number, texts in enumerate([base, *others])}) == 4


def test_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    """Peers may call the same file differently."""
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_bytes(b"text " * 100)
    first, second = (prepare_corpus(str(tmp_path / name), tmp_path / "cache", 5) for name in ("one.txt", "two.txt"))
    assert (first.corpus_hash, first.folder) == (second.corpus_hash, second.folder)
    assert (first.name, second.name) == ("one.txt", "two.txt")


def test_hidden_files_and_what_is_no_file_are_left_out(tmp_path: Path) -> None:
    """Hidden files and folders, pipes and links to nothing are no text."""
    folder = write_texts(tmp_path / "data", {"a": b"a" * 100, ".hidden": b"h" * 100, ".git/config": b"g" * 100})
    os.mkfifo(folder / "pipe")
    (folder / "dangling").symlink_to(folder / "nowhere")
    corpus = prepare_corpus(str(folder), tmp_path / "cache", 5)
    assert corpus.train_tokens + corpus.held_out_tokens == 100


@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=30), percent=st.integers(1, 50))
def test_held_out_share_is_never_exceeded(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], percent: int) -> None:
    """Whatever the sizes of the files, at most the asked share is held out, and at least nearly
    half of it.
    """
    draw = random.Random(1)
    folder = write_texts(
        tmp_path_factory.mktemp("data"), {str(number): draw.randbytes(size) for number, size in enumerate(sizes)}
    )
    if not sum(sizes):
        with pytest.raises(DataError, match="without a single byte"):
            prepare_corpus(str(folder), tmp_path_factory.mktemp("cache"), percent)
        return
    corpus = prepare_corpus(str(folder), tmp_path_factory.mktemp("cache"), percent)
    share = sum(sizes) * percent / 100
    assert corpus.train_tokens + corpus.held_out_tokens == sum(sizes)
    assert share / 2 - len(sizes) - 1 <= corpus.held_out_tokens <= share


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path, "no such file or folder"),
        (lambda path: path.write_bytes(b""), "without a single byte"),
        (lambda path: path.mkdir(), "a folder without files"),
        (os.mkfifo, "neither a file nor a folder"),
    ],
)
def test_text_that_is_not_there_is_told_in_one_line(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    """A missing path, an empty file, an empty folder and a pipe each end in one line that names the
    path.
    """
    path = tmp_path / "text"
    make(path)
    with pytest.raises(DataError, match=message) as caught:
        prepare_corpus(str(path), tmp_path / "cache", 5)
    assert "text: " in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- the cache -----------------------------------------------------------------------------------


def test_a_prepared_corpus_is_not_prepared_again(tmp_path: Path) -> None:
    """The second time the token files of the first are taken."""
    folder = write_texts(tmp_path / "data", many_texts(10))
    first = prepare_corpus(str(folder), tmp_path / "cache", 10)
    identity = first.train_file.stat().st_ino
    assert prepare_corpus(str(folder), tmp_path / "cache", 10) == first
    assert first.train_file.stat().st_ino == identity
    assert prepare_corpus(str(folder), tmp_path / "cache", 20).folder != first.folder


@pytest.mark.parametrize("torn", ["train.u8", "held_out.u8", "index.json"])
@pytest.mark.parametrize("how", ["short", "missing"])
def test_a_torn_cache_is_made_again(tmp_path: Path, torn: str, how: str) -> None:
    """What a power cut left half written is noticed and replaced."""
    folder = write_texts(tmp_path / "data", many_texts(10))
    whole = prepare_corpus(str(folder), tmp_path / "cache", 10)
    expected = whole.train_file.read_bytes()
    file = whole.folder / torn
    if how == "short":
        file.write_bytes(file.read_bytes()[:7])
    else:
        file.unlink()
    assert prepare_corpus(str(folder), tmp_path / "cache", 10) == whole
    assert whole.train_file.read_bytes() == expected
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [whole.folder.name]
    assert {path.name for path in whole.folder.iterdir()} == {"train.u8", "held_out.u8", "index.json"}


def test_a_cache_of_another_text_under_this_name_is_not_believed(tmp_path: Path) -> None:
    """The folder's short name is not enough: the whole hash is compared."""
    folder = write_texts(tmp_path / "data", many_texts(10))
    corpus = prepare_corpus(str(folder), tmp_path / "cache", 10)
    index = corpus.folder / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"corpus_hash": "0" * 64}))
    assert prepare_corpus(str(folder), tmp_path / "cache", 10).corpus_hash == corpus.corpus_hash


def test_processes_that_prepare_at_once_do_not_tear(tmp_path: Path) -> None:
    """Four processes start with an empty cache at the same moment; all get the same whole corpus
    and nothing else is left.
    """
    folder = write_texts(tmp_path / "data", many_texts(200, 5000))
    code = (
        "import sys; from pathlib import Path; from swarmfree.storage.corpus import prepare_corpus\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "corpus = prepare_corpus(sys.argv[1], Path(sys.argv[2]), 5)\n"
        "print(corpus.corpus_hash, len(corpus.train_file.read_bytes()), len(corpus.held_out_file.read_bytes()))\n"
    )
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = set()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        answers.add(process.communicate(timeout=30)[0])
        assert process.returncode == 0
    assert len(answers) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    """A leftover is a temporary folder that nobody holds locked."""
    cache = tmp_path / "cache"
    dead, held = cache / ".preparing-dead", cache / ".preparing-held"
    for folder in (dead, held):
        folder.mkdir(parents=True)
        (folder / "train.u8").write_bytes(b"half")
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    prepare_corpus(str(write_texts(tmp_path / "data", many_texts(3))), cache, 5)
    os.close(descriptor)
    assert not dead.exists()
    assert held.exists()


def test_full_disk_is_told_in_one_line_and_leaves_nothing(tmp_path: Path, limited_run: LimitedRun) -> None:
    """A cache that cannot be written ends in one line; no half corpus stays to be believed
    later.
    """
    folder = write_texts(tmp_path / "data", many_texts(50, 5000))
    code = (
        "from pathlib import Path; from swarmfree.storage.corpus import prepare_corpus; from swarmfree.protocol.errors import SwarmfreeError\n"
        f"try: prepare_corpus({str(folder)!r}, Path({str(tmp_path / 'cache')!r}), 5)\n"
        "except SwarmfreeError as error: print(error)\n"
    )
    done = limited_run(code, 100_000)
    assert done.stdout == f"{tmp_path / 'cache'}: keeping the corpus failed: File too large\n"
    assert not done.stderr
    assert list((tmp_path / "cache").iterdir()) == []


def test_cache_that_is_no_folder_is_told_in_one_line(tmp_path: Path) -> None:
    """A file in the cache's place is named."""
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(SwarmfreeError, match=r"cache: keeping the corpus failed: File exists"):
        prepare_corpus(str(write_texts(tmp_path / "data", many_texts(3))), tmp_path / "cache", 5)


def test_corpus_says_where_its_files_are(tmp_path: Path) -> None:
    """The two token files lie in the corpus' folder."""
    corpus = Corpus("x", "0" * 64, tmp_path, 1, 1, 0)
    assert (corpus.train_file.parent, corpus.held_out_file.parent) == (tmp_path, tmp_path)


def test_text_is_looked_at_before_it_is_read(tmp_path: Path) -> None:
    """As many bytes as one iteration needs are enough; a NUL byte is no text, though it is
    UTF-8.
    """
    path = tmp_path / "text.txt"
    path.write_bytes(b"x" * 100)
    require_text(str(path), 100)
    with pytest.raises(DataError, match="too short: 100 bytes; one iteration alone needs 101"):
        require_text(str(path), 101)
    path.write_bytes(b"x" * 99 + b"\0")
    with pytest.raises(DataError, match="no text in UTF-8"):
        require_text(str(path), 100)

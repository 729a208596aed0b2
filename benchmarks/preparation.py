"""How fast is text made into a dataset, beside the tokenizer's library alone?

``python -m benchmarks.preparation`` has `swarmfree data prepare` make tokens of a text, and another
process encode the same documents with the library `tokenizers` and throw the tokens away: batches
of the same size, read into memory before, on as many cores. Both begin at once and take turns, half
a second each while the other is stopped (SIGSTOP); only the time in which one runs counts as its
own. The text is Python's own source, or what lies in a folder, repeated until it is long enough, as
JSON lines of documents of about two thousand letters, no two alike. The tokenizer is a BPE of 4,096
trained on a part of it.

*over_alone* is the library's time over that of the preparation from its start to its end, hashing,
checks and the index with it; 0.8 or more is wanted. *memory_mb* is the most that the preparation
had, less than 1,000 is wanted. Rates are MB of text a second of each one's own time. With
`--minutes` both are ended then; what each has read of the text by then counts (*whole* is 0), a few
MB too many for the preparation, which reads ahead.

Progress goes to stderr; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swarmfree.storage.dataset_tokenizer import train_tokenizer

MEGABYTES, QUICK_MEGABYTES = 1000, 20
TURN_S = 0.5
DOCUMENT_LETTERS = 2000
TRAINED_ON_LETTERS = 8_000_000
VOCABULARY = 4096
PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
LIBRARY = """\
import json, sys
from tokenizers import Tokenizer
tokenizer, texts, size = Tokenizer.from_file(sys.argv[1]), [], 0
for line in open(sys.argv[2], encoding="utf-8"):
    texts.append(json.loads(line)["text"])
    size += len(texts[-1])
    if size >= 4 << 20:
        tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        texts, size = [], 0
tokenizer.encode_batch_fast(texts, add_special_tokens=False)
"""
PREPARE = "import sys; from swarmfree.cli.main import main; sys.argv[0] = 'swarmfree'; main()"


def texts_in(folder: Path) -> str:
    """All text of a folder, of no Python file that is a test."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in {".txt", ".py"} and "test" not in path.parts)
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


def documents(text: str, size_bytes: int) -> Iterator[str]:
    """Cuts of a text at drawn places, each with a number, until they are so many bytes."""
    draw, done, number = random.Random(1), 0, 0
    while done < size_bytes:
        start = draw.randrange(max(1, len(text) - DOCUMENT_LETTERS))
        document = f"{number} {text[start : start + draw.randrange(DOCUMENT_LETTERS // 2, DOCUMENT_LETTERS * 3 // 2)]}"
        yield document
        done, number = done + len(document.encode()), number + 1


@dataclass(slots=True)
class Side:
    """A process that takes turns.

    Attributes:
        own_s: for how long it was not stopped.
        memory_mb: the most that it had, as seen after each turn but the last: what the system says
            of a process that has ended counts that of the one that started it.
    """

    name: str
    process: subprocess.Popen[bytes]
    own_s: float = 0.0
    memory_mb: float = 0.0
    is_over: bool = False

    def run(self, turn_s: float) -> None:
        """Let it go on for a while, or until it ends."""
        begun_s, end = time.monotonic(), os.pidfd_open(self.process.pid)
        self.process.send_signal(signal.SIGCONT)
        select.select([end], (), (), turn_s)
        os.close(end)
        self.is_over = self.process.poll() is not None
        if not self.is_over:
            self.process.send_signal(signal.SIGSTOP)
        self.own_s += time.monotonic() - begun_s
        if not self.is_over and (found := PEAK.search(Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8"))):
            self.memory_mb = int(found[1]) * 1024 / 1e6


def read_bytes(side: Side, source: Path) -> int:
    """How far in the text a process that is stopped has read; 0 where it has not opened it."""
    place = Path(f"/proc/{side.process.pid}")
    with contextlib.suppress(OSError):
        for descriptor in (place / "fd").iterdir():
            if descriptor.readlink() == source:
                return int((place / "fdinfo" / descriptor.name).read_text(encoding="utf-8").split()[1])
    return 0


def begun(name: str, command: list[str]) -> Side:
    """Start it, stopped."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    process.send_signal(signal.SIGSTOP)
    return Side(name, process)


def measure(folder: Path, text: str, size_bytes: int, limit_s: float) -> dict[str, float]:
    """Play both sides once, for so long at most.

    Raises:
        SystemExit: one of them failed.
    """
    source, tokenizer = folder / "text.jsonl", folder / "tokenizer.json"
    tokenizer.write_bytes(train_tokenizer(iter([text[:TRAINED_ON_LETTERS]]), VOCABULARY))
    text_bytes = 0
    with source.open("w", encoding="utf-8") as file:
        for document in documents(text, size_bytes):
            file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
            text_bytes += len(document.encode())
    say(f"{text_bytes / 1e6:,.0f} MB of text")
    prepare = ["-c", PREPARE, "data", "prepare", str(source), "--tokenizer", str(tokenizer), "--out", str(folder / "out")]
    sides = begun("preparation", prepare), begun("library", ["-c", LIBRARY, str(tokenizer), str(source)])
    done, begun_s = [0, 0], time.monotonic()
    try:
        while not all(side.is_over for side in sides) and time.monotonic() < begun_s + limit_s:
            for side in sides:
                if not side.is_over:
                    side.run(TURN_S)
        source_bytes = source.stat().st_size
        done = [source_bytes if side.is_over else read_bytes(side, source) for side in sides]
    finally:
        for side in sides:
            if not side.is_over:
                side.process.kill()
                side.process.wait()
                side.process.returncode = 0
    failed = [side.name for side in sides if side.process.returncode]
    if failed:
        raise SystemExit(f"{' and '.join(failed)} failed")
    preparation = sides[0]
    rates = [text_bytes / 1e6 * read / source_bytes / side.own_s for read, side in zip(done, sides, strict=True)]
    return {
        "over_alone": round(rates[0] / rates[1], 3),
        "memory_mb": round(preparation.memory_mb),
        "preparation_mb_per_s": round(rates[0], 2),
        "library_mb_per_s": round(rates[1], 2),
        "text_mb": round(text_bytes / 1e6 * min(done) / source_bytes),
        "whole": int(all(side.is_over for side in sides)),
        "cores": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 1),
    }


def say(line: str) -> None:
    """Tell how far it is."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="size of the text")
    parser.add_argument("--text", type=Path, default=Path(sysconfig.get_path("stdlib")), help="folder of text that is repeated")
    parser.add_argument("--minutes", type=float, default=60.0, help="end both then")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    options = parser.parse_args()
    size_bytes = (QUICK_MEGABYTES if options.quick else options.megabytes) * 1_000_000
    with tempfile.TemporaryDirectory(prefix="swarmfree-preparation-") as folder:
        print(json.dumps(measure(Path(folder), texts_in(options.text), size_bytes, 60 * options.minutes)))


if __name__ == "__main__":
    main()

"""Let atheris loose on one reader of others' bytes, or on all, one after the other.

`make fuzz` takes ten minutes for each target. `python -m tests.attacks.fuzz_bytes 600` does the
same where atheris is installed; with names behind the number it takes those alone. A crash, an
input that takes more than 5 s, and growth by more than 64 MB end a target and give exit code 1; the
input stays in the folder that is named.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLOW_S = 5
GROWTH_MB_MAX = 64
LOOK_EVERY = 1 << 12
WARM_RUNS = 1 << 14
INPUT_BYTES_MAX = 1 << 14


def fuzz(name: str, seconds: int, folder: Path) -> None:
    """One target in this process, which libFuzzer ends."""
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=["swarmfree.wire", "swarmfree.protocol"], enable_loader_override=False):
        from tests.attacks.byte_targets import targets

    target = targets()[name]
    runs, began_mb = 0, 0.0

    def one(data: bytes) -> None:
        nonlocal runs, began_mb
        target.take(data)
        runs += 1
        if runs == WARM_RUNS:
            began_mb = _resident_mb()
        elif runs > WARM_RUNS and runs % LOOK_EVERY == 0 and _resident_mb() - began_mb > GROWTH_MB_MAX:
            raise MemoryError(f"{name} has grown from {began_mb:.0f} to {_resident_mb():.0f} MB in {runs - WARM_RUNS:,} runs")

    corpus = folder / name
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed{number}").write_bytes(seed)
    options = [f"-max_total_time={seconds}", f"-timeout={SLOW_S}", f"-max_len={INPUT_BYTES_MAX}", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={corpus}/found-", str(corpus)], one)
    atheris.Fuzz()


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main(arguments: list[str]) -> int:
    """Each target in a process of its own, and a line on each; 1 where one found something."""
    if arguments[:1] == ["--one"]:
        fuzz(arguments[1], int(arguments[2]), Path(arguments[3]))
        return 0
    from tests.attacks.byte_targets import targets

    seconds, names, failed = int(arguments[0]), arguments[1:] or list(targets()), 0
    folder = Path(tempfile.mkdtemp(prefix="swarmfree-fuzz-"))
    for name in names:
        began_s = time.monotonic()
        command = [sys.executable, "-m", "tests.attacks.fuzz_bytes", "--one", name, str(seconds), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told = dict(line.removeprefix("stat::").split(":", 1) for line in done.stderr.splitlines() if line.startswith("stat::"))
        runs, peak_mb = (told.get(f"{key}", "?").strip() for key in ("number_of_executed_units", "peak_rss_mb"))
        verdict = "clean" if done.returncode == 0 else f"FAILED, see {folder / name}"
        sys.stdout.write(f"{name}: {runs} runs in {time.monotonic() - began_s:.0f} s, peak {peak_mb} MB: {verdict}\n")
        if done.returncode:
            sys.stdout.write(done.stderr[-3000:])
        sys.stdout.flush()
        failed += done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

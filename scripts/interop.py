"""Holds exported models to software that nobody here wrote: ``python scripts/interop.py``, or `make
interop`.

- *transformers 4.57*, beside the 5 that the tests use: logits to the bit (float32, sdpa), the
  tokenizer's tokens, and greedy text;
- *ctranslate2*: converts the export, and writes the same greedy text;
- *lm-eval*: `loglikelihood_rolling` gives the bits per byte of `swarmfree eval` to 0.0001.

Each comes from the package registry into a virtual environment of its own, in ``.interop``, which
sees the packages of the environment that runs this script behind its own ones, so that torch is not
fetched again. The models are trained for it, with a rotary base that is nobody's default: one of
bytes, one of a BPE of 600 symbols. They learn the pages of docs/ but for the log, which is the text
that they are scored on. `--model DIR --text FILE` takes an export and a text of yours instead.

What a library is asked stands in `scripts/interop_side.py`, which knows nothing of swarmfree. The
last line is one JSON object with versions and figures; the exit code is 1 where one disagrees.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swarmfree.cli.writer import tokenizer_in
from swarmfree.model.sampling import continue_text, llama_of
from swarmfree.storage.weights import read_weights

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = {
    "transformers": ("transformers==4.57.6",),
    "ctranslate2": ("ctranslate2==4.8.5",),
    "lm-eval": ("lm-eval[hf]==0.4.13",),
}
ITERATIONS, VOCABULARY, ROPE_THETA = 60, 600, 50_000.0
PROMPTS = ("The ", "A peer that ", "def main(")


def python_of(folder: Path, library: str) -> Path:
    """The interpreter of a library's environment, which is made where it is not there."""
    place = folder / library
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    done = place / "installed"
    wanted = " ".join(REQUIREMENTS[library])
    if done.is_file() and done.read_text() == wanted:
        return python
    venv.create(place, with_pip=True, clear=True)
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True
    )
    (Path(found.stdout.strip()) / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[library]], check=True)
    done.write_text(wanted)
    return python


def swarmfree(*arguments: str) -> str:
    """What a command of ours prints."""
    command = (sys.executable, "-m", "swarmfree", *arguments)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"swarmfree {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def trained(folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """Name, export and text of the two models."""
    shutil.rmtree(folder, ignore_errors=True)
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name != "log.md":
            shutil.copyfile(page, texts / page.name)
    text = folder / "log.txt"
    # What stands first is predicted by nobody here; a line break is a token of its own in both
    text.write_text("\n" + (ROOT / "docs" / "log.md").read_text(encoding="utf-8"), encoding="utf-8")
    for name, tokenizer, vocabulary in (("bytes", "bytes", 256), ("bpe", f"train:{VOCABULARY}", VOCABULARY)):
        data, report, out = (str(folder / f"{name}-{what}") for what in ("data", "report", "model"))
        swarmfree("data", "prepare", str(texts), "--tokenizer", tokenizer, "--out", data)
        values = (f"model.vocabulary={vocabulary}", f"model.rope_theta={ROPE_THETA}", f"run.iterations={ITERATIONS}")
        sets = [word for value in values for word in ("--set", value)]
        swarmfree("local", "--peers", "4", "--standbys", "0", "--data", data, "--out", report, *sets)
        swarmfree("export", report, "--out", out)
        yield name, Path(out), text


def ours(model: Path, text: Path, out: Path) -> None:
    """What swarmfree says of a model, written to a folder: logits, greedy tokens, bits per byte."""
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    section, weights = read_weights(model)
    llama, tokenizer = llama_of(section, weights), tokenizer_in(model)
    symbols, row = min(tokenizer.vocabulary, section.vocabulary), section.tokens_per_row
    rows = torch.randint(0, symbols, (3, row), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        np.savez(out / "logits.npz", tokens=rows.numpy(), logits=llama(rows).numpy())
    greedy = []
    for prompt in PROMPTS:
        begun = tokenizer.encode([prompt.encode()])[0].tolist()
        count = row - len(begun)
        found = list(continue_text(llama, begun, count=count, temperature=0.0, seed=0, symbols=symbols))
        greedy.append({"prompt": prompt, "begun": begun, "tokens": found})
    content = text.read_bytes()
    said = {
        "greedy": greedy,
        "row": row,
        "rope_theta": section.rope_theta,
        "text": str(text),
        "tokens": tokenizer.encode([content])[0].tolist(),
        "bits_per_byte": json.loads(swarmfree("eval", str(model), "--data", str(text), "--json"))["bits_per_byte"],
    }
    (out / "ours.json").write_text(json.dumps(said))


def main() -> int:
    """Ask all libraries about all models."""
    parser = argparse.ArgumentParser(description="Hold exported models to transformers 4.57, ctranslate2 and lm-eval.")
    parser.add_argument("--model", type=Path, help="folder of an export (default: two are trained)")
    parser.add_argument("--text", type=Path, help="file of text in UTF-8 that it is scored on; goes with --model")
    parser.add_argument("--folder", type=Path, default=ROOT / ".interop", help="of environments and models (default %(default)s)")
    parser.add_argument("--only", choices=sorted(REQUIREMENTS), help="ask this one alone")
    given = parser.parse_args()
    if (given.model is None) != (given.text is None):
        parser.error("--model and --text go together")
    folder: Path = given.folder.resolve()
    models = [("model", given.model, given.text)] if given.model else trained(folder / "models")
    found: dict[str, dict[str, Any]] = {}
    for name, model, text in models:
        ours(model, text, folder / "ours" / name)
        for library in [given.only] if given.only else REQUIREMENTS:
            python = python_of(folder, library)
            command = (python, str(ROOT / "scripts" / "interop_side.py"), library, str(model), str(folder / "ours" / name))
            env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
            done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
            lines = done.stdout.splitlines()
            said = json.loads(lines[-1]) if not done.returncode and lines else {"agrees": False, "error": done.stderr[-2000:]}
            found[f"{name}, {library}"] = said
            print(f"{name}, {library}: {'agrees' if said['agrees'] else 'DISAGREES'} {said}", flush=True)
    print(json.dumps(found))
    return 0 if all(said["agrees"] for said in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

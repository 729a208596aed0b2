"""A folder with a model for people: whole or not there at all, with a model card that says where it
comes from.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.protocol.manifest import ModelSection
from swarmfree.storage.atomic_files import existing_folder, told_in_one_line, write_whole

CARD_NAME = "README.md"
_UNKNOWN = "not recorded"


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """Where a model comes from.

    Args:
        run: name of the run.
        fingerprint: of its manifest, 64 hex digits.
        iteration: that the weights are ready for, None where nobody noted it.
        data: name of the corpus.
        data_hash: SHA-256 of it; empty where nobody noted it.
        loss: training loss in the iteration that began with these weights, nats per token.
        digests: state digest of each stage, as the record of that iteration names it; empty where
            none was compared.
    """

    run: str
    fingerprint: str
    iteration: int | None = None
    data: str = ""
    data_hash: str = ""
    loss: float | None = None
    digests: tuple[str, ...] = ()


def require_new(folder: Path) -> None:
    """Go on where a folder is new or empty.

    Raises:
        ConfigError: it is neither, or cannot be looked at.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--out {folder}: a new or empty folder is expected, and something lies there; name another one")
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be looked at: {error.strerror}") from error


def require_room(folder: Path, size_bytes: int) -> None:
    """Go on where the disk has room for so many bytes.

    Raises:
        SwarmfreeError: it has not.
    """
    with told_in_one_line(folder, "looking for room"):
        free_bytes = shutil.disk_usage(existing_folder(folder)).free
    if free_bytes < size_bytes:
        raise SwarmfreeError(
            f"{folder}: the disk is full: {size_bytes / 1e6:,.1f} MB are needed and {free_bytes / 1e6:,.1f} MB are free"
        )


@contextlib.contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A folder beside `folder`, which takes its place at the end of the block, and is removed where
    that fails.

    Raises:
        ConfigError: something lies in `folder` by then.
        SwarmfreeError: the disk refuses.
    """
    beside = folder.absolute().with_name(f".{folder.absolute().name}.{uuid4().hex[:8]}")
    with told_in_one_line(folder, "making the folder"):
        beside.mkdir(parents=True)
    try:
        yield beside
        require_new(folder)
        with told_in_one_line(folder, "putting it in its place"):
            beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_card(folder: Path, origin: ModelOrigin, model: ModelSection) -> None:
    """Write the model card, the README.md of a folder on the Hugging Face hub.

    Raises:
        SwarmfreeError: the disk is full or refuses.
    """
    write_whole(folder / CARD_NAME, model_card(origin, model).encode())


def model_card(origin: ModelOrigin, model: ModelSection) -> str:
    """The text of the card: what the model is, where it comes from, and how it is loaded."""
    iteration = _UNKNOWN if origin.iteration is None else str(origin.iteration)
    rows = {
        "run": origin.run or _UNKNOWN,
        "fingerprint": f"`{origin.fingerprint}`",
        "iteration": iteration,
        "data": origin.data or _UNKNOWN,
        "data hash": f"`{origin.data_hash}`" if origin.data_hash else _UNKNOWN,
        "training loss": _UNKNOWN if origin.loss is None else f"{origin.loss:.4f} nats per token",
        "shape": f"{model.blocks} blocks, width {model.width}, {model.heads} heads ({model.kv_heads} key-value), vocabulary "
        f"{model.vocabulary}, {model.tokens_per_row} tokens per row",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    proven = "\n".join(f"- stage {stage}: `{digest}`" for stage, digest in enumerate(origin.digests))
    proof = f"\nThe weights have the state digests that the swarm's record of iteration {iteration} names:\n\n{proven}\n"
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- swarmfree
- llama
---

# {origin.run or "swarmfree model"}

A LLaMA in float32, trained by a decentralised swarm (swarmfree). Its licence is that of whoever trained it and of its data.

| what | value |
|---|---|
{table}
{proof if proven else ""}
## How to load it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER", attn_implementation="sdpa")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
print(tokenizer.decode(model.generate(**tokenizer("def ", return_tensors="pt"), max_new_tokens=64)[0]))
```

Or `swarmfree sample FOLDER "def "` and `swarmfree eval FOLDER --data PATH`.
"""


def note_of(folder: Path, name: str) -> dict[str, object]:
    """A JSON object that lies in a folder; empty where none does."""
    try:
        found = json.loads((folder / name).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

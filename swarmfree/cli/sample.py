"""``swarmfree sample``: have a finished model write."""

from __future__ import annotations

import codecs
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from swarmfree.storage.dataset_tokenizer import TextTokenizer

PROMPT = "def "


def sample(
    report: Annotated[
        Path, typer.Argument(metavar="REPORT", help="Folder of a report, or the folder of weights in it.", show_default=False)
    ],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What the text begins with.")] = PROMPT,
    *,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, max=1_000_000, help="Tokens to write; of a model of bytes, bytes.")
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature", min=0.0, max=10.0, help="0 takes the likeliest token each time; 1 draws as the model says."
        ),
    ] = 0.7,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of the draws: the same seed writes the same text.")
    ] = 0,
) -> None:
    """Write on from a prompt with the weights of a finished run, on this machine, without the
    swarm.
    """
    pieces = written(weights_folder(report), prompt, tokens=tokens, temperature=temperature, seed=seed)
    first = next(pieces)  # before anything is printed, so that an error stands alone
    typer.echo(prompt + shown(first), nl=False)
    for piece in pieces:
        typer.echo(shown(piece), nl=False)
        sys.stdout.flush()
    typer.echo()


def shown(piece: str) -> str:
    """What a model wrote, as a terminal may have it: control characters are dots, but for line
    breaks and tabs.
    """
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\N{MIDDLE DOT}" for letter in piece)


def weights_folder(report: Path) -> Path:
    """Find the folder with a report's weights: its ``weights``, or the folder itself."""
    return report / "weights" if (report / "weights").is_dir() else report


def written(folder: Path, prompt: str, *, tokens: int, temperature: float, seed: int) -> Iterator[str]:
    """What the model in a folder writes after a prompt, piece by piece; bytes that are no text are
    shown as U+FFFD.

    Raises:
        SwarmfreeError: there is no whole model.
    """
    from swarmfree.storage.weights import read_weights  # noqa: PLC0415 - help is fast

    model, weights = read_weights(folder)
    tokenizer = tokenizer_in(folder)
    import torch  # noqa: PLC0415 - it takes seconds to load

    from swarmfree.model.sampling import continue_text, llama_of  # noqa: PLC0415 - as torch

    torch.set_num_threads(
        1
        # For one token at a time; two threads that wait for each other on a busy machine took 66 s
        # instead of 2
    )
    llama = llama_of(model, weights)
    symbols = min(tokenizer.vocabulary, model.vocabulary)
    content = prompt.encode("utf-8", "surrogateescape" if tokenizer.is_bytes else "replace") or b"\n"
    begun = [int(token) for token in tokenizer.encode([content])[0]]
    following = continue_text(llama, begun, count=tokens, temperature=temperature, seed=seed, symbols=symbols)
    if tokenizer.is_bytes:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for byte in following:
            yield decoder.decode(bytes([byte]))
        yield decoder.decode(b"", final=True)
        return
    end = _end_token(folder)
    yield from tokenizer.pieces(begun, itertools.takewhile(lambda token: token != end, following))


def tokenizer_in(folder: Path) -> TextTokenizer:
    """The tokenizer beside a model's weights.

    Raises:
        ConfigError: there is none, or it is no tokenizer.
    """
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast
    from swarmfree.storage.atomic_files import told_in_one_line  # noqa: PLC0415 - help is fast
    from swarmfree.storage.dataset import TOKENIZER_FILE  # noqa: PLC0415 - help is fast
    from swarmfree.storage.dataset_tokenizer import TextTokenizer  # noqa: PLC0415 - help is fast

    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise ConfigError(f"{folder}: no {TOKENIZER_FILE}; copy that of the dataset that the run learned from here")
    with told_in_one_line(path, "reading"):
        config = _json_in(folder / "tokenizer_config.json")
        return TextTokenizer(path.read_bytes(), str(path), str(config.get("eos_token") or ""))


def _end_token(folder: Path) -> int | None:
    """The token that ends a text; None where there is none."""
    found = _json_in(folder / "generation_config.json").get("eos_token_id")
    return found if isinstance(found, int) else None


def _json_in(path: Path) -> dict[str, Any]:
    """What a file of ours says; nothing where it is missing."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

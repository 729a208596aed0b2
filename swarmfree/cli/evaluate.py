"""``swarmfree eval``: how well a finished or exported model predicts a text."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmfree.cli.options import BytesOption
from swarmfree.cli.sample import weights_folder
from swarmfree.cli.writer import tokenizer_in

if TYPE_CHECKING:
    from swarmfree.model.evaluation import TextScore
    from swarmfree.storage.dataset import Dataset
    from swarmfree.storage.scored_text import ScoredText

WHOLE = 0
SAY_S = 5.0
SMALL = 10_000_000
"""Parameters up to which one thread computes: two that wait for each other on a busy machine took
55 s instead of 7.
"""


def evaluate(
    model: Annotated[
        Path, typer.Argument(metavar="DIR|REPORT", help="Folder of an exported model, or of a report.", show_default=False)
    ],
    *,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="PATH",
            help="File or folder of text, or a dataset: its held-out half.",
            show_default=False,
        ),
    ],
    held_out_percent: Annotated[
        int,
        typer.Option(
            "--held-out-percent",
            metavar="PERCENT",
            min=0,
            max=50,
            help="Only what a run with this data.held_out_percent holds out of the text; 0 takes all of it.",
        ),
    ] = WHOLE,
    data_is_bytes: BytesOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Say how well a model predicts a text: loss in nats per token, perplexity, and bits per byte.

    What is no text is refused; a model of bytes takes it with --data-is-bytes.

    It computes on this machine, in float32, as a run's held-out evaluation does; that one looks
    at some rows, spread over the held-out text, and this at all of it.
    """
    from swarmfree.protocol.errors import ConfigError, DataError  # noqa: PLC0415 - help is fast
    from swarmfree.storage.scored_text import held_out_of, text_of  # noqa: PLC0415 - help is fast
    from swarmfree.storage.weights import read_weights  # noqa: PLC0415 - help is fast

    if not data:
        raise ConfigError("--data: a file or a folder of text, or a dataset, is expected, and nothing is named")
    dataset = _dataset_of(data)
    if dataset is not None and held_out_percent:
        raise ConfigError(f"--held-out-percent: the dataset {data} has a held-out half of its own, which is looked at")
    folder = weights_folder(model)
    section, weights = read_weights(folder)
    tokenizer = tokenizer_in(folder)
    if section.vocabulary < tokenizer.vocabulary:
        raise ConfigError(
            f"{folder}: its tokenizer has {tokenizer.vocabulary} tokens, and its model {section.vocabulary}; they do not belong together"
        )
    _require_text(data, data_is_bytes=data_is_bytes, is_dataset=dataset is not None, reads_bytes=tokenizer.is_bytes)
    import torch  # noqa: PLC0415 - it takes seconds to load

    from swarmfree.model.evaluation import text_loss  # noqa: PLC0415 - as torch
    from swarmfree.model.sampling import llama_of  # noqa: PLC0415 - as torch

    text = held_out_of(dataset, tokenizer) if dataset is not None else text_of(data, held_out_percent, tokenizer)
    try:
        tokens = text.tokens
        llama = llama_of(section, weights)
        if sum(each.numel() for each in llama.parameters()) <= SMALL:
            torch.set_num_threads(1)
        found = text_loss(llama, tokens, text.predicted_bytes, _HowFar(len(tokens) - 1, time.monotonic()).say)
    except DataError as error:
        raise DataError(f"{data}: {error}; take a longer text, or a larger part of it") from error
    _tell(found, text, held_out_percent, as_json=as_json)


def _dataset_of(data: str) -> Dataset | None:
    """The dataset that is named; None where it is text.

    Raises:
        ConfigError: it is a mixture.
    """
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast
    from swarmfree.storage.data_location import find_data  # noqa: PLC0415 - help is fast
    from swarmfree.storage.mixture import Mixture  # noqa: PLC0415 - help is fast

    found = find_data(data)
    if isinstance(found, Mixture):
        raise ConfigError(f"--data {data}: a mixture; name one of its datasets: {', '.join(one.place for one in found.datasets)}")
    return found


def _require_text(data: str, *, data_is_bytes: bool, is_dataset: bool, reads_bytes: bool) -> None:
    """Whether the data is what the model reads.

    Raises:
        ConfigError: bytes are to be taken where only text can be.
        DataError: it is no text.
    """
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast
    from swarmfree.storage.corpus import require_text  # noqa: PLC0415 - help is fast

    if data_is_bytes and (is_dataset or not reads_bytes):
        raise ConfigError("--data-is-bytes: only a model of bytes takes bytes that are no text, and no dataset; leave it out")
    if reads_bytes and not is_dataset and not data_is_bytes:  # any other tokenizer says itself where the text ends
        require_text(data, 1)


class _HowFar:
    """How far it is: a line on stderr every few seconds."""

    def __init__(self, tokens: int, begun_s: float) -> None:
        self._tokens, self._begun_s, self._said_s = tokens, begun_s, begun_s

    def say(self, done: int) -> None:
        """Tell it, where it is time."""
        now_s = time.monotonic()
        if now_s - self._said_s < SAY_S:
            return
        self._said_s = now_s
        left_s = (now_s - self._begun_s) * (self._tokens - done) / done
        sys.stderr.write(f"{done:,} of {self._tokens:,} tokens, {left_s:,.0f} s left\n")
        sys.stderr.flush()


def _tell(found: TextScore, text: ScoredText, held_out_percent: int, *, as_json: bool) -> None:
    """Print how well the text was predicted."""
    if as_json:
        said = {
            "loss": found.loss,
            "perplexity": found.perplexity,
            "bits_per_byte": found.bits_per_byte,
            "tokens": found.tokens,
            "data": text.name,
            "data_hash": text.data_hash,
            "held_out_percent": held_out_percent,
        }
        typer.echo(json.dumps(said, indent=2))
        return
    typer.echo(f"{found.tokens:,} tokens of {text.part}{text.name}")
    typer.echo(
        f"loss {found.loss:.4f} nats per token, perplexity {found.perplexity:.3f}, {found.bits_per_byte:.4f} bits per byte"
    )

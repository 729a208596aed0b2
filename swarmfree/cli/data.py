"""``swarmfree data``: text made into token shards that a run learns from, and what lies in them."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from swarmfree.storage.dataset import Dataset
    from swarmfree.storage.dataset_writer import PreparationProgress
    from swarmfree.storage.mixture import Mixture

data_app = typer.Typer(help="Make token shards of text, and look at them.", no_args_is_help=True, rich_markup_mode=None)

SHOWN_TOKENS = 64
SAY_S = 5.0
PREPARE_EXAMPLES = "\b\nExamples:\n" + "\n".join(
    f"  swarmfree data prepare {example}"
    for example in (
        "books/ --tokenizer train:4096 --out books-4096",
        "web.jsonl.zst --field content \\\n      --tokenizer gpt2/tokenizer.json --out web",
        "chats.jsonl --tokenizer model \\\n      --pack best-fit:512 --out chats",
        "*.parquet --tokenizer bytes \\\n      --held-out-percent 2 --out bytes",
        "hf:roneneldan/TinyStories \\\n      --tokenizer train:4096 --out stories",
    )
)
INFO_EXAMPLES = "\b\nExamples:\n" + "\n".join(
    f"  swarmfree data info {example}"
    for example in ("books-4096", "books-4096 --check --json", "s3://bucket/books-4096", "books-and-web.mixture.toml")
)


SourcesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="SOURCE",
        help="Text files, .jsonl (also .gz, .zst), .parquet, folders of them, or hf:OWNER/NAME of the Hugging Face hub; "
        "a row is a document, and so is a text file.",
        show_default=False,
    ),
]


@data_app.callback()
def data() -> None:
    """Make token shards of text, and look at them."""


@data_app.command(short_help="Make token shards of text.", epilog=PREPARE_EXAMPLES)
def prepare(
    sources: SourcesArgument,
    *,
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            metavar="T",
            help="bytes, the path of a tokenizer.json or of its folder, or train:VOCAB, a byte-level BPE with so many symbols.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the dataset, new or empty.", show_default=False)],
    field: Annotated[str, typer.Option("--field", metavar="NAME", help="Name of the text in rows.")] = "text",
    held_out_percent: Annotated[
        float,
        typer.Option(
            "--held-out-percent", metavar="PERCENT", min=0.01, max=50.0, help="Share of the documents that is not trained on."
        ),
    ] = 1.0,
    end_of_text: Annotated[
        str,
        typer.Option(
            "--end-of-text",
            metavar="TOKEN",
            help="Token of the tokenizer.json behind each document. Default: its usual one.",
            show_default=False,
        ),
    ] = "",
    shard_tokens: Annotated[
        int, typer.Option("--shard-tokens", metavar="N", min=1, max=2**31 - 1, help="Tokens of a shard; two bytes each.")
    ] = 100_000_000,
    pack: Annotated[
        str,
        typer.Option(
            "--pack",
            metavar="best-fit:T",
            help="Order documents so that rows of T tokens, model.tokens_per_row of the run, cut few of them. Default: as they come.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Make a dataset: token shards in the form of llm.c, the tokenizer, and an index with hashes.

    Documents are separated by the end-of-text token; of bytes, by the byte 0. Which documents are
    held out, only their text decides. A preparation that was ended, by Ctrl-C or by kill -9, goes
    on with the same command and ends in the same bytes. `--data DIR` then has a run learn from it.
    """
    from swarmfree.cli.early_checks import require_folder  # noqa: PLC0415 - help is fast
    from swarmfree.cli.interrupt import interrupt_by_exception  # noqa: PLC0415 - help is fast
    from swarmfree.storage.dataset_writer import PreparationOrder, prepare_dataset  # noqa: PLC0415 - help is fast

    require_folder("--out", out)
    interrupt_by_exception()
    order = PreparationOrder(
        tuple(sources), tokenizer, out, field, held_out_percent, end_of_text, shard_tokens, _row_tokens(pack)
    )
    speaker = _Speaker()
    try:
        dataset = prepare_dataset(order, speaker.say, time.monotonic)
    except KeyboardInterrupt:
        speaker.close()
        typer.echo(f"{out} is not whole; the same command goes on with it", err=True)
        raise
    finally:
        speaker.close()
    for line in _lines(dataset):
        typer.echo(line)


def _row_tokens(pack: str) -> int:
    """T of ``best-fit:T``; 0 where nothing is packed."""
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast

    text = pack.removeprefix("best-fit:")
    if not pack:
        return 0
    if text == pack or not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise ConfigError(f"--pack {pack}: best-fit:T expected, T the tokens of a row of the run, as in best-fit:512")
    return int(text)


@data_app.command(short_help="Say what is in a dataset.", epilog=INFO_EXAMPLES)
def info(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="Folder of a dataset or of token shards, URL of a dataset, or file of a mixture.",
            show_default=False,
        ),
    ],
    *,
    check: Annotated[bool, typer.Option("--check", help="Read every shard, and compare its hash with the index.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Say what is in a dataset or a mixture, and show the first tokens as text.

    Sizes are always compared with what the index and the headers of the shards say; behind a URL
    only with --check.
    """
    from swarmfree.storage.data_location import checked_data  # noqa: PLC0415 - help is fast
    from swarmfree.storage.mixture import Mixture  # noqa: PLC0415 - help is fast

    with tempfile.TemporaryDirectory(prefix="swarmfree-data-") as cache:
        found = _found(place, Path(cache))
        if check:
            found = checked_data(found)
            for dataset in found.datasets if isinstance(found, Mixture) else (found,):
                _check_remote(dataset)
        if isinstance(found, Mixture):
            _tell_mixture(found, is_checked=check, as_json=as_json)
        else:
            _tell_dataset(found, is_checked=check, as_json=as_json)


def _found(place: str, cache: Path) -> Dataset | Mixture:
    from swarmfree.protocol.errors import DataError  # noqa: PLC0415 - help is fast
    from swarmfree.storage.data_location import find_data  # noqa: PLC0415 - help is fast
    from swarmfree.storage.mixture import is_mixture  # noqa: PLC0415 - help is fast

    found = find_data(place, cache)
    if found is None and not Path(place).expanduser().exists():
        what = "file of a mixture" if is_mixture(place) else "folder; that of a dataset expected"
        raise DataError(f"{place}: no such {what}")
    if found is None:
        raise DataError(f"{place}: no dataset: neither an index of ours nor token shards; `swarmfree data prepare` makes one")
    return found


def _check_remote(dataset: Dataset) -> None:
    """Read what lies behind a URL, once."""
    from swarmfree.storage.remote_shards import check_shard  # noqa: PLC0415 - help is fast
    from swarmfree.storage.tokens import remote_shard  # noqa: PLC0415 - help is fast

    if dataset.reader is None:
        return
    for shard in (*dataset.train.shards, *dataset.held_out.shards):
        check_shard(dataset.reader, remote_shard(dataset, shard), shard.sha256)


def _tell_dataset(dataset: Dataset, *, is_checked: bool, as_json: bool) -> None:
    from swarmfree.protocol.remote_text import shown  # noqa: PLC0415 - help is fast

    first, text = _beginning(dataset)
    if as_json:
        told = {**dataset.to_json(), "is_checked": is_checked, "first_tokens": first, "first_text": text}
        typer.echo(json.dumps(told, indent=2))
        return
    for line in _lines(dataset):
        typer.echo(line)
    for name, size_bytes, digest in dataset.sources[:10]:
        typer.echo(f"  from {shown(name)}, {size_bytes:,} bytes, SHA-256 {digest[:12]}")
    if len(dataset.sources) > 10:
        typer.echo(f"  and {len(dataset.sources) - 10:,} more file{'s' * (len(dataset.sources) != 11)}")
    checked = "every shard has the hash of the index" if dataset.is_indexed else "every shard has been read"
    typer.echo(checked if is_checked else "not read; --check does")
    typer.echo(f"begins with the tokens {' '.join(map(str, first[:16]))} ...")
    if text is not None:
        typer.echo(f"as text: {json.dumps(text, ensure_ascii=False)}")


def _tell_mixture(mixture: Mixture, *, is_checked: bool, as_json: bool) -> None:
    """Each dataset with its weight, and how much of it an epoch shows."""
    if as_json:
        datasets = [
            {"place": dataset.place, "weight": weight or None, "share": share, **dataset.to_json()}
            for dataset, weight, share in zip(mixture.datasets, mixture.weights, mixture.proportions, strict=True)
        ]
        told = {"mixture_hash": mixture.mixture_hash, "bytes_per_token": mixture.bytes_per_token, "is_checked": is_checked}
        typer.echo(json.dumps({**told, "datasets": datasets}, indent=2))
        return
    typer.echo(f"{mixture.path}: a mixture of {len(mixture.datasets)} datasets, hash {mixture.mixture_hash[:12]}")
    for line in mixture_lines(mixture):
        typer.echo(f"  {line}")
    for dataset in mixture.datasets:
        for line in _lines(dataset):
            typer.echo(line)
    typer.echo("every shard has been read" if is_checked else "not read; --check does")


def mixture_lines(mixture: Mixture) -> list[str]:
    """What an epoch draws of each dataset, and how much of it that is."""
    tokens = [dataset.train.tokens for dataset in mixture.datasets]
    epoch = min(count / share for count, share in zip(tokens, mixture.proportions, strict=True))
    return [
        f"{share:.1%} of what is drawn: {dataset.place}; an epoch shows {min(1.0, epoch * share / count):.1%} of it"
        for dataset, count, share in zip(mixture.datasets, tokens, mixture.proportions, strict=True)
    ] + [f"an epoch is about {epoch:,.0f} tokens, and shows no sequence twice"]


def _lines(dataset: Dataset) -> list[str]:
    """What a dataset is, for people."""
    known = f", {dataset.vocabulary:,} symbols" if dataset.vocabulary else ""
    is_bytes = dataset.is_indexed and not dataset.tokenizer_hash
    tokenizer = "bytes" if is_bytes else f"tokenizer {dataset.tokenizer_hash[:12] or 'not known'}"
    lines = [f"{dataset.place}: {tokenizer}{known}"]
    for half, what in ((dataset.train, "train"), (dataset.held_out, "held out")):
        each = "document" if half.documents == 1 else "documents or parts"
        documents = f", {half.documents:,} {each}" if half.documents else ""
        shards = f"{len(half.shards)} shard{'' if len(half.shards) == 1 else 's'}"
        lines.append(f"  {what}: {half.tokens:,} tokens{documents}, {shards}")
    if dataset.is_indexed:
        lines.append(f"  {dataset.bytes_per_token:.3f} bytes per held-out token; hash {dataset.dataset_hash[:12]}")
    if dataset.row_tokens:
        lines.append(f"  packed for rows of {dataset.row_tokens:,} tokens (model.tokens_per_row)")
    return lines


def _beginning(dataset: Dataset) -> tuple[list[int], str | None]:
    """The first tokens, and the same as text where the tokenizer is known and can be loaded."""
    from swarmfree.protocol.errors import SwarmfreeError  # noqa: PLC0415 - help is fast
    from swarmfree.storage.dataset import TOKENIZER_FILE  # noqa: PLC0415 - help is fast
    from swarmfree.storage.dataset_tokenizer import TextTokenizer  # noqa: PLC0415 - help is fast
    from swarmfree.storage.tokens import half_of, remote_shard  # noqa: PLC0415 - help is fast

    if dataset.reader is not None and dataset.train.tokens:  # else it would be asked for ever
        first = dataset.train.shards[0]
        dataset.reader.read_block(remote_shard(dataset, first), 0)
    tokens = [int(token) for token in half_of(dataset, dataset.train).read(0, SHOWN_TOKENS)]
    path = dataset.folder / TOKENIZER_FILE
    if not path.is_file():
        return tokens, None
    try:
        return tokens, TextTokenizer(path.read_bytes(), str(path), dataset.end_of_text).decode(tokens)
    except SwarmfreeError as error:
        typer.echo(f"the first tokens are not shown as text: {error}", err=True)
        return tokens, None


class _Speaker:
    """How far a preparation is: a bar in a terminal, elsewhere a line every few seconds; on
    stderr.
    """

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - help is fast
        from rich.progress import (  # noqa: PLC0415 - help is fast
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._doing, self._begun_s, self._said_s, self._begun_bytes = "", 0.0, 0.0, 0

    def say(self, progress: PreparationProgress) -> None:
        """Show it."""
        now_s = time.monotonic()
        is_new = progress.doing != self._doing
        if is_new:  # rates are of this life: what an earlier one has done took no time here
            self._doing, self._begun_s, self._begun_bytes = progress.doing, now_s, progress.done_bytes
        if self._bar is not None:
            if is_new:
                for task in self._bar.task_ids:
                    self._bar.remove_task(task)
                if not progress.total_bytes:
                    self._bar.console.print(progress.doing, highlight=False, soft_wrap=True)
                self._bar.start()
                self._bar.add_task(progress.doing, total=progress.total_bytes or None, completed=progress.done_bytes)
            self._bar.update(self._bar.task_ids[-1], completed=progress.done_bytes)
        elif now_s - self._said_s >= SAY_S or is_new:
            self._said_s = now_s
            sys.stderr.write(self._line(progress, now_s) + "\n")
            sys.stderr.flush()

    def _line(self, progress: PreparationProgress, now_s: float) -> str:
        seconds, done = now_s - self._begun_s, progress.done_bytes - self._begun_bytes
        if not progress.total_bytes:
            return progress.doing
        line = f"{progress.doing}: {progress.done_bytes / 1e6:,.1f} of {progress.total_bytes / 1e6:,.1f} MB"
        if progress.tokens:
            line += f", {progress.tokens:,} tokens"
        if seconds > 0 and done > 0:
            rate = done / seconds
            line += f", {rate / 1e6:,.1f} MB/s, {(progress.total_bytes - progress.done_bytes) / rate:,.0f} s left"
        return line

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()

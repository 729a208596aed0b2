"""``swarmfree sample``: have a model write, a finished one or that of a run that goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from swarmfree.cli.options import INVITE_BEGINS, AskerFolderOption, PatienceOption, TokenizerOption

PROMPT = "def "


def sample(  # noqa: PLR0913 - one parameter per option
    source: Annotated[
        str,
        typer.Argument(
            metavar="INVITE|DIR",
            help="Invite of a run that goes on, or folder of an exported model or of a report.",
            show_default=False,
        ),
    ],
    words: Annotated[str, typer.Argument(metavar="PROMPT", help="What the text begins with.")] = PROMPT,
    *,
    prompt: Annotated[str, typer.Option("--prompt", metavar="PROMPT", help="The same, as an option.", show_default=False)] = "",
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=1, max=1_000_000, help="Tokens to write; of a model of bytes, bytes.")
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            metavar="NUMBER",
            min=0.0,
            max=10.0,
            help="0 takes the likeliest token each time; 1 draws as the model says.",
        ),
    ] = 0.7,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="SEED", min=0, max=2**63 - 1, help="Of the draws: the same seed writes the same text."),
    ] = 0,
    tokenizer: TokenizerOption = "",
    within: Annotated[
        float,
        typer.Option(
            "--within", metavar="SECONDS", min=1.0, help="Of a run that goes on: how long its weights may take to come."
        ),
    ] = 120.0,
    patience: PatienceOption = 20.0,
    folder: AskerFolderOption = "",
) -> None:
    """Write on from a prompt, on this machine: with the weights of a finished run, or with those
    that a run has now, which come as for `swarmfree export` and stay in memory; the run goes on.

    The text comes as it is written. Greedy text (--temperature 0) is that of the exported folder,
    token for token.
    """
    if source.strip().startswith(INVITE_BEGINS):
        from swarmfree.cli.sample_live import live_writer  # noqa: PLC0415 - help is fast

        writer = live_writer(source, tokenizer, within, patience, folder)
    else:
        from swarmfree.cli.writer import writer_in  # noqa: PLC0415 - help is fast

        writer = writer_in(weights_folder(Path(source)))
    begin = prompt or words
    pieces = writer.write(begin, tokens=tokens, temperature=temperature, seed=seed)
    first = next(pieces)  # before anything is printed, so that an error stands alone
    typer.echo(begin + shown(first), nl=False)
    for piece in pieces:
        typer.echo(shown(piece), nl=False)
        sys.stdout.flush()
    typer.echo()


def shown(piece: str) -> str:
    """What a model wrote, as a terminal may have it: control characters are dots, but for line
    breaks and tabs.
    """
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\N{MIDDLE DOT}" for letter in piece)


def weights_folder(source: Path) -> Path:
    """Find the folder with a model's weights: a report's ``weights``, or the folder itself.

    Raises:
        ConfigError: there is no such folder, or it is the report of a run that has not come to its
            end.
    """
    from swarmfree.lab.report import EVENTS_FILE  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast

    if not os.path.isdir(source):  # noqa: PTH112 - whatever a person gives, also what no path can be
        raise ConfigError(f"{str(source)[:80]}: no such folder; that of a report, or of a model, is expected")
    if (source / "weights").is_dir():
        return source / "weights"
    if (source / EVENTS_FILE).is_file():
        invite = source / "invite"
        goes_on = (
            f"; while it goes on, an invite asks it for its model: `swarmfree sample $(cat {invite})`" if invite.is_file() else ""
        )
        raise ConfigError(f"{source}: the report of a run that has not come to its end, and so has written no weights{goes_on}")
    return source

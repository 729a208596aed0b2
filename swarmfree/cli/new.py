"""``swarmfree new``: a run file to begin from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmfree.lab.runs import DEFAULT_RUN, load_run
from swarmfree.protocol.errors import ConfigError


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the run; the file is NAME.toml in this folder.", show_default=False)
    ],
) -> None:
    """Write a run file with every key, its value and what it means.

    It is the run that `swarmfree local` trains where none is named; change what you like, and start
    it with --run NAME.toml.
    """
    from swarmfree.protocol.config import to_toml  # noqa: PLC0415 - help is fast

    path = Path(f"{name}.toml")
    if path.name != str(path):
        raise ConfigError(f"{name}: a name without folders is expected; the file is written to this one")
    found = load_run(DEFAULT_RUN, (f"run.name={name}",))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(to_toml(found.manifest, found.data_path, found.init_from))
    except FileExistsError as error:
        raise ConfigError(f"{path}: is there already, and was not changed; name another run, or remove it") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; nothing was changed") from error
    typer.echo(f"{path} written; to train it here: swarmfree local --run {path}")

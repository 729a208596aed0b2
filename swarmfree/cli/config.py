"""``swarmfree config``: what is in force, as a file that can be fed back."""

from __future__ import annotations

import typer

from swarmfree.cli.options import RunOption, SetOption

config_app = typer.Typer(help="Look at a run config.", no_args_is_help=True, rich_markup_mode=None)


@config_app.callback()
def config() -> None:
    """Look at a run config."""


@config_app.command(short_help="Print the whole run config that is in force.")
def show(run: RunOption, changes: SetOption = None) -> None:
    """Print the whole run config that is in force: the file, the changes and all defaults, as TOML
    that can be fed back.

    Behind it stands, as a comment, what other peers may use of this machine; `swarmfree peer
    --limit KEY=VALUE` sets it.

    What `swarmfree local` would need for it on this machine is told on stderr.
    """
    from swarmfree.lab.estimate import needs  # noqa: PLC0415 - help is fast
    from swarmfree.lab.runs import STANDBYS, peers_of  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.config import limits_to_toml, load_run, to_toml  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.peer_limits import DEFAULT_LIMITS  # noqa: PLC0415 - help is fast
    from swarmfree.storage.corpus import with_tokenizer  # noqa: PLC0415 - help is fast
    from swarmfree.storage.llama_folder import with_first_model  # noqa: PLC0415 - help is fast
    from swarmfree.storage.mixture import is_mixture  # noqa: PLC0415 - help is fast

    found = load_run(run, changes or ())
    typer.echo(to_toml(found.manifest, found.data_path, found.init_from), nl=False)
    typer.echo("".join(f"\n#{' ' if line else ''}{line}" for line in ["", *limits_to_toml(DEFAULT_LIMITS)]))
    if is_mixture(found.data_path):
        from swarmfree.cli.data import mixture_lines  # noqa: PLC0415 - help is fast
        from swarmfree.storage.data_location import find_data  # noqa: PLC0415 - help is fast
        from swarmfree.storage.mixture import Mixture  # noqa: PLC0415 - help is fast

        mixture = find_data(found.data_path)
        if isinstance(mixture, Mixture):
            typer.echo("".join(f"\n# {line}" for line in [f"The mixture {found.data_path}:", *mixture_lines(mixture)]))
    manifest = with_first_model(with_tokenizer(found.manifest, found.data_path), found.init_from)
    for line in needs(manifest, peers_of(found.manifest) + STANDBYS):
        typer.echo(f"swarmfree local: {line}", err=True)

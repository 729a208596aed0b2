"""``swarmfree local``: a whole swarm on this machine, as real processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from swarmfree.cli.early_checks import require_lab
from swarmfree.cli.options import (
    BytesOption,
    DataOption,
    DieOption,
    InitFromOption,
    Log,
    LogOption,
    RunOption,
    SetOption,
    StandbysOption,
    bind_to_parent,
)
from swarmfree.lab.runs import DEFAULT_RUN, STANDBYS, peers_of

if TYPE_CHECKING:
    from swarmfree.cli.kept_run import Keeping, LocalOptions
    from swarmfree.protocol.manifest import Manifest


class LocalCommand(TyperCommand):
    """A command whose ``--resume`` may stand without a folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put in nothing where no folder follows."""
        if "--resume" in args:
            after = args.index("--resume") + 1
            if after == len(args) or args[after].startswith("-"):
                args = [*args[:after], "", *args[after:]]
        return super().parse_args(ctx, args)


PeersOption = Annotated[
    int | None,
    typer.Option(
        "--peers",
        metavar="N",
        help="Peers that take places at once, at least one for each stage. Default: one for the ends, two for each other stage.",
        show_default=False,
    ),
]


def local(  # noqa: PLR0913 - one parameter per option
    ctx: typer.Context,
    *,
    run: RunOption = DEFAULT_RUN,
    peers: PeersOption = None,
    standbys: StandbysOption = STANDBYS,
    respawn: Annotated[bool, typer.Option("--respawn", help="Start a killed peer again, as a new incarnation.")] = False,
    kill: Annotated[
        list[str] | None,
        typer.Option(
            "--kill",
            metavar="stage=S,iteration=I[,replicas=all|one][,process=peer|p2pd]",
            help="SIGKILL all replicas of a stage (or one of them, or their libp2p daemon) while an iteration is under way; or "
            "process=bootstrap,iteration=I. May be repeated.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Folder of the report, new or empty. Default: reports/NAME-DATE-TIME.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="[FOLDER]",
            help="Go on with a run that was interrupted or paused, in the folder of its report, with the options that it began with; "
            "without a folder, with the only run in reports/ that can.",
            show_default=False,
        ),
    ] = None,
    changes: SetOption = None,
    data: DataOption = "",
    data_is_bytes: BytesOption = False,
    init_from: InitFromOption = "",
    threads: Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Torch threads of each peer.")] = 1,
    log: LogOption = Log.TEXT,
    verbose: Annotated[bool, typer.Option("--verbose", help="End with the whole summary, as in summary.txt.")] = False,
    parent: DieOption = 0,
) -> None:
    """Train on this machine with a bootstrap node, peers and standbys, each a process of its own.

    Shows a live view in a terminal, plain lines elsewhere, and with --log json one object per line.
    Ends with a summary, a few lines that the model writes, and a report folder: report.html,
    loss.png, events.jsonl of all peers, run.toml, summary.json, summary.txt, the weights, and the
    logs of those that said something. A process that is killed from outside is a loss like any
    other; a peer that fails by itself ends the swarm with its line. Ctrl-C ends everything within 5
    s; a run with --out that ended so, was killed, or was paused goes on with --resume.
    """
    bind_to_parent(parent)
    require_lab("local")
    from swarmfree.cli.kept_run import LocalOptions, absolute, open_kept  # noqa: PLC0415 - help is fast

    typed = LocalOptions(peers, standbys, respawn, tuple(kill or ()), threads, absolute(data), data_is_bytes, absolute(init_from))
    changes = changes or []
    if resume is None:
        raise typer.Exit(_begin(run, changes, out, typed, is_json=log is Log.JSON, is_verbose=verbose))
    kept = open_kept(resume)
    kept.require_same(typed, _given(ctx), out, run, changes)
    is_json, source = log is Log.JSON, (kept.file, ())
    raise typer.Exit(_run(kept.config.manifest, source, kept.folder, kept.keeping, is_json=is_json, is_verbose=verbose))


def _given(ctx: typer.Context) -> frozenset[str]:
    """The options that were typed."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def _begin(run: Path, changes: list[str], out: Path | None, typed: LocalOptions, *, is_json: bool, is_verbose: bool) -> int:
    from swarmfree.cli.kept_run import Keeping, absolute, can_go_on, resume_command  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.config import load_run  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast

    if out is not None and can_go_on(out):
        raise ConfigError(f"--out {out}: a run lies there that can go on: {resume_command(out)}; another one takes a new folder")
    config = load_run(run, changes)
    count = peers_of(config.manifest) if typed.peers is None else typed.peers
    options = dataclasses.replace(typed, peers=count, data=typed.data or absolute(config.data_path))
    options = dataclasses.replace(options, init_from=typed.init_from or absolute(config.init_from))
    source = run, tuple(changes)
    keeping = Keeping(options, is_named=out is not None)
    return _run(config.manifest, source, out, keeping, is_json=is_json, is_verbose=is_verbose)


def _run(
    asked: Manifest, source: tuple[Path, Sequence[str]], out: Path | None, keeping: Keeping, *, is_json: bool, is_verbose: bool
) -> int:
    from swarmfree.cli.local_run import LocalRun  # noqa: PLC0415 - help is fast
    from swarmfree.lab.local_order import named, order_of, run_arguments  # noqa: PLC0415 - help is fast
    from swarmfree.storage.corpus import require_text, with_tokenizer  # noqa: PLC0415 - help is fast
    from swarmfree.storage.llama_folder import with_first_model  # noqa: PLC0415 - help is fast

    options = keeping.options
    manifest = with_first_model(with_tokenizer(asked, options.data), options.init_from)
    if not options.data_is_bytes:
        require_text(options.data, manifest.tokens_per_iteration + 1, manifest.model.vocabulary, options.init_from)
    order = order_of(
        manifest,
        out,
        is_new=keeping.point is None,
        peers=options.peers or 0,
        standbys=options.standbys,
        respawn=options.respawn,
        kills=options.kills,
        run_arguments=(
            *run_arguments(*source, options.data, options.init_from),
            *(("--data-is-bytes",) if options.data_is_bytes else ()),
        ),
        peer_arguments=("--threads", str(options.threads), *named("--data", options.data)),
        feeder_arguments=named("--init-from", options.init_from),
    )
    text, first = options.data, options.init_from
    return LocalRun(
        manifest, order, is_json=is_json, is_verbose=is_verbose, data_path=text, init_from=first, keeping=keeping
    ).run()

"""``swarmfree local``: a whole swarm on this machine, as real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    bind_to_parent,
)
from swarmfree.lab.runs import DEFAULT_RUN, STANDBYS, peers_of

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
    *,
    run: RunOption = DEFAULT_RUN,
    peers: PeersOption = None,
    standbys: Annotated[int, typer.Option("--standbys", min=0, help="Further peers that wait for a lost stage.")] = STANDBYS,
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
        typer.Option("--out", help="Folder of the report, new or empty. Default: reports/NAME-DATE-TIME.", show_default=False),
    ] = None,
    changes: SetOption = None,
    data: DataOption = "",
    data_is_bytes: BytesOption = False,
    init_from: InitFromOption = "",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Torch threads of each peer.")] = 1,
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
    s.
    """
    bind_to_parent(parent)
    require_lab("local")
    from swarmfree.protocol.config import load_run  # noqa: PLC0415 - help is fast
    from swarmfree.storage.corpus import require_text, with_tokenizer  # noqa: PLC0415 - help is fast
    from swarmfree.storage.llama_folder import with_first_model  # noqa: PLC0415 - help is fast

    config = load_run(run, changes or ())
    manifest = with_tokenizer(config.manifest, text := data or config.data_path)
    manifest = with_first_model(manifest, first := init_from or config.init_from)
    if not data_is_bytes:
        require_text(text, manifest.tokens_per_iteration + 1, manifest.model.vocabulary)
    from swarmfree.cli.local_run import LocalRun  # noqa: PLC0415 - help is fast
    from swarmfree.lab.local_order import named, order_of, run_arguments  # noqa: PLC0415 - help is fast

    order = order_of(
        manifest,
        out,
        peers=peers_of(manifest) if peers is None else peers,
        standbys=standbys,
        respawn=respawn,
        kills=tuple(kill or ()),
        run_arguments=(*run_arguments(run, changes or (), text, first), *(("--data-is-bytes",) if data_is_bytes else ())),
        peer_arguments=("--threads", str(threads), *named("--data", text)),
        feeder_arguments=named("--init-from", first),
    )
    raise typer.Exit(
        LocalRun(manifest, order, is_json=log is Log.JSON, is_verbose=verbose, data_path=text, init_from=first).run()
    )

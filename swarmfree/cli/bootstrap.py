"""``swarmfree bootstrap``: make a run, keep its directory, and name its founder once."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import typer

from swarmfree.cli.options import (
    BytesOption,
    DataOption,
    DieOption,
    HostOption,
    InitFromOption,
    Log,
    LogOption,
    NodeAnnounceOption,
    NodeFolderOption,
    NodePortOption,
    NodeRelayPortOption,
    OfferRelayOption,
    RunOption,
    RunOrganiserOption,
    SetOption,
    bind_to_parent,
)
from swarmfree.protocol.names import ABSENT

HINT = "the line above is the invite; on every machine that helps: swarmfree peer INVITE\n"
HERE_ONLY = "it works on this machine only, as this node listens on {}; with --host auto it works for others too\n"


def bootstrap(  # noqa: PLR0913 - one parameter per option
    run: RunOption,
    data: DataOption = "",
    *,
    data_is_bytes: BytesOption = False,
    init_from: InitFromOption = "",
    changes: SetOption = None,
    folder: NodeFolderOption = "",
    host: HostOption = "127.0.0.1",
    port: NodePortOption = 0,
    announce: NodeAnnounceOption = "",
    organiser: RunOrganiserOption = "",
    relay: OfferRelayOption = True,
    relay_port: NodeRelayPortOption = 0,
    log: LogOption = Log.TEXT,
    parent: DieOption = 0,
) -> None:
    """Make a run from a run config and print its invite.

    Prepares the corpus, completes the manifest, starts the directory, prints the invite on stdout
    as a line of its own, names the first peer that can feed data as founder, and serves the
    manifest until Ctrl-C or SIGTERM. Peers that are there need it no more; newcomers may join
    through any of them. Where all peers have died and are started again, it names who goes on from
    their snapshots. Other lines go to stderr, with --log json to stdout. Exit code 130 after
    Ctrl-C; 0 after SIGTERM, or where its terminal was closed, as of a peer.
    """
    bind_to_parent(parent)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else strangers that knock write into its log
    from swarmfree.cli.early_checks import require_folder  # noqa: PLC0415 - help is fast
    from swarmfree.cli.shutdown import run_until_told, say  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.config import load_run  # noqa: PLC0415 - help is fast
    from swarmfree.storage.corpus import require_text, with_tokenizer  # noqa: PLC0415 - help is fast
    from swarmfree.storage.llama_folder import with_first_model  # noqa: PLC0415 - help is fast
    from swarmfree.wire.addresses import split_host  # noqa: PLC0415 - help is fast
    from swarmfree.wire.own_address import reach_of  # noqa: PLC0415 - help is fast
    from swarmfree.wire.port_check import require_listening  # noqa: PLC0415 - help is fast

    config = load_run(run, changes or ())
    text, first = data or config.data_path, init_from or config.init_from
    if first:
        model = with_first_model(with_tokenizer(config.manifest, text), first).model
        config = replace(config, manifest=replace(config.manifest, model=model), init_from=first)
    require_folder("--folder", Path(folder).expanduser() if folder else Path.home())
    listens = reach_of(host, (), is_announced=bool(announce)).host
    announced = split_host(announce) if announce else ("", 0)
    # A taken port may be that of a node that has just been killed: that is waited for
    require_listening(listens, relay_port)
    if not data_is_bytes:
        require_text(text, config.manifest.tokens_per_iteration + 1, config.manifest.model.vocabulary, first)
    if log is Log.TEXT:
        say(
            f"makes run {config.manifest.run.name}, or goes on with it: loads what it needs, reads the text, starts the directory"
        )
    from swarmfree.cli.bootstrap_node import Founding  # noqa: PLC0415 - takes seconds
    from swarmfree.cli.event_output import open_journal  # noqa: PLC0415 - help is fast

    journal, offered_port = open_journal(log, sys.stderr), relay_port if relay else ABSENT
    founding = Founding(config, folder, data, listens, port, journal, announced, organiser, offered_port)
    founding.hint = HINT if log is Log.TEXT else ""
    if founding.hint and ip_address(listens).is_loopback and not announce:
        founding.hint += HERE_ONLY.format(listens)
    code = run_until_told(founding.run)
    raise typer.Exit(0 if code in {129, 143} else code)

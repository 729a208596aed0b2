"""Options that several commands share, with their help."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from swarmfree.cli.engine_probe import EngineKind
from swarmfree.lab.runs import keys_to_complete, run_file, runs_to_complete
from swarmfree.protocol.local_config import RelayChoice
from swarmfree.protocol.names import ABSENT


class Log(enum.StrEnum):
    """How events are told: for people, or one JSON object per line."""

    TEXT = "text"
    JSON = "json"


RunOption = Annotated[
    Path,
    typer.Option(
        "--run",
        metavar="FILE|NAME",
        help="Run config: a TOML file, or the name of one that comes with swarmfree (stdlib-small). `swarmfree new` writes one.",
        callback=run_file,
        autocompletion=runs_to_complete,
    ),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="KEY=VALUE",
        help="Change what other peers may use of this one, see `swarmfree config show`; may be repeated.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change one value of the run config; may be repeated.",
        autocompletion=keys_to_complete,
        show_default=False,
    ),
]
DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="PATH",
        help="File or folder of text to learn from, a dataset of `swarmfree data prepare`, its URL, or a mixture of several; "
        "without it, what the run config names, else Python's own standard library.",
        show_default=False,
    ),
]
PeerDataOption = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="PATH",
        help="The text that the run learns from, as it lies here: file or folder, a dataset of `swarmfree data prepare`, its URL, or a "
        "mixture of several; without it, Python's own standard library.",
        show_default=False,
    ),
]
InitFromOption = Annotated[
    str,
    typer.Option(
        "--init-from",
        metavar="DIR",
        help="Begin with the weights of a LLaMA that lies here as Hugging Face's transformers write it; its config says the model's shapes.",
        show_default=False,
    ),
]
PeerInitFromOption = Annotated[
    str,
    typer.Option(
        "--init-from",
        metavar="DIR",
        help="Folder of the LLaMA that the run begins with, where this machine has it; other peers get its weights from one that has.",
        show_default=False,
    ),
]
BytesOption = Annotated[
    bool,
    typer.Option("--data-is-bytes", help="Take the bytes of --data as they are, be they text or not.", show_default=False),
]
LogOption = Annotated[Log, typer.Option("--log", help="Tell events as lines of text, or as one JSON object per line.")]
HostOption = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="IP address of this machine to listen on and to announce; auto = the one on the way to whom it joins, or on the default route.",
    ),
]
AnnounceOption = Annotated[
    str,
    typer.Option(
        "--announce",
        metavar="HOST:PORT",
        help="Where others reach this peer's gRPC port, if not at --host and --port: behind a forwarded port or a public address. "
        "The libp2p port is announced at the same host if --libp2p-port names it.",
        show_default=False,
    ),
]
EngineOption = Annotated[EngineKind, typer.Option("--engine", hidden=True, help="What computes; see `swarmfree chaos`.")]
WatchEngineOption = Annotated[
    bool, typer.Option("--watch-engine", hidden=True, help="Tell every step of the engine; see `swarmfree chaos`.")
]
KEPT_MB_MAX = 1_000_000
"""No limit of a peer's own."""
MemoryOption = Annotated[
    int,
    typer.Option(
        "--max-memory",
        metavar="MB",
        min=0,
        help="Keep at most so much for others in memory; the run's limit (recovery.kept_ram_mb_max) holds where it is smaller. A copy of the "
        "ends, which two peers keep, is not counted.",
        show_default=False,
    ),
]
DiskOption = Annotated[
    int,
    typer.Option(
        "--max-disk",
        metavar="MB",
        min=0,
        help="Keep at most so much for others on disk, what lies in memory counted; the run's limit (recovery.kept_mb_max) holds where it is "
        "smaller.",
        show_default=False,
    ),
]
INVITE_BEGINS = "swarmfree1"
TokenizerOption = Annotated[
    str,
    typer.Option(
        "--tokenizer",
        metavar="PATH",
        help="With an invite: tokenizer.json of the dataset that the run learns from, or the dataset's folder; a run of bytes needs none.",
        show_default=False,
    ),
]
PatienceOption = Annotated[
    float,
    typer.Option(
        "--patience", metavar="SECONDS", min=0.1, help="How long to look for somebody who answers at the invite's addresses."
    ),
]
DieOption = Annotated[
    int,
    typer.Option(
        "--die-with-parent",
        metavar="PID",
        hidden=True,
        help="Have the kernel end this process when its parent, process PID, dies.",
    ),
]
PeerFolderOption = Annotated[
    str,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help="This peer's own folder: identity, state, sockets. Each peer on a machine needs its own. Default: ~/.swarmfree/peer.",
        show_default=False,
    ),
]
AskerFolderOption = Annotated[
    str,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help="Folder of the peer under whose identity to ask. Default: ~/.swarmfree/peer where the invite's ticket is for one peer or for "
        "some, else an identity for this once.",
        show_default=False,
    ),
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="FOLDER",
        help="Where this peer writes its stage's weights at the end, if it is the one to. Default: weights in its folder.",
        show_default=False,
    ),
]
Libp2pPortOption = Annotated[
    int,
    typer.Option("--libp2p-port", metavar="PORT", min=0, max=65535, help="Port of the libp2p daemon; 0 = given by the system."),
]
StandbysOption = Annotated[int, typer.Option("--standbys", metavar="N", min=0, help="Further peers that wait for a lost stage.")]
StandbyOption = Annotated[bool, typer.Option("--standby", help="Wait for a lost stage instead of taking a place at once.")]
CutOption = Annotated[
    float,
    typer.Option(
        "--cut-after",
        metavar="SECONDS",
        min=0.0,
        help="While this peer coordinates: blocks of the model go to other stages once that has looked faster for so many "
        "seconds; 0 = they stay.",
    ),
]
AdoptOption = Annotated[
    bool,
    typer.Option(
        "--adopt/--no-adopt",
        help="Serve a second stage, as far as memory is free, where all its peers are gone and nobody comes.",
    ),
]
ThreadsOption = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Torch threads.")]
GrpcPortOption = Annotated[
    int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="gRPC port; 0 = given by the system.")
]
RelayOption = Annotated[
    RelayChoice,
    typer.Option(
        "--relay",
        help="auto = reached by way of relays where others cannot call this peer; always = by way of relays alone, without an open port; "
        "never = a peer that nobody can call is no use.",
    ),
]
RelayPortOption = Annotated[
    int,
    typer.Option(
        "--relay-port",
        metavar="PORT",
        min=ABSENT,
        max=65535,
        help="Offer a relay on this port to peers that cannot be called; 0 = given by the system. Their tensors go through this machine. "
        "Default: none is offered.",
        show_default=False,
    ),
]
OfferRelayOption = Annotated[
    bool, typer.Option("--relay/--no-relay", help="Offer a relay: peers that nobody can call are called by way of this node.")
]
NodeRelayPortOption = Annotated[
    int,
    typer.Option(
        "--relay-port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Port of the relay; 0 = the one kept in the folder, else given by the system. Open it in the firewall, too.",
    ),
]
NodeFolderOption = Annotated[
    str,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help="Where identity, port, manifest, tickets and founder are kept; the same folder gives the same invite again. "
        "Default: ~/.swarmfree/bootstrap/NAME.",
        show_default=False,
    ),
]
NodeAnnounceOption = Annotated[
    str,
    typer.Option(
        "--announce",
        metavar="HOST[:PORT]",
        help="Where others reach this node, if not at --host and --port: a cloud machine's public address, a forwarded port.",
        show_default=False,
    ),
]
NodePortOption = Annotated[
    int,
    typer.Option(
        "--port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Port to listen on; 0 = the one kept in the folder, else given by the system.",
    ),
]
FeedOption = Annotated[
    bool,
    typer.Option("--feed/--no-feed", help="Offer to be a source, which holds the corpus, feeds it and computes the loss."),
]
OrganiserOption = Annotated[
    str,
    typer.Option(
        "--organiser",
        metavar="FILE",
        help="The organiser's key, which `swarmfree bootstrap` wrote when it made the run: organiser.key in its folder, or where it was moved.",
        show_default=False,
    ),
]
RunOrganiserOption = Annotated[
    str,
    typer.Option(
        "--organiser",
        metavar="FILE",
        help="The organiser's key, drawn where there is none; it makes tickets and bans, and a run that has been made can do without it. "
        "Default: organiser.key in --folder.",
        show_default=False,
    ),
]
InviteArgument = Annotated[
    str,
    typer.Argument(
        metavar="INVITE", help="The line that the bootstrap node printed; begins with swarmfree1.", show_default=False
    ),
]


def bind_to_parent(parent_pid: int) -> None:
    """Do what `DieOption` says, where it was given."""
    if parent_pid:
        from swarmfree.lab.parent_death import die_with_parent  # noqa: PLC0415 - only where asked for

        die_with_parent(parent_pid)

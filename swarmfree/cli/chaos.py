"""``swarmfree chaos``: strike a real swarm on this machine, seeded, and check that every invariant
holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmfree.cli.early_checks import require_lab
from swarmfree.cli.engine_probe import EngineKind
from swarmfree.cli.options import DataOption, DieOption, RunOption, SetOption, StandbysOption, bind_to_parent
from swarmfree.lab.runs import CHAOS_RUN

if TYPE_CHECKING:
    from swarmfree.protocol.config import RunConfig

MinutesOption = Annotated[
    float,
    typer.Option(
        "--minutes",
        metavar="MINUTES",
        min=0.05,
        help="How long it is struck; the check after it takes several times as long.",
    ),
]
KindsOption = Annotated[
    str,
    typer.Option(
        "--kinds",
        metavar="KINDS",
        help="Only these, with commas: kill, freeze, terminate, join, delay, cut, hole.",
        show_default=False,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Folder of the report, new or empty. Default: reports/chaos-DATE-TIME.",
        show_default=False,
    ),
]


def chaos(  # noqa: PLR0913 - one parameter per option
    *,
    minutes: MinutesOption = 10.0,
    seed: Annotated[int, typer.Option("--seed", metavar="SEED", min=0, help="Of the plan and of the choice of victims.")] = 1,
    gap: Annotated[float, typer.Option("--gap", metavar="SECONDS", min=0.5, help="Mean time from one strike to the next.")] = 5.0,
    engine: Annotated[
        EngineKind,
        typer.Option(
            "--engine",
            help="The real model, whose losses are compared with one process alone; or integers, with which each commit is checked to the bit.",
        ),
    ] = EngineKind.TORCH,
    run: RunOption = CHAOS_RUN,
    peers: Annotated[
        int, typer.Option("--peers", metavar="N", min=0, help="Peers that take places at once; 0 = two for each stage.")
    ] = 0,
    standbys: StandbysOption = 1,
    wipe_stages: Annotated[
        bool,
        typer.Option(
            "--wipe-stages", help="Spare no last replica of a body stage, kill whole stages too, and list every recovery."
        ),
    ] = False,
    spare_ends: Annotated[bool, typer.Option("--spare-ends", help="Strike neither sources nor the coordinator.")] = False,
    kinds: KindsOption = "",
    out: OutOption = None,
    changes: SetOption = None,
    data: DataOption = "",
    parent: DieOption = 0,
) -> None:
    """Strike a swarm of real processes at seeded random moments: kill, freeze, end and start peers,
    and spoil the network before them.

    Processes, directory and gRPC are real; every peer stands behind a TCP proxy that delays, resets
    or swallows what goes to it. The last replica of each stage is spared. Checked are: each
    microbatch counted once, equal bytes on all replicas, one record per iteration, no iteration
    beyond its bound, and nothing left at the end. Exit code 0 only if all of it held, 130 after
    Ctrl-C.
    """
    bind_to_parent(parent)
    require_lab("chaos")
    from swarmfree.cli.chaos_run import ChaosChoices, ChaosRun  # noqa: PLC0415 - help is fast
    from swarmfree.lab.local_order import run_arguments  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.config import load_run  # noqa: PLC0415 - help is fast

    config = load_run(run, changes or ())
    _require_drawn(config)
    choices = ChaosChoices(
        duration_s=60.0 * minutes,
        seed=seed,
        gap_s=gap,
        engine=engine,
        peer_count=peers,
        standby_count=standbys,
        wipes=wipe_stages,
        spares_ends=spare_ends,
        kinds=tuple(kind.strip() for kind in kinds.split(",") if kind.strip()),
        data=data or config.data_path,
    )
    raise typer.Exit(ChaosRun(config.manifest, choices, out, run_arguments(run, changes or ())).run())


def _require_drawn(config: RunConfig) -> None:
    """What is struck is compared with one process alone, which draws the first weights."""
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast

    if config.init_from or config.manifest.model.init_digests:
        raise ConfigError("model.init_from: what is struck begins with weights that are drawn; leave it out")

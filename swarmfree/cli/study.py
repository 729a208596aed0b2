"""``swarmfree study``: experiments that compare, with tables and figures of what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmfree.cli.early_checks import require_lab

study_app = typer.Typer(help="Measure what losses and recovery methods cost.", no_args_is_help=True, rich_markup_mode=None)


@study_app.callback()
def study() -> None:
    """Measure what losses and recovery methods cost."""


@study_app.command(short_help="Compare recovery methods over the same losses.")
def recovery(
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for results; a study that was ended goes on there.")
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="PATH", help="File or folder of text to learn from; without it, Python's own standard library."
        ),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, few traces: about a quarter of an hour on two cores.")
    ] = False,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Trials at a time, one core each.")] = 2,
) -> None:
    """Lose stages by one seeded trace, the same for all, and compare what each way of bringing them
    back costs in learning.

    CheckFree and its variants, CheckFree+, checkpoints, shadows, replay and refit, each from the
    same base that was trained without failures. Writes tables (CSV), figures (PNG) and a page
    (HTML); the last line is one JSON object.
    """
    require_lab("study")
    from swarmfree.cli.shutdown import run_until_told  # noqa: PLC0415 - help is fast
    from swarmfree.lab.study.recovery import RecoveryStudy  # noqa: PLC0415 - help is fast

    raise typer.Exit(run_until_told(RecoveryStudy(out, data, quick=quick, workers=workers, say=typer.echo).run))


@study_app.command(short_help="Compare a swarm with other systems that lose machines.")
def planning(
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for results; an older planning study there is written over.")
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Five traces, few points, three hours each: less than a minute.")
    ] = False,
    traces: Annotated[
        int | None,
        typer.Option("--traces", metavar="N", min=2, help="Traces at each point; where none are named 5 with --quick, else 20."),
    ] = None,
    nodes_max: Annotated[
        int,
        typer.Option(
            "--nodes-max",
            metavar="N",
            min=16,
            max=10_000,
            help="Largest cluster; those of 1,000 and 10,000 take many minutes more.",
        ),
    ] = 256,
) -> None:
    """Lose machines by one seeded trace, the same for all, and compare how much a swarm and other
    systems still train.

    The swarm is asked by the policy of a live coordinator. Beside it simulated Oobleck, ReCycle,
    Bamboo, Varuna, FlexiTrain and restarts from checkpoints, at several rates of failure, sizes of
    cluster and times that a change takes; nothing is trained. Writes a table (CSV), figures (PNG)
    and a page (HTML) that says where the swarm is not ahead; the last line is one JSON object.
    """
    require_lab("study")
    from swarmfree.cli.shutdown import run_until_told  # noqa: PLC0415 - help is fast
    from swarmfree.lab.study.planning_study import PlanningStudy  # noqa: PLC0415 - help is fast

    study = PlanningStudy(out, quick=quick, traces=traces or (5 if quick else 20), nodes_max=nodes_max, say=typer.echo)
    raise typer.Exit(run_until_told(study.run))

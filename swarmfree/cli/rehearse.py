"""``swarmfree rehearse``: whole swarms in virtual time, many seeds."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class EngineChoice(enum.StrEnum):
    """What computes in a rehearsal."""

    INTEGER = "integer"
    TORCH = "torch"


def rehearse(  # noqa: PLR0913 - what a person may choose
    *,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="How many rehearsals.")] = 60,
    first_seed: Annotated[
        int, typer.Option("--first-seed", metavar="SEED", min=0, help="Seed of the first one; the others follow it.")
    ] = 0,
    iterations: Annotated[
        int | None, typer.Option("--iterations", metavar="N", min=2, help="Of each rehearsal, where its seed is not to choose.")
    ] = None,
    engine: Annotated[
        EngineChoice,
        typer.Option("--engine", help="Integers, exact and fast, two seeds at a time; or the real model, one by one."),
    ] = EngineChoice.INTEGER,
    liars: Annotated[
        bool, typer.Option("--liars", help="Each swarm has a member that computes wrongly, and audits; integers alone.")
    ] = False,
    batches: Annotated[
        bool, typer.Option("--batches", help="The organiser sets other batches on the way; integers alone.")
    ] = False,
    guests: Annotated[
        bool, typer.Option("--guests", help="Nobody stands by, few come, and peers have room for guests; integers alone.")
    ] = False,
    cuts: Annotated[bool, typer.Option("--cuts", help="The model is cut anew on the way; integers alone.")] = False,
    aimed: Annotated[
        bool, typer.Option("--aimed", help="Peers also fall at the moment of a claim, a build, a goodbye; integers alone.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every rehearsal's whole transcript; one seed at a time.")
    ] = False,
) -> None:
    """Rehearse whole swarms in virtual time, with crashes, joins, and lost, late, doubled and
    swapped messages.

    Each seed is another swarm and another story; the same seed is the same story. Exit code 0 only
    if all invariants held; for each seed that failed, what did not hold and the command that plays
    it again are printed.
    """
    from swarmfree.cli.interrupt import interrupt_by_exception  # noqa: PLC0415 - help is fast
    from swarmfree.cli.rehearse_run import Rehearsing  # noqa: PLC0415 - help is fast
    from swarmfree.sim.setup import Drawn  # noqa: PLC0415 - help is fast

    choices = ((Drawn.LIARS, liars), (Drawn.BATCHES, batches), (Drawn.GUESTS, guests), (Drawn.CUTS, cuts), (Drawn.AIMED, aimed))
    kinds = [kind for kind, asked in choices if asked]
    if kinds and engine is EngineChoice.TORCH:
        raise typer.BadParameter(
            "liars, other batches, guests, cuts and aimed faults are rehearsed in integers: leave out --engine torch"
        )
    if len(kinds) > 1:
        raise typer.BadParameter(f"a rehearsal is of one kind: give one of {', '.join(f'--{kind}' for kind in kinds)}")
    interrupt_by_exception()
    drawn = kinds[0] if kinds else Drawn.USUAL
    show = Rehearsing(seeds, first_seed, engine.value, typer.echo, iterations=iterations, drawn=drawn)
    raise typer.Exit(show.one_by_one(is_verbose=verbose) if verbose or engine is EngineChoice.TORCH else show.side_by_side())

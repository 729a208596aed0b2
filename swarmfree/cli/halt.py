"""``swarmfree pause``, ``stop`` and ``set``: what the organiser wants of a run that goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmfree.cli.options import InviteArgument, OrganiserOption, PatienceOption
from swarmfree.protocol.order import Halting


def pause(invite: InviteArgument, *, organiser: OrganiserOption, patience: PatienceOption = 20.0) -> None:
    """Pause a run: all peers leave after one and the same iteration, and nothing is lost.

    Publishes an order, signed with the organiser's key, in the run's directory. Within
    timing.lease_s every peer has read it; after the iteration under way each writes its stage to
    its disk, and all end with exit code 0. To go on, start the same commands in the same folders,
    the bootstrap node too, if it was ended: the run goes on with the next iteration, from the very
    bits that it had. Where a stage cannot be written by anybody, the run goes on until it can:
    `swarmfree status` says so, and the log of the peer whose disk refuses. Ends when a peer has
    taken the order.
    """
    _order(invite, organiser, Halting.PAUSE, patience)


def stop(invite: InviteArgument, *, organiser: OrganiserOption, patience: PatienceOption = 20.0) -> None:
    """Stop a run for good, as if it had done its last iteration.

    Publishes an order, signed with the organiser's key, in the run's directory. Within
    timing.lease_s every peer has read it; after the iteration under way the held-out loss is taken,
    every stage's weights are written, and all peers end with exit code 0. Nobody goes on from
    there; to have it go on later, `swarmfree pause` it instead. Ends when a peer has taken the
    order.
    """
    _order(invite, organiser, Halting.STOP, patience)


def set_key(
    invite: InviteArgument,
    change: Annotated[
        str, typer.Argument(metavar="batch.microbatches=N", help="How many each iteration has from then on.", show_default=False)
    ],
    *,
    organiser: OrganiserOption,
    patience: PatienceOption = 20.0,
) -> None:
    """Set the batch of a run that goes on, from the next iteration on.

    Publishes an order, signed with the organiser's key, in the run's directory. Within
    timing.lease_s every peer has read it; the record of the iteration under way says how many
    microbatches each one has from the next on, at most batch.microbatches_max of the run config.
    The learning rate follows: twice the batch, twice the rate, in equal steps over
    optimizer.warmup_iterations. The data goes on where it is: an epoch still shows each sequence
    once. It is refused while an order to pause or to stop stands; one that follows before the batch
    is another one takes its place. Ends when a peer has taken the order.
    """
    from swarmfree.cli.halt_run import microbatches_in  # noqa: PLC0415 - help is fast

    _order(invite, organiser, Halting.NOT, patience, microbatches_in(change))


def _order(invite: str, organiser: str, halt: Halting, patience_s: float, microbatches: int = 0) -> None:
    from swarmfree.cli.halt_run import give_order  # noqa: PLC0415 - help is fast
    from swarmfree.cli.shutdown import run_until_told  # noqa: PLC0415 - help is fast
    from swarmfree.wire.invite import decode_invite  # noqa: PLC0415 - help is fast
    from swarmfree.wire.organiser import load_organiser  # noqa: PLC0415 - help is fast

    decoded, key = decode_invite(invite), load_organiser(organiser)
    raise typer.Exit(run_until_told(lambda: give_order(decoded, key, halt, patience_s, microbatches)))

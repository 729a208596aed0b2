"""An order on its way: date it after all that were given before, sign it, publish it, and wait
until a peer has taken it, or all have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence

import typer

from swarmfree.cli.run_access import RunAccess, open_run
from swarmfree.policy.halt import is_unspent_halt
from swarmfree.protocol.errors import CallFailed, ConfigError, PeerSilent, PeerUnreachable, RunEnded, SwarmfreeError
from swarmfree.protocol.messages import GetPlan
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.order import Halting, Order
from swarmfree.wire.invite import Invite
from swarmfree.wire.organiser import OrganiserKey
from swarmfree.wire.signed_order import SignedOrder, sign_order

LOOK_AGAIN_S = 1.0
ASKED_MAX = 64
COUNT_MAX = 1 << 31
DIGITS_MAX = 20
"""Of a number: Python refuses to read one of thousands of digits."""
FOLLOWS = {
    Halting.PAUSE: "after the iteration under way, or the first one, each writes its stage, and all leave; "
    "to go on, start the same commands in the same folders",
    Halting.STOP: "after the iteration under way, or the first one, the weights are written, and all end",
    Halting.NOT: "after the iteration under way, unless that is the last one, each has so many, and the learning rate follows",
}
SETTABLE = "batch.microbatches"


def microbatches_in(change: str) -> int:
    """How many microbatches ``batch.microbatches=N`` asks for.

    Raises:
        ConfigError: it asks for something else.
    """
    key, _, value = (part.strip() for part in change.partition("="))
    if key != SETTABLE:
        raise ConfigError(f"{change:.80}: only {SETTABLE}=N can be set while a run goes on; all else is agreed as it is made")
    if not value.isascii() or not value.isdigit() or len(value) > DIGITS_MAX or not 0 < int(value) < COUNT_MAX:
        raise ConfigError(f"{SETTABLE} = {value:.40}: a whole number above 0 is expected")
    return int(value)


async def give_order(invite: Invite, organiser: OrganiserKey, halt: Halting, patience_s: float, microbatches: int = 0) -> int:
    """Publish an order, and say who has it; exit code 0.

    Raises:
        ConfigError: the key is not the run's, or the run cannot have so many microbatches.
        InviteError: nobody answers at the invite's addresses.
        RunEnded: the run is over.
        SwarmfreeError: no peer has taken it, or a batch is set while an order to halt stands.
    """
    async with open_run(invite, patience_s) as access:
        directory, manifest = access.directory, access.manifest
        await directory.ban_lists()  # orders are read along
        what = _in_words(Order(0, halt, microbatches))
        if microbatches > manifest.batch.most:
            raise ConfigError(
                f"{SETTABLE} = {microbatches}: this run was made for at most {manifest.batch.most} (batch.microbatches_max, or "
                f"{SETTABLE} where that is 0)"
            )
        founder, last = await directory.founder(), directory.order()
        spent = founder.spent if founder is not None else 0
        if await directory.is_over():
            raise RunEnded(f"the run is over: there is nothing to {what}")
        if microbatches and last is not None and is_unspent_halt(last, spent):
            raise SwarmfreeError(
                f"order {last.number} to {last.halt} stands, and {what} would take its place: "
                + ("set it once the run goes on again" if last.halt is Halting.PAUSE else "the run is about to end")
            )
        if microbatches and max((a.iteration for a in await directory.announcements()), default=0) + 1 >= manifest.run.iterations:
            raise SwarmfreeError(
                f"the run is in its last iteration, {manifest.run.iterations:,} of {manifest.run.iterations:,}: none comes after it that "
                f"could have {SETTABLE}={microbatches}"
            )
        number = max(int(time.time()), max(spent, last.number if last is not None else 0) + 1)
        after = max(spent, last.after if last is not None else 0) if microbatches else 0
        order = sign_order(organiser, manifest, Order(number, halt, microbatches, after))
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(_who_answers(access))
            await directory.publish_order(order, manifest.timing.papers_lease_s)
        keepers, ended = await _taken(access, order, answering.result() if halt is not Halting.NOT else {})
        await directory.ban_lists()
        counts = directory.order()
        if counts is not None and counts != order.order:
            raise SwarmfreeError(
                f"order {number} to {what} is not obeyed: order {counts.number} to {_in_words(counts)} was given at the same time, "
                f"and counts more; {what} again if that is still wanted"
            )
        if not keepers and not ended:
            raise SwarmfreeError(
                f"the order to {what} is published, but no peer has taken it within {manifest.timing.lease_s:g} s: where the run is "
                f"paused or has lost all its peers, they obey once they are back; {what} again if they do not"
            )
        founder = await directory.founder()
        if founder is not None and founder.spent >= number:
            raise SwarmfreeError(
                f"order {number} to {what} came as the run was about to go on from snapshots, and is not obeyed: {what} again"
            )
        if keepers:
            taken = f"{keepers} {'peers have' if keepers > 1 else 'peer has'} taken it so far"
        else:
            taken = (
                f"{ended} {'peers have' if ended > 1 else 'peer has'} ended since, all that answered before (if they have crashed, and "
                f"train once they are back, {what} again)"
            )
        typer.echo(f"order {number} to {what}: {taken}; {FOLLOWS[halt]}")
        if halt is not Halting.NOT and last is not None and last.microbatches and last.number > spent:
            again = "; else set it again once the run goes on" if halt is Halting.PAUSE else ""
            typer.echo(f"order {last.number} to {_in_words(last)} holds if an iteration has begun with it{again}")
        return 0


async def _who_answers(access: RunAccess) -> dict[Endpoint, bool]:
    """Of each announced peer whether it lives: it answers, if only by a refusal. Nobody is asked
    where they are more than can be: so many do not all end between two looks.
    """
    found = [announcement.endpoint for announcement in await access.directory.announcements()]
    return await _answers(access, found) if len(found) <= ASKED_MAX else {}


async def _answers(access: RunAccess, peers: Sequence[Endpoint]) -> dict[Endpoint, bool]:
    async with asyncio.TaskGroup() as group:
        asked = [(peer, group.create_task(_failure(access, peer))) for peer in peers]
    return {peer: not isinstance(failure.result(), PeerUnreachable | PeerSilent) for peer, failure in asked}


async def _taken(access: RunAccess, order: SignedOrder, answered: Mapping[Endpoint, bool]) -> tuple[int, int]:
    """How many peers publish the order, within a lease; or how many have ended, where those are all
    that were there: who ends takes its copy along.
    """
    there = [peer for peer, lives in answered.items() if lives]
    silent = [peer for peer, lives in answered.items() if not lives]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(access.manifest.timing.lease_s):
            while not (keepers := await access.directory.keepers_of_order(order)):
                if there and await _have_ended(access, there) and not any((await _answers(access, silent)).values()):
                    return 0, len(there)
                await asyncio.sleep(LOOK_AGAIN_S)
            return keepers, 0
    return 0, 0


async def _have_ended(access: RunAccess, peers: Sequence[Endpoint]) -> bool:
    """Whether nobody listens any more at any of the addresses; asked one after the other, since
    the first that lives is enough.
    """
    for peer in peers:
        failure = await _failure(access, peer)
        if not isinstance(failure, PeerUnreachable) or not failure.refused:
            return False
    return True


async def _failure(access: RunAccess, peer: Endpoint) -> CallFailed | None:
    """Why a peer gives no answer; None where it does."""
    try:
        await access.network.call(peer, GetPlan(), silence_s=access.manifest.timing.silence_s)
    except CallFailed as failure:
        return failure
    return None


def _in_words(order: Order) -> str:
    return str(order.halt) if order.halt is not Halting.NOT else f"set {SETTABLE}={order.microbatches}"

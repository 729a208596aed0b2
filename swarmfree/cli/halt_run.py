"""An order on its way: date it after all that were given before, sign it, publish it, and wait
until a peer has taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import typer

from swarmfree.cli.run_access import open_directory
from swarmfree.protocol.errors import RunEnded, SwarmfreeError
from swarmfree.protocol.order import Halting, Order
from swarmfree.wire.invite import Invite
from swarmfree.wire.organiser import OrganiserKey
from swarmfree.wire.signed_order import sign_order

LOOK_AGAIN_S = 1.0
FOLLOWS = {
    Halting.PAUSE: "after the iteration under way each writes its stage, and all leave; "
    "to go on, start the same commands in the same folders",
    Halting.STOP: "after the iteration under way the weights are written, and all end",
}


async def give_order(invite: Invite, organiser: OrganiserKey, halt: Halting, patience_s: float) -> int:
    """Publish an order, and say who has it; exit code 0.

    Raises:
        ConfigError: the key is not the run's.
        InviteError: nobody answers at the invite's addresses.
        RunEnded: the run is over.
        SwarmfreeError: no peer has taken it.
    """
    async with open_directory(invite, patience_s) as (directory, manifest, _):
        await directory.ban_lists()  # orders are read along
        founder, last = await directory.founder(), directory.order()
        if await directory.is_over():
            raise RunEnded("the run is over: there is nothing to " + halt)
        before = max(founder.spent if founder is not None else 0, last.number if last is not None else 0)
        order = sign_order(organiser, manifest, Order(max(int(time.time()), before + 1), halt))
        await directory.publish_order(order, manifest.timing.papers_lease_s)
        keepers = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(manifest.timing.lease_s):
                while not (keepers := await directory.keepers_of_order(order)):
                    await asyncio.sleep(LOOK_AGAIN_S)
        if not keepers:
            raise SwarmfreeError(
                f"the order to {halt} is published, but no peer has taken it within {manifest.timing.lease_s:g} s: "
                f"where all have left already, nothing more is needed; else {halt} again when peers are there"
            )
        number, founder = order.order.number, await directory.founder()
        if founder is not None and founder.spent >= number:
            raise SwarmfreeError(
                f"order {number} to {halt} came as the run was about to go on from snapshots, and is not obeyed: {halt} again"
            )
        who = "peers have" if keepers > 1 else "peer has"
        typer.echo(f"order {number} to {halt}: {keepers} {who} taken it so far; {FOLLOWS[halt]}")
        return 0

"""Whether the weights that a merge was ordered with are those that the neighbours' own norms give.

The newcomer takes each neighbour's norm from its signed announcement in the directory, which it renews when it is asked for its weights; from the
sealed record where the announcement stays older. It computes the weights itself, and builds nothing where they are not the coordinator's.
Source: CheckFree, Algorithm 1 lines 1-2; protocol section 3.10.
"""

from __future__ import annotations

import asyncio

from swarmfree.policy.recovery import signed_norms, weights_between
from swarmfree.swarm.actions import Merge
from swarmfree.swarm.books import bits_float32, float32_bits
from swarmfree.swarm.errors import RefusalKind, Refused
from swarmfree.swarm.events import DirectoryNorms
from swarmfree.swarm.messages import Build
from swarmfree.trainer.context import Context

LOOKS, LOOK_S = 10, 0.2
"""So often the directory is looked into for renewed announcements, and so long apart."""


async def check_weights(context: Context, request: Build, action: Merge) -> None:
    """Look until both neighbours have renewed what they announce, or for two seconds, and compare.

    Raises:
        Refused: `disputed`, the weights that were ordered are not those that the norms give.
    """
    record = request.record
    if record is None or record.lineage() != request.lineage:
        raise Refused(RefusalKind.DISPUTED, f"a merge after iteration {request.iteration - 1}, and not with the record of it")
    neighbours = {action.before_stage: action.before.member, action.after_stage: action.after.member}
    for look in range(LOOKS):
        await asyncio.sleep(LOOK_S if look else 0.0)
        announced = await context.ports.directory.announcements()
        signed = signed_norms(announced, neighbours, request.iteration, request.lineage)
        if len(signed) == len(neighbours):
            break
    sides = action.before_stage, action.after_stage
    before, after = (signed.get(stage, record.stages[stage].squared_norm) for stage in sides)
    weights = weights_between(context.manifest.recovery, action.stage, sides, (before, after))
    own = float32_bits(weights.before), float32_bits(weights.after)
    found = [(a.stage, a.iteration, a.squared_norm) for a in announced if neighbours.get(a.stage) == a.endpoint.member]
    context.tell(DirectoryNorms(action.stage, sorted(found), len(signed), *map(bits_float32, own)))
    if own == (action.weight_before, action.weight_after):
        return
    ordered = bits_float32(action.weight_before), bits_float32(action.weight_after)
    raise Refused(
        RefusalKind.DISPUTED,
        f"weights {ordered[0]:.6g} and {ordered[1]:.6g} were ordered for stages {sides[0]} and {sides[1]}, "
        f"and the norms that these have signed give {weights.before:.6g} and {weights.after:.6g}",
    )

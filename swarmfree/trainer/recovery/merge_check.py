"""Whether the weights that a merge was ordered with are those that the neighbours' own norms give.

The newcomer takes each neighbour's norm from its signed announcement in the directory, which it
renews when it is asked for its weights; from the sealed record where the announcement stays older.
It computes the weights itself, and builds nothing where they are not the coordinator's.
Source: CheckFree, Algorithm 1 lines 1-2; protocol section 3.10.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from swarmfree.policy.recovery import signed_norms, weights_between
from swarmfree.protocol.actions import Merge
from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.events import DirectoryNorms
from swarmfree.protocol.messages import Build
from swarmfree.protocol.records import bits_float32, float32_bits
from swarmfree.trainer.context import Context

LOOKS_MAX_S, LOOK_S = 2.0, 0.2
"""So long the directory is looked into for renewed announcements, also where it does not answer,
and so far apart.
"""


async def check_weights(context: Context, request: Build, action: Merge) -> None:
    """Check that the ordered merge weights follow from the norms that the neighbours signed.

    It waits up to two seconds for both neighbours to renew their announcements.

    Raises:
        Refused: `disputed`, the weights that were ordered are not those that the norms give.
    """
    record = request.record
    if record is None or record.lineage() != request.lineage:
        raise Refused(RefusalKind.DISPUTED, f"a merge after iteration {request.iteration - 1}, and not with the record of it")
    neighbours = {action.before_stage: action.before.member, action.after_stage: action.after.member}
    announced: Sequence[Announcement] = ()
    signed: dict[int, float] = {}
    wait_s = 0.0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOKS_MAX_S):
            while len(signed) < len(neighbours):
                await asyncio.sleep(wait_s)
                wait_s = LOOK_S
                announced = await context.ports.directory.announcements()
                signed = signed_norms(announced, neighbours, request.iteration, request.lineage)
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

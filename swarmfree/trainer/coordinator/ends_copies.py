"""Who keeps a copy of the ends right now: asked when stage 0 is lost, since an answer of some time
ago may be a step old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from swarmfree.policy.retention import KeptCopy, of_this_run
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.tasks import each

LOOK_S = 0.1


async def kept_copies(context: Context, roster: Roster, iteration: int, past: Mapping[int, str]) -> tuple[KeptCopy, ...]:
    """Complete copies of the ends, those of senior participants first; who does not answer is
    fenced.

    Waits at most `hold_s` for one that is ready for this iteration: a keeper may be about to make
    its last step.

    Args:
        past: iteration -> lineage of the last record before it, this iteration's included.
    """
    if not context.manifest.recovery.ends_copies:
        return ()
    until_s = context.now_s() + context.timing.hold_s
    while True:
        await each(roster.participants(), roster.ask)
        answers = [(participant.endpoint, participant.answer) for participant in roster.participants()]
        copies = of_this_run((KeptCopy(e, a.ends_iteration, a.ends_lineage) for e, a in answers if a is not None), past)
        if any(copy.iteration == iteration for copy in copies) or context.now_s() >= until_s:
            return copies
        await asyncio.sleep(LOOK_S)

"""How long a piece of work may take before its device counts as stuck: median + k * MAD of what was
measured. Pure.

Source: protocol section 3.9. It applies to a peer's own compute only: whoever waits for a peer
judges by silence, since a nested call takes as long as all later stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

MEASURED_MIN = 8
SPREADS = 20.0
LONGEST, MIXED_LEAST = 10.0, 2.0
UNMEASURED = 10.0
"""How many times the least limit a piece may take of whose kind nothing is known."""
LATE_UNMEASURED, LATE_MIXED = 5.0, 3.0
"""The same in times of `silence_s` until a device counts as late, and the least for work that is
not alike.
"""


def alike_limit_s(measured_s: Sequence[float], least_s: float) -> float:
    """Upper bound in seconds for the next piece of uniform device work: a pass of one microbatch.

    The bound is median + k * MAD of `measured_s`.

    Args:
        measured_s: seconds of the last pieces; fewer than `MEASURED_MIN` say nothing.
        least_s: never less than this.
    """
    if len(measured_s) < MEASURED_MIN:
        return UNMEASURED * least_s
    middle_s = median(measured_s)
    spread_s = median(abs(each_s - middle_s) for each_s in measured_s)
    return max(least_s, middle_s + SPREADS * spread_s)


def mixed_limit_s(measured_s: Sequence[float], least_s: float) -> float:
    """Upper bound in seconds for the next piece of mixed device work, from a few bytes to a whole
    state.

    The spread of such work says nothing, so the bound is a multiple of the longest measured piece.
    """
    if len(measured_s) < MEASURED_MIN:
        return UNMEASURED * least_s
    return max(MIXED_LEAST * least_s, LONGEST * max(measured_s))


def lateness(ran_s: float, measured_s: Sequence[float], silence_s: float, *, alike: bool) -> float:
    """How many times a running piece of device work has exceeded its limit; 0 while it has not.

    The limit here is lower than the one after which a device counts as stuck: other replicas can do
    the work long before that.

    Args:
        ran_s: how long it has run.
        measured_s: as above.
        silence_s: how long others wait for a peer of which they hear nothing.
        alike: passes of one microbatch.
    """
    if not alike:
        limit_s = max(LATE_MIXED * silence_s, LONGEST * max(measured_s, default=0.0))
    elif len(measured_s) < MEASURED_MIN:
        limit_s = LATE_UNMEASURED * silence_s
    else:
        limit_s = alike_limit_s(measured_s, silence_s)
    return ran_s / limit_s if ran_s > limit_s else 0.0


def is_given_up(late: float, others: Sequence[float]) -> bool:
    """Whether to fence a member for its slow device: only if another replica of its stage is not
    late.

    Args:
        late: its lateness.
        others: that of the stage's other members.
    """
    return late > 1 and any(other <= 1 for other in others)

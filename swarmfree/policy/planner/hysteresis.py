"""When a better plan is taken: not at each small change, and never two at once.

Peers that each go where things look best a moment ago move back and forth for ever. So a change
has to be worth something, to be the best one for a while, and to come some time after the last;
and its moment is drawn, so that two swarms, or two coordinators of a split one, do not act in step.

Source: Petals, issues 389 and 493, where two servers moved at once, again and again.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """How reluctant a swarm is.

    Args:
        gain_min: a change brings so many times the score of going on as before.
        hold_s: it is the best one for so long before it is taken, and up to twice as long.
        rest_s: nothing else is changed for so long after a change.
    """

    gain_min: float = 1.1
    hold_s: float = 20.0
    rest_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ChangeWatch:
    """What has been considered so far; a fold over time.

    Args:
        candidate: the change that is held; None = none.
        due_s: when it may be taken.
        rests_until_s: nothing is changed before.
    """

    candidate: Hashable | None = None
    due_s: float = 0.0
    rests_until_s: float = 0.0


def consider(
    watch: ChangeWatch,
    candidate: Hashable | None,
    gain: float,
    now_s: float,
    rng: random.Random,
    rules: ChangeRules = ChangeRules(),
) -> tuple[ChangeWatch, bool]:
    """Consider the best change there is at this moment.

    Args:
        watch: what was considered before.
        candidate: what to change, the same value as long as it is the same change.
        gain: its score against the one of changing nothing; infinite where nothing goes on without
            it, and then it is taken at once.
        now_s: seconds, of any clock that does not go back.
        rng: for the moment.
        rules: see there.

    Returns:
        What is to be remembered, and whether to change now.
    """
    if candidate is None or gain < rules.gain_min:
        return replace(watch, candidate=None), False
    if gain == float("inf"):
        return ChangeWatch(None, 0.0, now_s + rules.rest_s), True
    if candidate != watch.candidate:
        watch = ChangeWatch(candidate, now_s + rules.hold_s * (1 + rng.random()), watch.rests_until_s)
    if now_s < max(watch.due_s, watch.rests_until_s):
        return watch, False
    return ChangeWatch(None, 0.0, now_s + rules.rest_s), True

"""How a run came out, in one sentence, and what each lost stage cost: what stands above the figure,
and first in every summary.

Pure: from a `SwarmState` alone. Costs are bits per byte of held-out text. A stage that came back
bit for bit cost nothing, whatever the loss did
meanwhile: the run goes on as if nothing had been lost.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from swarmfree.cockpit.lines import action_words
from swarmfree.cockpit.state import IterationSeen, LostStage, SwarmState, bits_per_byte
from swarmfree.lab.stage_spells import iteration_at

WINDOW = 10
"""Iterations on either side of a loss over which training losses are averaged: a single one is four
microbatches' noise.
"""
WAYS = {
    "Replay": "came back by replay",
    "Restore": "came back from an older copy",
    "Merge": "was made of its neighbours",
    "CopyNeighbour": "was copied from a neighbour",
    "Fresh": "was drawn anew",
    "Stay": "came back with an older state",
}


def iteration_of(story: LostStage, state: SwarmState) -> int:
    """Iteration under way when the stage's last replica was killed.

    If no kill is known, the iteration in which the swarm noticed the loss.
    """
    if story.killed_s is None:
        return story.iteration
    return min(story.iteration, int(iteration_at(state, story.killed_s)))


def seconds_of(story: LostStage) -> float | None:
    """Seconds from the kill, or the notice, until training went on; None where it has not."""
    since_s = story.noticed_s if story.killed_s is None else story.killed_s
    return None if story.resumed_s is None else story.resumed_s - since_s


def cost_of(story: LostStage) -> float | None:
    """What the loss cost in held-out bits per byte, 0 where the stage is bit for bit; None where
    that is not known.

    Else the held-out loss right after less the last one before. The latter may be some iterations
    old, so this is the least that it can have been.
    """
    if story.built_s is None:
        return None
    if story.exact:
        return 0.0
    if story.loss_before is None or story.loss_after is None:
        return None
    return bits_per_byte(story.loss_after) - bits_per_byte(story.loss_before)


def training_around(story: LostStage, state: SwarmState) -> tuple[float, float, int] | None:
    """Mean training loss of as many iterations before the loss as after it, bits per byte, and how
    many, at most `WINDOW`; None without any.
    """
    if story.resumed_iteration is None:
        return None
    before, after = _split(state.commits, story.resumed_iteration)
    count = min(WINDOW, len(before), len(after))
    if not count:
        return None
    return _mean(before[-count:]), _mean(after[:count]), count


def _split(commits: Sequence[IterationSeen], at: int) -> tuple[list[IterationSeen], list[IterationSeen]]:
    return [c for c in commits if c.iteration < at], [c for c in commits if c.iteration >= at]


def _mean(commits: Sequence[IterationSeen]) -> float:
    return statistics.fmean(bits_per_byte(c.loss) for c in commits)


def regained_after(story: LostStage, state: SwarmState) -> int | None:
    """Iterations until the training loss, averaged over five, was down to what it was before the
    loss; None where it never was, or nothing rose.
    """
    if story.resumed_iteration is None or (cost_of(story) or 0.0) <= 0.0:
        return None
    before, after = _split(state.commits, story.resumed_iteration)
    if len(before) < 5:
        return None
    level = _mean(before[-5:])
    return next((count + 5 for count in range(len(after) - 4) if _mean(after[count : count + 5]) <= level), None)


def short_outcome(story: LostStage, state: SwarmState) -> str:
    """How one lost stage came back, for a label: two short lines."""
    seconds = seconds_of(story)
    if story.built_s is None or seconds is None:
        return f"stage {story.stage} lost, not back"
    return f"stage {story.stage} lost, back after {seconds:.1f} s\n{_how_short(story, state)}"


def _how_short(story: LostStage, state: SwarmState) -> str:
    way, cost = action_words(story.action) or "rebuilt", cost_of(story)
    if story.exact:
        return f"{way}, bit for bit: 0.00 bits"
    if cost is None:
        return way
    if cost <= 0:
        return f"{way}: {_fell(story)}"
    regained = regained_after(story, state)
    return f"{way}: {cost:+.2f} bits" + (f", regained in {regained} iterations" if regained else "")


def _fell(story: LostStage) -> str:
    """Where the held-out loss did not rise: from what, when, to what. How much of that was learnt
    before the loss is not known.
    """
    before, after = bits_per_byte(story.loss_before or 0.0), bits_per_byte(story.loss_after or 0.0)
    return f"held out {before:.2f} at iteration {story.loss_before_iteration}, {after:.2f} after"


def headline(state: SwarmState, code: int, why: str) -> str:
    """How the run came out, in one sentence that begins with its name.

    Args:
        state: everything that was heard.
        code: exit code of the run.
        why: why it ended, empty if it did all its iterations.
    """
    name = state.name or "swarm"
    told = _losses(state)
    if code == 0 and not why:
        return f"{name}: {'; '.join(filter(None, (_worse(state), told))) or _without_loss(state)}"
    so_far = f"{state.committed_count:,} of {state.iterations:,} iterations"
    ended = f"ended {'uncleanly' if state.is_over else 'early'}, after {so_far}: {why or 'no reason given'}"
    return f"{name}: {ended}; {told}" if told else f"{name}: {ended}"


def _worse(state: SwarmState) -> str:
    """Where the model ended worse than it began and than guessing: the rate was too high, though
    every number stayed finite.
    """
    if len(state.evaluations) < 2:
        return ""
    first, last = (bits_per_byte(state.evaluations[at].loss) for at in (0, -1))
    guessing = math.log2(state.vocabulary) / state.bytes_per_token
    if last <= max(first, guessing):
        return ""
    rose = f"held-out loss rose from {first:.2f} to {last:.2f} bits per byte, where guessing costs {guessing:.3g}"
    return f"nothing was learned: {rose}; a smaller optimizer.rate may help"


def _without_loss(state: SwarmState) -> str:
    last = state.evaluations[-1].loss if state.evaluations else None
    reached = f", to {bits_per_byte(last):.2f} bits per byte" if last is not None else ""
    done = (
        f"{'all ' if state.is_over else ''}{state.committed_count:,} iteration{'s' * (state.committed_count != 1)} done{reached}"
    )
    count = len({m.member for m in state.lost_members})
    if not count:
        return f"{done}; nothing was lost"
    return f"{done}; {_number(count)} peers were lost, and no stage" if count > 1 else f"{done}; one peer was lost, and no stage"


def _losses(state: SwarmState) -> str:
    stories = state.lost_stages
    if not stories:
        return ""
    if len(stories) == 1:
        return _one(stories[0], state)
    back = [story for story in stories if seconds_of(story) is not None]
    stages = _listed(story.stage for story in stories)
    lost = (
        f"stages {stages} were lost"
        if len({s.stage for s in stories}) > 1
        else f"stage {stories[0].stage} was lost {_number(len(stories))} times"
    )
    if not back:
        return f"{lost} and did not come back"
    exact = sum(story.exact for story in back)
    how = ", bit for bit" if exact == len(back) else f", {_number(exact)} of them bit for bit" if exact else ""
    within = f"within {max(seconds_of(story) or 0.0 for story in back):.1f} s"
    came = "all came back" if len(back) == len(stories) else f"{_number(len(back))} came back"
    costs = [cost_of(story) for story in back]
    known = [cost for cost in costs if cost is not None]
    rise = sum(max(0.0, cost) for cost in known)
    price = "; they cost 0.00 bits" if exact == len(back) else f"; together they raised the held-out loss by {rise:.2f} bits"
    price = price if len(known) == len(costs) else ""
    return f"{lost}; {came} {within}{how}{price}"


def _one(story: LostStage, state: SwarmState) -> str:
    lost = f"stage {story.stage} was lost at iteration {iteration_of(story, state)}"
    seconds = seconds_of(story)
    if story.built_s is None or seconds is None:
        return f"{lost} and did not come back"
    if story.exact:
        return f"{lost} and came back bit for bit in {seconds:.1f} s; it cost 0.00 bits"
    way = WAYS.get(story.action, "came back")
    cost, regained = cost_of(story), regained_after(story, state)
    if cost is None:
        return f"{lost} and {way} in {seconds:.1f} s"
    if cost <= 0:
        return f"{lost} and {way} in {seconds:.1f} s; {_fell(story)}"
    after = f", regained after {regained} iterations" if regained else ""
    return f"{lost} and {way} in {seconds:.1f} s; the held-out loss rose by {cost:.2f} bits{after}"


def _listed(numbers: Iterable[int]) -> str:
    *most, last = (str(number) for number in sorted(set(numbers)))
    return f"{', '.join(most)} and {last}" if most else last


def _number(count: int) -> str:
    return ("none", "one", "two", "three", "four", "five", "six")[count] if count < 7 else f"{count:,}"

"""What all scenarios share: a small swarm without faults of its own, and scripts that strike
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    RecoveryMethod,
    RecoverySection,
    RingSection,
    RunSection,
    StagesSection,
    TimingSection,
)
from swarmfree.protocol.messages import Heartbeat, HeartbeatAnswer, Request
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.sim.faults import CALM, Fate, FaultPlan
from swarmfree.sim.rehearsal import Factories, RehearsalResult, rehearse
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup

SEED = 1
STEADY = replace(CALM, delay_min_s=0.001, delay_max_s=0.003, respawn_rate=1.0, replace_min_s=0.5, replace_max_s=0.5)


def swarm(
    *,
    body: int = 3,
    replicas: int = 2,
    replicas_min: int = 0,
    standbys: int = 1,
    faults: FaultPlan = STEADY,
    sources: int = 1,
    ends_copies: int = 2,
    shadow_every: int = 0,
) -> Setup:
    """Four iterations of six microbatches; the given sources and body."""
    manifest = Manifest(
        run=RunSection(name="scenario", seed=SEED, iterations=4, evaluate_every=0, evaluate_windows=1),
        model=ModelSection(width=8, blocks=body, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
        stages=StagesSection(body=body, replicas_min=replicas_min or replicas, replicas_max=replicas, sources_max=sources),
        batch=BatchSection(rows=1, microbatches=6),
        ring=RingSection(credits=3),
        recovery=RecoverySection(
            snapshot_every=0,
            ends_copies=ends_copies,
            shadow_every=shadow_every,
            shadow_kind="plain",
            best="restore",
            border_dtype="wire",
        ),
        timing=TimingSection(join_wait_s=20.0, split_wait_s=10.0),
    )
    return Setup(
        manifest,
        faults,
        feeders=sources,
        bodies=body * replicas,
        standbys=standbys,
        start_spread_s=0.1,
    )


def reaching(best: RecoveryMethod, setup: Setup) -> Setup:
    """The same setup with `best` as the best recovery method in place of `restore`."""
    recovery = replace(setup.manifest.recovery, best=best)
    return replace(setup, manifest=replace(setup.manifest, recovery=recovery))


def unhurried(setup: Setup, *, iterations: int = 4) -> Setup:
    """The same with devices ten times slower, so that an iteration takes seconds and silence is
    noticed while it lasts.
    """
    run = replace(setup.manifest.run, iterations=iterations)
    return replace(setup, manifest=replace(setup.manifest, run=run), work_min_s=0.04, work_max_s=0.08)


played: list[tuple[Setup, RehearsalResult, bool]] = []
"""What the running test has played, and whether with a script; see `conftest`."""


def play(
    setup: Setup, script: Script | None = None, *, full: bool = False, factories: Factories | None = None
) -> RehearsalResult:
    """Play it; whatever else a scenario expects, every invariant holds and every iteration
    commits.
    """
    result = rehearse(SEED, setup=setup, script=script, full_transcript=full, factories=factories)
    played.append((setup, result, script is not None))
    assert result.violation is None, "\n".join([*result.transcript[-60:], str(result.violation), result.details])
    assert result.statistics.iterations == setup.manifest.run.iterations
    return result


def lines(result: RehearsalResult, *words: str) -> list[str]:
    """Lines of the transcript that have all these words."""
    return [line for line in result.transcript if all(word in line for word in words)]


class Once(Script):
    """Strikes at the first moment that fits, and keeps who was there.

    Args:
        fits: whether this is the moment.
        strike: what happens then.
    """

    def __init__(self, fits: Callable[[Moment], bool], strike: Callable[[Director, Moment], None]) -> None:
        self._fits, self._strike = fits, strike
        self.struck = False

    def see(self, director: Director, moment: Moment) -> None:
        """Strike, if this is it."""
        if not self.struck and self._fits(moment):
            self.struck = True
            director.tell(_when(moment))
            self._strike(director, moment)


class Counting(Once):
    """Also counts requests that set out, by a name for each."""

    def __init__(
        self,
        fits: Callable[[Moment], bool],
        strike: Callable[[Director, Moment], None],
        name: Callable[[Moment], str | None],
    ) -> None:
        super().__init__(fits, strike)
        self._name = name
        self.counts: dict[str, int] = {}

    def see(self, director: Director, moment: Moment) -> None:
        """Count, then as ever."""
        name = self._name(moment) if moment.outcome is None else None
        if name is not None:
            self.counts[name] = self.counts.get(name, 0) + 1
        super().see(director, moment)


class Losing(Script):
    """Loses, doubles or delays chosen calls.

    Args:
        choose: the fate of a call, None = as ever.
    """

    def __init__(self, choose: Callable[[Endpoint, Endpoint, Request], Fate | None]) -> None:
        self._choose = choose

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """As chosen."""
        return self._choose(sender, receiver, request)


def is_asked(kind: type[Request], **fields: object) -> Callable[[Moment], bool]:
    """A request of this kind sets out, whose fields (`key__stage=2` looks into `key`) have these
    values.
    """
    return lambda moment: moment.outcome is None and _has(moment.request, kind, fields)


def is_answered(kind: type[Request], **fields: object) -> Callable[[Moment], bool]:
    """A handler of such a request has answered."""
    return lambda moment: isinstance(moment.outcome, Reply) and _has(moment.request, kind, fields)


def share_is_done(iteration: int) -> Callable[[Moment], bool]:
    """The moment at which a member tells the coordinator that it has three microbatches, its share,
    in this iteration.
    """

    def fits(moment: Moment) -> bool:
        match moment.outcome:
            case Reply(message=HeartbeatAnswer(iteration=found, partial_sums=partial_sums)) if isinstance(
                moment.request, Heartbeat
            ):
                return found == iteration and sum(len(partial_sum.microbatches) for partial_sum in partial_sums) >= 3
            case _:
                return False

    return fits


def _when(moment: Moment) -> str:
    asked = f"{moment.sender.member} asks {moment.receiver.member}: {type(moment.request).__name__}"
    if moment.outcome is None:
        return f"as {asked}"
    answer = type(moment.outcome.message).__name__ if isinstance(moment.outcome, Reply) else "no answer"
    return f"as {moment.receiver.member} answers {type(moment.request).__name__} of {moment.sender.member}: {answer}"


def _has(request: Request, kind: type[Request], fields: dict[str, object]) -> bool:
    if not isinstance(request, kind):
        return False
    for path, value in fields.items():
        found: object = request
        for name in path.split("__"):
            found = getattr(found, name)
        if found != value:
            return False
    return True

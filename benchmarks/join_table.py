"""What the benchmark of joining found: one joiner's times and speeds, what is reported of all of
them, and the table.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from benchmarks.ring_runs import parameter_count
from swarmfree.protocol.manifest import Manifest, ModelSection

STATE_BYTES_PER_PARAMETER = 12
FOREIGN_CORES_MAX = 0.1


def state_bytes(model: ModelSection) -> int:
    """Weights and moments of the one body stage."""
    ends = 2 * model.vocabulary * model.width + model.width
    return STATE_BYTES_PER_PARAMETER * (parameter_count(model) - ends)


@dataclass(frozen=True, slots=True)
class Join:
    """One joiner, times in Unix seconds.

    Args:
        begun_s: its process was started.
        up_s: its first word.
        placed_s: the coordinator gave it a place.
        built_s: it told the coordinator that it holds its stage's state.
        member_s: the first plan that names it.
        contributed_s: the first iteration that it was in from the opening on is committed.
        received_bytes: what it loaded.
        digest: of the state of its stage in that record.
        agreed: how many members of its stage the record names with this digest.
        before: tokens/s before its start.
        during, starting, membership: tokens/s from its start to `member_s`, and in this time's two
            parts, to `up_s` and from there on.
        sharing, after: tokens/s from `member_s` to `contributed_s`, and of the swarm with it
            afterwards.
        overall: tokens/s from its start to `contributed_s`.
        cpu_before, cpu_during: cores that the others kept busy.
        own_cpu_s: processor seconds of the joiner to `up_s`, and from there to `contributed_s`.
        foreign_cores: cores that programs other than the swarm and this one kept busy, from the
            watch before it on.
        control: tokens/s while a process imports what a peer imports and joins nothing, over those
            right before.
    """

    begun_s: float
    up_s: float
    placed_s: float
    built_s: float
    member_s: float
    contributed_s: float
    received_bytes: int
    digest: str
    agreed: int
    before: float
    during: float
    starting: float
    membership: float
    sharing: float
    after: float
    overall: float
    cpu_before: float
    cpu_during: float
    own_cpu_s: tuple[float, float]
    foreign_cores: float
    control: float

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs ran."""
        return self.foreign_cores > FOREIGN_CORES_MAX

    @property
    def retention(self) -> float:
        """Tokens/s from its start to its first contribution over those before."""
        return self.overall / self.before

    @property
    def to_plan(self) -> float:
        """The same until a plan names it."""
        return self.during / self.before

    @property
    def seconds(self) -> float:
        """From the start of its process to its first contribution."""
        return self.contributed_s - self.begun_s

    @property
    def spans_s(self) -> tuple[float, ...]:
        """How long to its first word, from there to a place, to its stage's state, to a plan that
        names it, to its first contribution.
        """
        times = (self.begun_s, self.up_s, self.placed_s, self.built_s, self.member_s, self.contributed_s)
        return tuple(end - begin for begin, end in itertools.pairwise(times))


def counted(joins: Sequence[Join]) -> list[Join]:
    """Those that other programs did not disturb."""
    return [join for join in joins if not join.is_disturbed]


def report(joins: Sequence[Join], wanted: int) -> dict[str, float]:
    """What is reported: medians of the joins that count or of all, whichever are worse; of all
    where fewer than `wanted` count.
    """
    either = [joins, counted(joins)] if len(counted(joins)) >= wanted else [joins]
    return {
        "disturbed": len(joins) - len(counted(joins)),
        "retention_least": round(min(join.retention for join in joins), 4),
        "retention_to_plan": round(min(statistics.median(join.to_plan for join in some) for some in either), 4),
        "first_contribution_s_max": round(max(join.seconds for join in joins), 3),
        "first_contribution_s": round(max(statistics.median(join.seconds for join in some) for some in either), 3),
        "retention": round(min(statistics.median(join.retention for join in some) for some in either), 4),
    }


def table_of(manifest: Manifest, joins: Sequence[Join], setting: str) -> Table:
    """One line per joiner, then the medians of those that count, if any does."""
    table = Table(
        title=(
            f"join, {setting}: {state_bytes(manifest.model) / 1e6:.0f} MB of weights and moments, iterations of "
            f"{statistics.median(manifest.tokens_per_iteration / join.before for join in joins):.2f} s; process start | join proper"
        ),
        title_justify="left",
        title_style="",
    )
    table.add_column("joiner", no_wrap=True)
    headings = ("total s", "start", "place", "state", "member", "commit", "to plan", "start", "join", "first", "after", "kept")
    for heading in (*headings, "control", "own CPU s", "others' cores", "foreign"):
        table.add_column(heading, justify="right")
    rows = [(f"({number})" if each.is_disturbed else str(number), [each]) for number, each in enumerate(joins, start=1)]
    for name, which in [*rows, ("median", counted(joins) or list(joins))]:
        spans = [(j.seconds, *j.spans_s) for j in which]
        shares = [
            (
                j.to_plan,
                j.starting / j.before,
                j.membership / j.before,
                j.sharing / j.after,
                j.after / j.before,
                j.retention,
            )
            for j in which
        ]
        own = [statistics.median(j.own_cpu_s[part] for j in which) for part in (0, 1)]
        cores = [statistics.median(values) for values in ([j.cpu_before for j in which], [j.cpu_during for j in which])]
        table.add_row(
            name,
            *(f"{statistics.median(values):.2f}" for values in zip(*spans, strict=True)),
            *(f"{statistics.median(values):.3f}" for values in zip(*shares, strict=True)),
            f"{statistics.median(j.control for j in which):.3f}",
            f"{own[0]:.1f} + {own[1]:.1f}",
            f"{cores[0]:.2f} > {cores[1]:.2f}",
            f"{statistics.median(j.foreign_cores for j in which):.2f}",
        )
    return table

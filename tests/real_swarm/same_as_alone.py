"""Same as alone (I5): the loss of every iteration of a swarm of real processes, beside one process
that trains the same model alone.

Two swarms of eight peers, two in each of four stages, learn the standard library's source through
``swarmfree local``: one is left in peace, in the other one replica of each body stage gets SIGKILL
at a seeded random moment and comes back. The process alone has the same first weights, data,
schedule, clipping and optimizer step (`swarmfree.lab.reference_training`); it knows no stage, no
ring and no peer.

How near is near is said by two things beside it: orders of summation, runs alone that add the same
microbatches in shuffled order and random groups, which costs rounding only, and a control, a run
alone in which one microbatch of one iteration counts twice.

It decides nothing about the swarm and looks at what a report holds only.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, ProcessEnded, ProcessKilled
from swarmfree.lab.chaos.loss_judge import KeptTokens, scalars_of
from swarmfree.lab.kill_script import Kill
from swarmfree.lab.processes import Child
from swarmfree.lab.reference_training import Alone, Grouping, Twice, shuffled, train_canonically
from swarmfree.lab.report import read_events
from swarmfree.lab.starter import Starter
from swarmfree.policy.data_order import order_of
from swarmfree.protocol.config import read_run
from swarmfree.protocol.events import IterationCommitted, MemberLost, Opened, Repaired, StageBuilt, Started, Stepped
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.ports import Tokens
from swarmfree.storage.corpus import prepare_corpus
from swarmfree.storage.tokens import tokens_of
from tests.lab.changed_processes import resting, without_page

BOUND = 1e-5
CONTROL_MIN = 100 * BOUND
CONTROL = Twice(iteration=5, offset=3)
PEERS = 8
SWARM_WITHIN_S = 280

# Small, so that rounding is what there is to see and not the wait; steep enough that a wrong sum
# shows; clipped in about half of its iterations.
RUN = """\
[run]
name = "same-as-alone"
seed = 5
iterations = {iterations}
evaluate_every = 0
evaluate_windows = 2

[model]
width = 64
blocks = 3
heads = 4
kv_heads = 2
mlp_width = 176
tokens_per_row = 32

[stages]
body = 3
replicas_min = 2
replicas_max = 2
sources_max = 2

[batch]
rows = 2
microbatches = 8

[optimizer]
rate = 1.5e-3
schedule = "cosine"
warmup_iterations = 10
weight_decay = 0.1
clip = "global"
clip_norm = 1.0

[ring]
wire_dtype = "float32"
"""

# Who comes back must first start Python and torch, which takes longer than many of these
# iterations. So the swarm that is struck is struck early; and its sources rest, or, where it is no
# fork of the tests', it has few microbatches in flight and pauses every ten iterations for a long
# evaluation. None of it may change a loss. Where the iterations are quicker still and the run is
# over before everybody is back, it is played again, twice and at last four times as long.
REST_S = 0.15
TIMES_AS_LONG = (1, 2, 4)
KILLS_BETWEEN = (2, 10)
EVALUATE_EVERY = 10
PATIENT = (f"run.evaluate_every={EVALUATE_EVERY}", "run.evaluate_windows=64", "ring.credits=1")


class SwarmFailed(Exception):
    """A swarm did not come to its end."""


@dataclass(frozen=True, slots=True)
class Return:
    """One peer that was killed and came back.

    Args:
        name: of its process.
        stage: which it served when it was killed.
        killed_in: iteration that was under way when SIGKILL was sent.
        code: what its first life ended with; negative = signal.
        noticed: the coordinator fenced it.
        lives: how many incarnations it had.
        stage_after: which it serves in its second life: who comes back first gets the lowest stage
            that lacks a replica; -1 = none.
        action: how it got that stage's state.
        from_iteration: first iteration that it was a member of again.
        lineages_agree: every record that it stepped with afterwards is the one the others stepped
            with.
    """

    name: str
    stage: int
    killed_in: int
    code: int
    noticed: bool
    lives: int
    stage_after: int
    action: str
    from_iteration: int
    lineages_agree: bool


@dataclass(frozen=True, slots=True)
class SwarmStory:
    """What a swarm's report says.

    Args:
        losses: by iteration, nats per token.
        first_members: how many replicas each stage had in iteration 0.
        last_members: the same for the last iteration.
        returns: of those that were killed, by stage.
        redone: (iteration, stage, how many microbatches) of work that died with a peer and was done
            again.
        told: how many events of each kind were told.
    """

    losses: tuple[float, ...]
    first_members: tuple[int, ...]
    last_members: tuple[int, ...]
    returns: tuple[Return, ...]
    redone: tuple[tuple[int, int, int], ...]
    told: dict[str, int]


@dataclass(frozen=True, slots=True)
class Gap:
    """The largest difference of two loss curves, in nats per token, and the iteration in which it
    is.
    """

    nats: float
    iteration: int

    @staticmethod
    def between(losses: Sequence[float], others: Sequence[float]) -> Gap:
        """Compare iteration by iteration; curves of unequal length are an error, and what is no
        number is infinitely far away.
        """
        found = [abs(a - b) for a, b in zip(losses, others, strict=True)]
        found = [math.inf if math.isnan(difference) else difference for difference in found]
        return Gap(max(found), found.index(max(found)))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was trained.

    Args:
        manifest: of all runs.
        alone: losses of one process alone.
        orders: the same, one curve per shuffled order of summation.
        control: the same, with one microbatch counted twice.
        peaceful: the swarm that was left alone; None = there was none.
        struck: the swarm of which one replica of each body stage was killed and came back.
        struck_alone: losses of one process alone for as many iterations as `struck` has.
    """

    manifest: Manifest
    alone: tuple[float, ...]
    orders: tuple[tuple[float, ...], ...]
    control: tuple[float, ...]
    peaceful: SwarmStory | None
    struck: SwarmStory
    struck_alone: tuple[float, ...]

    def gap(self, losses: Sequence[float]) -> Gap:
        """Largest difference from the process alone."""
        return Gap.between(losses, self.alone)

    def struck_gap(self) -> Gap:
        """The same, of the swarm that was struck."""
        return Gap.between(self.struck.losses, self.struck_alone)

    def widest_order(self) -> Gap:
        """Largest difference that another order of summation made."""
        return max((self.gap(losses) for losses in self.orders), key=lambda gap: gap.nats)


# ---- alone ---------------------------------------------------------------------------------------


def run_of(folder: Path, iterations: int) -> tuple[Manifest, Tokens]:
    """The run's manifest as all peers will have it, as far as training goes, and its tokens on this
    machine.
    """
    manifest = read_run(RUN.format(iterations=iterations), "the run of same_as_alone").manifest
    corpus = prepare_corpus("", folder / "corpus", manifest.data.held_out_percent)
    manifest = replace(manifest, data=replace(manifest.data, corpus_hash=corpus.corpus_hash))
    order = order_of(manifest.run.seed, corpus.parts, corpus.train_tokens, manifest.model.tokens_per_row)
    return manifest, KeptTokens(tokens_of(corpus, manifest, order.sequence_of))


def train_alone(manifest: Manifest, tokens: Tokens, grouping: Grouping | None, twice: Twice | None) -> tuple[float, ...]:
    """Losses of one run alone, by iteration."""
    alone = Alone(manifest, tokens)
    scalars = partial(scalars_of, manifest)
    return tuple(train_canonically(alone, scalars, iterations=manifest.run.iterations, grouping=grouping, twice=twice))


# ---- a swarm -------------------------------------------------------------------------------------


def draw_kills(seed: int, manifest: Manifest) -> tuple[Kill, ...]:
    """One replica of each body stage, each in an iteration of its own.

    Which replica, and when within the iteration, `lab.kill_script` draws from the run's seed.
    """
    drawn = random.Random(f"{seed} same as alone").sample(range(*KILLS_BETWEEN), manifest.stages.body)
    return tuple(Kill(iteration, stage, is_all=False) for stage, iteration in enumerate(drawn, start=1))


def run_swarm(folder: Path, manifest: Manifest, kills: Sequence[Kill] = (), fork_server: Sequence[str] = ()) -> SwarmStory:
    """Train with real processes, through the command line.

    Args:
        folder: new; the run config and the report are written below it.
        manifest: of the run.
        kills: the script; who is killed is started again.
        fork_server: how to start what the command is forked from (see `tests.lab.nursery`);
            empty = it is started by itself.

    Raises:
        SwarmFailed: it did not end well, or not in time.
    """
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(RUN.format(iterations=manifest.run.iterations))
    options = {
        "run": folder / "run.toml",
        "peers": PEERS,
        "standbys": 0,
        "log": "json",
        "out": folder / "report",
    }
    arguments = ["local", "--respawn"]
    arguments += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    arguments += [part for kill in kills for part in ("--kill", str(kill))]
    arguments += [part for change in (PATIENT if kills and not fork_server else ()) for part in ("--set", change)]
    changes = (without_page(), *((resting(REST_S),) if kills else ()))
    own = ("/usr/bin/env", f"TMPDIR={folder}", *changes, *fork_server) if fork_server else ()
    child = asyncio.run(_ended(folder, arguments, own))
    if child.code:
        raise SwarmFailed(f"exit code {child.code}: {' '.join(child.words)[-500:]}; see {folder}")
    return story_of(list(read_events(folder / "report")), manifest)


async def _ended(folder: Path, arguments: Sequence[str], fork_server: Sequence[str]) -> Child:
    """A command of ours, run to its end."""
    starter = Starter((sys.executable, "-m", "swarmfree"), fork_server, folder / "fork-server.txt")
    await starter.begin()
    child = await starter.start("local", arguments, folder / "stderr.txt", lambda _: None)
    try:
        async with asyncio.timeout(SWARM_WITHIN_S):
            await child.wait()
    except TimeoutError as late:
        raise SwarmFailed(f"no end within {SWARM_WITHIN_S} s; see {folder}") from late
    finally:
        child.close()
        await starter.end()
    return child


def story_of(observed_events: Sequence[ObservedEvent], manifest: Manifest) -> SwarmStory:
    """What a report says about losses, members, and those that were killed."""
    commits = list(_told(observed_events, IterationCommitted))
    opened = {event.iteration: event for _, event in _told(observed_events, Opened)}
    kinds = [type(h.event if isinstance(h, PeerEvent) else h).__name__ for h in observed_events]
    losses = {event.iteration: event.loss for _, event in commits}
    if sorted(losses) != list(range(manifest.run.iterations)) or len(commits) != len(losses):
        raise SwarmFailed(f"{len(commits)} commits of {manifest.run.iterations} iterations")
    returns = [_return_of(observed_events, at, h) for at, h in enumerate(observed_events) if isinstance(h, ProcessKilled)]
    return SwarmStory(
        losses=tuple(losses[iteration] for iteration in sorted(losses)),
        first_members=tuple(len(members) for members in opened[0].members),
        last_members=tuple(len(members) for members in opened[manifest.run.iterations - 1].members),
        returns=tuple(sorted(returns, key=lambda r: r.stage)),
        redone=tuple(
            (event.iteration, stage, len(offsets))
            for _, event in _told(observed_events, Repaired)
            for stage, offsets in event.redone
        ),
        told={kind: kinds.count(kind) for kind in sorted(set(kinds))},
    )


def _told(observed_events: Sequence[ObservedEvent], kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """(who, what) of one kind of event, in order."""
    return ((h.name, h.event) for h in observed_events if isinstance(h, PeerEvent) and isinstance(h.event, kind))


def _return_of(observed_events: Sequence[ObservedEvent], at: int, killed: ProcessKilled) -> Return:
    """What became of the peer that was killed at place `at` of the report."""
    before, after = observed_events[:at], observed_events[at:]
    started = [event for name, event in _told(observed_events, Started) if name == killed.name]
    peer_id = started[0].peer_id
    assert {event.peer_id for event in started} == {peer_id}, "a peer keeps its identity"
    under_way = [event for _, event in _told(before, Opened)][-1]
    built = next((event for _, event in _told(after, StageBuilt) if event.member == peer_id), None)
    opened = [event for _, event in _told(after, Opened) if built is not None and event.iteration >= built.iteration]
    stepped = list(_told(after, Stepped))
    lineages = {event.iteration: event.lineage for name, event in stepped if name != killed.name}
    own = [event for name, event in stepped if name == killed.name]
    return Return(
        name=killed.name,
        stage=next(stage for stage, members in enumerate(under_way.members) if peer_id in members),
        killed_in=under_way.iteration,
        code=next(h.code for h in after if isinstance(h, ProcessEnded) and h.name == killed.name),
        noticed=any(event.peer_id == peer_id for _, event in _told(after, MemberLost)),
        lives=len({event.incarnation for event in started}),
        stage_after=built.stage if built is not None else -1,
        action=built.action if built is not None else "",
        from_iteration=next((e.iteration for e in opened if built is not None and peer_id in e.members[built.stage]), -1),
        lineages_agree=bool(own) and all(lineages.get(event.iteration) == event.lineage for event in own),
    )


# ---- both ----------------------------------------------------------------------------------------


def _stand_back() -> None:
    """Let the swarms have the processors first: on Linux a thread has a priority of its own."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def compare(
    folder: Path,
    *,
    iterations: int,
    orders: int,
    seed: int = 0,
    fork_server: Sequence[str] = (),
    is_peaceful: bool = True,
) -> Comparison:
    """Train everything: the swarms one after the other, the runs alone in one thread beside them.

    Args:
        folder: for configs and reports.
        iterations: of every run.
        orders: runs alone that sum in an order of their own.
        seed: of the moments at which peers are killed.
        fork_server: see `run_swarm`.
        is_peaceful: train the swarm that is left in peace, too.

    Raises:
        SwarmFailed: a swarm did not come to its end.
    """
    manifest, tokens = run_of(folder, iterations)
    with contextlib.ExitStack() as opened:
        pool = ThreadPoolExecutor(1, thread_name_prefix="alone", initializer=_stand_back)
        opened.callback(pool.shutdown, cancel_futures=True)

        def start(grouping: Grouping | None = None, twice: Twice | None = None) -> Future[tuple[float, ...]]:
            return pool.submit(train_alone, manifest, tokens, grouping, twice)

        alone, control = start(), start(twice=CONTROL)
        shuffles = [start(shuffled(manifest, number)) for number in range(orders)]
        peaceful = run_swarm(folder / "peaceful", manifest, fork_server=fork_server) if is_peaceful else None
        for times in TIMES_AS_LONG:
            longer = replace(manifest, run=replace(manifest.run, iterations=times * iterations))
            struck = run_swarm(folder / f"struck-{times}", longer, draw_kills(seed, longer), fork_server)
            if all(0 <= r.from_iteration < longer.run.iterations for r in struck.returns):
                break
        struck_alone = alone if longer == manifest else pool.submit(train_alone, longer, tokens, None, None)
        summed = tuple(order.result() for order in shuffles)
        return Comparison(manifest, alone.result(), summed, control.result(), peaceful, struck, struck_alone.result())


def table_of(found: Comparison) -> str:
    """All of it for people: one line per claim, then what happened to those that were killed."""
    run, batch, stages = found.manifest, found.manifest.batch, found.manifest.stages
    control = f"iteration {CONTROL.iteration}, microbatch {CONTROL.offset} of {batch.microbatches}"
    what = (
        f"same as alone: {run.run.iterations} iterations, {run.stage_count} stages of {stages.replicas_max} replicas, "
        f"{run.ring.wire_dtype} on the wire, {batch.microbatches} microbatches of {batch.rows} x {run.model.tokens_per_row} tokens; "
        f"loss {found.alone[0]:.4f} at first, {found.alone[-1]:.4f} at the end"
    )
    heading = "largest difference of a loss from one process alone, nats per token"
    lines = [what, f"{heading:<72}{'found':>9}  {'in iteration':<14}allowed"]
    peaceful = (
        [(f"swarm of {PEERS} processes", found.gap(found.peaceful.losses), f"at most {BOUND:.0e}")] if found.peaceful else []
    )
    rows = [
        *peaceful,
        ("swarm, one replica of each body stage killed and rejoined", found.struck_gap(), f"at most {BOUND:.0e}"),
        (f"alone, shuffled and summed in random groups, largest of {len(found.orders)}", found.widest_order(), ""),
        (f"alone, one microbatch counted twice ({control})", found.gap(found.control), f"at least {CONTROL_MIN:.0e}"),
    ]
    lines += [f"{what:<72}{gap.nats:>9.1e}  {gap.iteration:<14}{allowed}".rstrip() for what, gap, allowed in rows]
    for r in found.struck.returns:
        after = f"member of stage {r.stage_after} from iteration {r.from_iteration}, state by {r.action}"
        lines.append(
            f"{r.name} of stage {r.stage} killed in iteration {r.killed_in}; {after if r.action else 'did not come back'}"
        )
    redone = ", ".join(f"{count} of stage {stage} in iteration {iteration}" for iteration, stage, count in found.struck.redone)
    lines.append(f"microbatches that died with a peer and were done again: {redone or 'none'}")
    return "\n".join(lines)

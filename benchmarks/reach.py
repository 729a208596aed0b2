"""Whether a swarm trains where its peers cannot reach each other, and what it loses with a region.

``python -m benchmarks.reach`` makes hosts in network namespaces of their own and a router between
them (`benchmarks.wan`; root, or ``unshare -rn`` before the command), starts real swarms over them
with nothing but the invite, and plays:

- *relay*: two hosts that cannot reach each other, and one with the bootstrap node that both reach;
  both body stages and the sources are split over the two. Three times: with a link between them
  (*direct*), without one (*apart*), and behind routers that let no connection in (*routers*). All
  peers must tell one record for each iteration, and replicas at both hosts the same state after
  each step, to the bit; without a link no packet goes straight, and every iteration's bytes go by
  way of the relay. *over_direct* is tokens per second over those with a link.
- *region*: three regions, 50, 100 and 150 ms there and back, 100 Mbit/s, 0.1 % of all packets lost;
  the sources and stage 2 are split over two of them, stage 1 lies in the third alone, and one peer
  stands by in each. One region falls silent and is killed whole: the one with stage 1, and, in
  another swarm, the one with the bootstrap node and the coordinator. *back_s* is from then until
  each stage that was lost whole is there, and *transfer_s* what of that it was built for;
  *resumed_s* until the first commit of an iteration that was opened afterwards; *missed* of the
  killed were told to be missed, the last one after *missed_s*. Stages are tiny.
- *halves*: nothing passes between two halves of a swarm for 60 s. One must go on unforced and at
  once, the other forced and after `split_wait_s` at the soonest; afterwards it gives way, all are
  members of one swarm, and no unforced record has been undone.

Progress goes to stderr; the last line is one JSON object. The exit code is 1 where something does
not hold. Everything ends with it, the namespaces too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import finish
from benchmarks.live import Commits, LiveFailed, LiveSwarm, Said
from benchmarks.wan import Pair, Quality, Wan, both_ways
from swarmfree.cockpit.observed_events import PeerEvent
from swarmfree.lab.chaos.agreement import Agreement
from swarmfree.lab.swarm import FORK_SERVER_COMMAND
from swarmfree.protocol.config import to_toml
from swarmfree.protocol.events import (
    IterationCommitted,
    LineageDropped,
    MemberLost,
    Note,
    Opened,
    Placed,
    RecoveryDecided,
    StageBuilt,
    Started,
    event_to_json,
)
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RecoverySection,
    RunSection,
    StagesSection,
)

KINDS = ("relay", "region", "halves")
RUN = Manifest(
    run=RunSection(name="reach", seed=5, iterations=1_000_000, evaluate_every=0, evaluate_windows=1),
    model=ModelSection(width=32, blocks=2, heads=2, kv_heads=2, mlp_width=64, tokens_per_row=32),
    # Nothing is measured before all have come, so that nobody is placed by how fast another one is
    stages=StagesSection(body=2, replicas_min=2, replicas_max=2, sources_max=2),
    batch=BatchSection(rows=1, microbatches=4),
    optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
    recovery=RecoverySection(shadow_every=5),
)
TEXT_BYTES = 1 << 20
UP_WITHIN_S, ON_WITHIN_S, MET_WITHIN_S = 180.0, 120.0, 180.0
SETTLED = 5
"""Commits before anything is measured."""
BACK_WITHIN_S = 10.0
PARTED_S = 60.0
HUB, EAST, WEST, SOUTH = "hub", "east", "west", "south"
BY_RELAY = "by way of the relay"
WAN_BYTES_PER_S, WAN_LOSS = 100e6 / 8, 0.001
ROUND_TRIPS_S = {(EAST, WEST): 0.05, (EAST, SOUTH): 0.1, (WEST, SOUTH): 0.15}
REGIONS = {
    way: quality
    for pair, seconds in ROUND_TRIPS_S.items()
    for way, quality in both_ways(Quality(seconds / 2, WAN_BYTES_PER_S, WAN_LOSS), pair).items()
}


@dataclass(frozen=True, slots=True)
class Site:
    """One peer.

    Args:
        name: of it.
        host: where it runs.
        stage: which it is given, as it comes; -1 = it stands by.
        feeds: it may be a source.
    """

    name: str
    host: str
    stage: int
    feeds: bool = True


SPLIT = (
    Site("east-1", EAST, 0),
    Site("west-1", WEST, 0),
    Site("east-2", EAST, 1, feeds=False),
    Site("west-2", WEST, 2, feeds=False),
    Site("west-3", WEST, 1, feeds=False),
    Site("east-3", EAST, 2, feeds=False),
)
SPREAD = (
    Site("east-1", EAST, 0),
    Site("west-1", WEST, 0),
    Site("south-1", SOUTH, 1),
    Site("east-2", EAST, 2),
    Site("south-2", SOUTH, 1),
    Site("west-2", WEST, 2),
    Site("east-3", EAST, -1),
    Site("west-3", WEST, -1),
    Site("south-3", SOUTH, -1),
)


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


class Swarm(LiveSwarm):
    """A swarm over several hosts."""

    def is_placed(self, site: Site) -> bool:
        """Whether it was given a place, or made a standby."""
        if not any(True for _ in self.told(Started, name=site.name)):
            return False
        peer_id = self.endpoint(site.name).member.peer_id
        return any(event.member == peer_id for _, event in self.told(Placed))

    async def settle(self, sites: Sequence[Site]) -> None:
        """Start all, one after the other so that each gets its place, and wait until all train.

        Raises:
            LiveFailed: they do not, or one has another place.
        """
        for site in sites:
            await self.start(site.name, feeds=site.feeds, host=site.host, more=("--watch-engine",))
            await self.until(f"a place for {site.name}", lambda site=site: self.is_placed(site), UP_WITHIN_S)  # type: ignore[misc]
            if self.stage_of(site.name) != site.stage:
                raise LiveFailed(f"{site.name} was given stage {self.stage_of(site.name)}; {site.stage} was expected")
        members = [site for site in sites if site.stage >= 0]
        await self.until("all members", lambda: all(self.is_member(site.name) for site in members), UP_WITHIN_S)
        await self.commits(SETTLED, UP_WITHIN_S)

    def committed(self, since_s: float = 0.0, name: str = "") -> list[tuple[float, IterationCommitted]]:
        """What was committed, and when."""
        return list(self.told(IterationCommitted, since_s, name))

    def names(self, peer_id: str) -> str:
        """Of the peer with this id; empty where it never started."""
        return next((each.name for each in self.said if isinstance(each.event, Started) and each.event.peer_id == peer_id), "")

    def coordinator(self) -> str:
        """Who told the last commit."""
        return next(each.name for each in reversed(self.said) if isinstance(each.event, IterationCommitted))


@contextlib.asynccontextmanager
async def swarm_over(wan: Wan, hosts: Sequence[str], keep: Path | None) -> AsyncIterator[Swarm]:
    """A bootstrap node at the first of these hosts, and nobody else yet.

    Args:
        wan: has these hosts.
        hosts: where peers will be started.
        keep: file that all events are written to in the end.
    """
    with tempfile.TemporaryDirectory(prefix="swarmfree-reach-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        run_file, text = folder / "run.toml", folder / "text.txt"
        run_file.write_text(to_toml(RUN))
        draw = random.Random(RUN.run.seed)
        text.write_bytes(bytes(draw.choice(b"abcdefgh \n") for _ in range(TEXT_BYTES)))
        before = {host: wan.command(host) for host in hosts}
        async with Swarm(folder, run_file, text, FORK_SERVER_COMMAND, before) as swarm:
            try:
                yield swarm
            finally:
                if keep is not None:
                    lines = [{"name": each.name, **event_to_json(each.event, each.time_s)} for each in swarm.said]
                    keep.parent.mkdir(parents=True, exist_ok=True)
                    keep.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def kept(keep: Path | None, name: str) -> Path | None:
    """Where the events of one swarm are kept."""
    return keep and keep / f"{name}.jsonl"


def contradictions(said: Sequence[Said]) -> list[str]:
    """Where peers tell two records of an iteration, or two states after the same step."""
    agreement = Agreement(RUN.tokens_per_iteration)
    for each in said:
        agreement.hear(PeerEvent(each.time_s, each.name, each.event))
    return agreement.violations if agreement.step_count else ["no step of any engine was told"]


# ---- by way of a relay ---------------------------------------------------------------------------


async def by_relay(kind: str, links: Mapping[Pair, Quality], closed: Sequence[str], iterations: int, keep: Path | None) -> float:
    """Train over two hosts and a third one; tokens per second.

    Raises:
        LiveFailed: it does not train, peers contradict each other, or packets went another way than
            they should.
    """
    with Wan(links, closed) as wan:
        async with swarm_over(wan, (HUB, EAST, WEST), kept(keep, kind)) as swarm:
            await swarm.settle(SPLIT)
            before, refused_before = dict(wan.passed_bytes), sum(wan.refused_packets.values())
            begun_s = swarm.committed()[-1][0]
            await swarm.commits(iterations, ON_WITHIN_S)
            said, passed = tuple(swarm.said), {pair: n - before.get(pair, 0) for pair, n in wan.passed_bytes.items()}
            commits = Commits.of(said)
            rate = commits.rate(begun_s, commits.times_s[-1])
            told = {s.name: [e.text for _, e in swarm.told(Note, name=s.name) if BY_RELAY in e.text] for s in SPLIT}
    wrong = contradictions(said)
    straight = wan.passed_bytes[EAST, WEST] + wan.passed_bytes[WEST, EAST]
    if (EAST, WEST) not in links:
        wrong += [f"{straight} bytes went straight"] if straight else []
        crossed = min(passed.get(pair, 0) for pair in both_ways(Quality(), (EAST, HUB), (WEST, HUB)))
        wrong += [] if crossed > iterations * RUN.tokens_per_iteration else [f"only {crossed} bytes went by way of the relay"]
    aware = sum(bool(lines) for lines in told.values())
    # One that no relay has told in time announces itself first, and the relay behind
    wrong += ["nobody has found out that it can be called by way of the relay alone"] if closed and not aware else []
    if wrong:
        raise LiveFailed(f"{kind}: {'; '.join(wrong)}")
    per_iteration = {f"{one}->{other}": n // iterations for (one, other), n in sorted(passed.items())}
    refused = sum(wan.refused_packets.values()) - refused_before
    say(f"{kind}: {rate:.0f} tokens/s; bytes of an iteration: {per_iteration}; {refused} packets refused; all peers agree")
    say(f"{kind}: {aware} of {len(told)} peers announce the relay alone")
    return rate


async def relay(iterations: int, keep: Path | None) -> dict[str, float]:
    """All three networks."""
    to_hub = both_ways(Quality(), (HUB, EAST), (HUB, WEST))
    direct = await by_relay("direct", to_hub | both_ways(Quality(), (EAST, WEST)), (), iterations, keep)
    apart = await by_relay("apart", to_hub, (), iterations, keep)
    routers = await by_relay("routers", to_hub, (EAST, WEST), iterations, keep)
    rates = {"direct_tokens_s": direct, "apart_tokens_s": apart, "routers_tokens_s": routers}
    return {name: round(rate) for name, rate in rates.items()} | {
        "apart_over_direct": round(apart / direct, 3),
        "routers_over_direct": round(routers / direct, 3),
    }


# ---- a region is lost ----------------------------------------------------------------------------


async def lose(region: str, keep: Path | None) -> dict[str, float]:
    """Kill a region; what that costs.

    Raises:
        LiveFailed: the swarm does not come back, or not in time.
    """
    with Wan(REGIONS) as wan:
        async with swarm_over(wan, (EAST, WEST, SOUTH), kept(keep, region)) as swarm:
            await swarm.settle(SPREAD)
            before, coordinator = swarm.committed(), swarm.coordinator()
            gone = {site.name for site in SPREAD if site.host == region}
            whole = sorted({s.stage for s in SPREAD if s.host == region} - {s.stage for s in SPREAD if s.host != region})
            wan.cut(region)
            struck_s = time.time()
            for name in sorted(gone):
                swarm.kill(name)
            await swarm.until("a commit after a region was lost", lambda: resumed_s(swarm, struck_s) is not None, ON_WITHIN_S)
            await swarm.commits(2 * SETTLED, ON_WITHIN_S)
            said = tuple(swarm.said)
            found = costs_of(swarm, struck_s, whole, gone)
    pace_s = (before[-1][0] - before[-SETTLED][0]) / (SETTLED - 1)
    led = "with" if coordinator in gone else "without"
    say(f"{region}: lost {led} the coordinator; stages lost whole: {whole or 'none'}; an iteration took {pace_s:.2f} s: {found}")
    wrong = contradictions(said)
    late = found.get("back_s", 0.0) - found.get("transfer_s", 0.0)
    wrong += [f"stages were back after {late:.1f} s plus transfer"] if late > BACK_WITHIN_S else []
    wrong += [f"went on after {found['resumed_s']} s"] if not whole and found["resumed_s"] > BACK_WITHIN_S + 2 * pace_s else []
    if wrong:
        raise LiveFailed(f"{region}: {'; '.join(wrong)}")
    return {f"{region}_{name}": value for name, value in found.items()}


def resumed_s(swarm: LiveSwarm, since_s: float) -> float | None:
    """When the first iteration that was opened after `since_s` was committed."""
    opened = {event.iteration: time_s for time_s, event in reversed(list(swarm.told(Opened, since_s)))}
    commits = swarm.told(IterationCommitted, since_s)
    return next((time_s for time_s, e in commits if time_s > opened.get(e.iteration, time_s)), None)


def costs_of(swarm: Swarm, struck_s: float, whole: Sequence[int], gone: set[str]) -> dict[str, float]:
    """Seconds since a region was struck.

    Args:
        whole: the stages of which nobody is left.
        gone: who was killed.
    """
    lost = {swarm.names(e.peer_id): t for t, e in swarm.told(MemberLost, struck_s)}
    on_s = resumed_s(swarm, struck_s)
    assert on_s is not None, "waited for it"
    found = missed(lost, gone, struck_s) | {"resumed_s": on_s - struck_s}
    built = [(t, e) for t, e in swarm.told(StageBuilt, struck_s) if e.stage in whole]
    if whole:
        for _, e in swarm.told(RecoveryDecided, struck_s):
            say(f"stage {e.stage} by {e.action}: {e.reason}")
        first = [next(((t, e) for t, e in built if e.stage == stage), None) for stage in whole]
        there = [each for each in first if each is not None]
        if len(there) < len(whole):
            raise LiveFailed(f"of stages {whole} only {[e.stage for _, e in there]} were built")
        found |= {
            "back_s": max(t for t, _ in there) - struck_s,
            "transfer_s": max(e.seconds for _, e in there),
            "exact": float(all(e.exact for _, e in there)),
        }
    return {name: round(value, 2) for name, value in found.items()}


def missed(lost: Mapping[str, float], gone: Collection[str], struck_s: float) -> dict[str, float]:
    """How many of those who were killed a coordinator told to be missed, and the seconds until the
    last of them, where one was: a successor need not tell it of who was lost before.
    """
    times_s = [time_s for name, time_s in lost.items() if name in gone]
    return {"missed": float(len(times_s))} | ({"missed_s": max(times_s) - struck_s} if times_s else {})


async def region(_: int, keep: Path | None) -> dict[str, float]:
    """The one with a stage of its own, and the one that everything began in."""
    return await lose(SOUTH, keep) | await lose(EAST, keep)


# ---- two halves ----------------------------------------------------------------------------------


async def halves(_: int, keep: Path | None) -> dict[str, float]:
    """Part a swarm in halves, and let them meet again.

    Raises:
        LiveFailed: the rule does not hold.
    """
    with Wan(both_ways(Quality(0.025, WAN_BYTES_PER_S, WAN_LOSS), (EAST, WEST))) as wan:
        async with swarm_over(wan, (EAST, WEST), kept(keep, "halves")) as swarm:
            await swarm.settle(SPLIT)
            wan.cut(EAST)
            parted_s = time.time()
            await swarm.pass_time(PARTED_S)
            wan.cut()
            healed_s = time.time()
            say(f"the halves meet again; forced: {forced_by_half(swarm, parted_s, healed_s)}")
            await swarm.until("one side gives way", lambda: any(True for _ in swarm.told(LineageDropped, healed_s)), MET_WITHIN_S)
            met_s = time.time()

            def is_one() -> bool:
                opened = [(t, e) for t, e in swarm.told(Opened, met_s)]
                return bool(opened) and sum(map(len, opened[-1][1].members)) == len(SPLIT)

            await swarm.until("all are members of one swarm", is_one, MET_WITHIN_S)
            one_s = time.time()
            await swarm.commits(2 * SETTLED, ON_WITHIN_S)
            return halves_found(swarm, parted_s, healed_s, one_s)


def half_of(name: str) -> str:
    """The host that a peer runs at."""
    return next(site.host for site in SPLIT if site.name == name)


def commits_by_half(swarm: Swarm, since_s: float, until_s: float) -> Iterator[tuple[str, float, IterationCommitted]]:
    """(half, when, what) of each commit that was told between two moments."""
    for each in swarm.said:
        if isinstance(each.event, IterationCommitted) and since_s <= each.time_s < until_s:
            yield half_of(each.name), each.time_s, each.event


def forced_by_half(swarm: Swarm, since_s: float, until_s: float) -> dict[str, tuple[int, int]]:
    """Half -> commits, and how many of them stand on something forced."""
    told = list(commits_by_half(swarm, since_s, until_s))
    return {
        half: (sum(h == half for h, *_ in told), sum(h == half and e.forced > 0 for h, _, e in told)) for half in (EAST, WEST)
    }


def halves_found(swarm: Swarm, parted_s: float, healed_s: float, one_s: float) -> dict[str, float]:
    """What came of two halves.

    Raises:
        LiveFailed: a rule does not hold.
    """
    counts = forced_by_half(swarm, parted_s + 1, healed_s)
    keeping = [half for half, (commits, forced) in counts.items() if commits and not forced]
    if len(keeping) != 1:
        raise LiveFailed(f"one half was to go on unforced; commits, and forced of them: {counts}")
    other = next(half for half in counts if half not in keeping)
    apart = list(commits_by_half(swarm, parted_s, healed_s))
    sooner = [t - parted_s for half, t, e in apart if half == other and e.forced and t - parted_s < RUN.timing.split_wait_s]
    wrong = [f"{other} forced a record after {sooner[0]:.1f} s"] if sooner else []
    dropped = [half_of(s.name) for s in swarm.said if isinstance(s.event, LineageDropped) and s.time_s >= healed_s]
    wrong += [f"{dropped} gave way, and not {other} alone"] if dropped != [other] else []
    # What was decided unforced, by iteration: one record each, nothing opened again behind it
    decided: dict[int, str] = {}
    for _, _, e in commits_by_half(swarm, 0.0, float("inf")):
        if not e.forced and decided.setdefault(e.iteration, e.lineage) != e.lineage:
            wrong.append(f"iteration {e.iteration} has two records that nobody forced")
    after = [e for _, _, e in commits_by_half(swarm, one_s, float("inf"))]
    wrong += (
        [f"{sum(e.forced > 0 for e in after)} records at the end stand on a forced one"] if any(e.forced for e in after) else []
    )
    last = max(e.iteration for half, _, e in apart if half in keeping)
    wrong += ["an unforced iteration was done again"] if any(e.iteration <= last for e in after) else []
    if wrong:
        raise LiveFailed("; ".join(wrong))
    kept = [t for half, t, e in apart if half in keeping]
    gap_s = max(later - before for before, later in zip([parted_s, *kept], kept, strict=False))
    say(f"{keeping[0]} went on unforced, {other} forced {counts[other][1]} of its {counts[other][0]} and gave way; all are one")
    return {
        "kept_longest_gap_s": round(gap_s, 1),
        "forced": counts[other][1],
        "met_after_s": round(one_s - healed_s, 1),
    }


async def run(kinds: Sequence[str], iterations: int, keep: Path | None) -> dict[str, float]:
    """Play all of these kinds; what came of it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    figures: dict[str, float] = {}
    for kind in kinds:
        figures |= await {"relay": relay, "region": region, "halves": halves}[kind](iterations, keep)
    return figures


def main() -> int:
    """Run it; the exit code is 0, 1 when something did not hold, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reach", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=KINDS, action="append", help="one kind; may be repeated")
    parser.add_argument("--iterations", type=int, default=40, metavar="N", help="that are measured of relays (default: 40)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="what all peers told is written there, a file for each swarm")
    asked = parser.parse_args()
    if asked.iterations < 1:
        parser.error("--iterations: must be 1 or more")
    return finish("benchmarks.reach", run(asked.only or KINDS, asked.iterations, asked.keep))


if __name__ == "__main__":
    sys.exit(main())

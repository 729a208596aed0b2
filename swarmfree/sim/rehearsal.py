"""One rehearsal: a cast of peers, a schedule of faults, the checks, in virtual time, from a seed.

The peers run the trainer unchanged. It is over when the run has ended, an invariant does not hold,
or nothing goes on any more (I6). One peer's life is in `simulated_peer`, who comes and goes in
`population`, who falls in `fault_injector`, many seeds in `seed_pool`.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from swarmfree.protocol.errors import RefusalKind, Refused, SwarmfreeError
from swarmfree.protocol.events import Ended, Event, IterationCommitted, Placed, StageBuilt, StageLost
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.message_bounds import MessageBounds
from swarmfree.protocol.messages import Build, Commit, Goodbye, Hello, Meet, Open, Request, TakeRoll
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.sim import bounds, sizes
from swarmfree.sim.aimed_setup import draw_aimed_setup
from swarmfree.sim.batch_setup import draw_batch_setup
from swarmfree.sim.cut_setup import draw_cut_setup
from swarmfree.sim.directory import DirectoryHub
from swarmfree.sim.fault_injector import Mischief
from swarmfree.sim.faults import Fate
from swarmfree.sim.guest_setup import draw_guest_setup
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.history import History
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.integer_tokens import IntegerTokens
from swarmfree.sim.invariants import Checks, Violation
from swarmfree.sim.liar_setup import draw_liar_setup
from swarmfree.sim.liars import LiarWatch
from swarmfree.sim.liveness import Liveness
from swarmfree.sim.loop import StuckError, VirtualLoop
from swarmfree.sim.memory_call import Outcome
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.population import KILL_GRACE_S, Cast
from swarmfree.sim.reference import IntegerReference
from swarmfree.sim.schedule import draw_schedule
from swarmfree.sim.script import SCRIPT, Director, Moment, Script
from swarmfree.sim.setup import Drawn, Setup
from swarmfree.sim.simulated_peer import MakeEngine, MakeTokens, RunPeer, Stage, WrittenWeights
from swarmfree.sim.traffic import Scales, Traffic
from swarmfree.sim.transcript import Transcript
from swarmfree.trainer.coordinator.pause import PAUSED
from swarmfree.trainer.guest import run_with_guest as trainer_run_peer

T = TypeVar("T")

TICK_S = 1.0
TIME_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Factories:
    """What a rehearsal is made of; tests put subclasses with planted bugs here, the torch rehearsal
    its engine.

    Args:
        run_peer: a peer's whole life.
        make_engine: an engine for one peer.
        make_tokens: the corpus of one peer.
        exact: the engine is the integer one, so that sums are checked against the reference.
        scales: weigh messages for the statistics; None = they weigh nothing.
    """

    run_peer: RunPeer = trainer_run_peer
    make_engine: MakeEngine = IntegerEngine
    make_tokens: MakeTokens = IntegerTokens
    exact: bool = True
    scales: Scales | None = None


@dataclass(slots=True)
class RehearsalStatistics:
    """What happened, in numbers."""

    iterations: int = 0
    virtual_s: float = 0.0
    steps: int = 0
    checks: int = 0
    cuts_compared: int = 0
    handlers: int = 0
    payload_bytes: int = 0
    longest_gap_s: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    forbidden: Counter[str] = field(default_factory=Counter)
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, slots=True)
class RehearsalResult:
    """How a rehearsal went.

    Args:
        seed: of everything.
        violation: what did not hold, if anything.
        details: stacks or a traceback, where they help.
        digest: of everything that happened; equal for every run of this seed.
        transcript: lines for people.
        statistics: counts.
        iterations: that were asked for; None = drawn from the seed.
        drawn: which kind of setup, where none was given.
    """

    seed: int
    violation: Violation | None
    details: str
    digest: str
    transcript: tuple[str, ...]
    statistics: RehearsalStatistics
    iterations: int | None = None
    drawn: Drawn = Drawn.USUAL

    @property
    def command(self) -> str:
        """Replays this rehearsal."""
        return replay_command(self.seed, self.iterations, self.drawn)


DRAWS: Mapping[Drawn, Callable[..., Setup]] = {
    Drawn.USUAL: draw_setup,
    Drawn.LIARS: draw_liar_setup,
    Drawn.BATCHES: draw_batch_setup,
    Drawn.GUESTS: draw_guest_setup,
    Drawn.CUTS: draw_cut_setup,
    Drawn.AIMED: draw_aimed_setup,
}


def replay_command(seed: int, iterations: int | None, drawn: Drawn = Drawn.USUAL) -> str:
    """What plays a seed again."""
    asked = (f" --iterations {iterations}" if iterations else "") + (f" --{drawn}" if drawn is not Drawn.USUAL else "")
    return f"swarmfree rehearse --first-seed {seed} --seeds 1{asked}"


class _Rehearsal:
    """The stage manager: sees everything, and decides when it is over."""

    def __init__(
        self, seed: int, setup: Setup, factories: Factories, script: Script | None, loop: VirtualLoop, *, full: bool
    ) -> None:
        self.setup, self.loop, self.seed, self._script = setup, loop, seed, script
        self.transcript = Transcript(loop.time, full=full)
        self.statistics = RehearsalStatistics()
        self.details = ""
        self.raised: Exception | None = None
        manifest, faults = setup.manifest, setup.faults
        reference = IntegerReference(manifest, IntegerTokens(manifest, setup.sequence_count)) if factories.exact else None
        self.hub = MemoryHub(loop, manifest.fingerprint(), faults, self._stream("network"), self)
        self.checks = Checks(manifest, reference, loop.time, self._found, self)
        self.checks.liars = self.liars = LiarWatch(setup.liar, manifest.batch.most, self.checks.violated)
        self.hub.overrule, self.hub.scales = self._fate, factories.scales
        self.hub.bounds = MessageBounds.of(manifest)
        self.written: WrittenWeights = []
        self._stage = Stage(
            setup=setup,
            loop=loop,
            hub=self.hub,
            directory=DirectoryHub(faults, self._stream("directory"), names_first=setup.opening is None),
            checks=self.checks,
            written=self.written,
            run_peer=factories.run_peer,
            make_engine=factories.make_engine,
            make_tokens=factories.make_tokens,
            tell=self._told,
            liars=self.liars,
        )
        self._changed_s = self._committed_s = 0.0
        self._stage_changes = 0
        self._committed = set[str]()
        self._over: asyncio.Future[None] = loop.create_future()
        self._cast: Cast | None = None
        self._liveness: Liveness | None = None
        self._mischief: Mischief | None = None
        self._director: Director | None = None
        self._fates = set[str]()

    def _stream(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    async def run(self) -> None:
        """From the first peer to the last."""
        setup, manifest = self.setup, self.setup.manifest
        schedule = draw_schedule(setup.faults, manifest.run.iterations, manifest.stages.body, self._stream("faults"))
        async with asyncio.TaskGroup() as group:
            cast = Cast(self._stage, group, self.transcript, self._stream)
            self._cast, self._liveness = cast, Liveness(manifest, self.hub, cast, self.checks.violated)
            self._mischief = mischief = Mischief(setup, schedule, self.hub, cast, self.transcript, self.checks.goes_on)
            self._director = Director(self.hub, cast, mischief, self.transcript, self._of_script)
            cast.begin()
            watch = group.create_task(self._watch(cast), name="watch")
            await self._over
            watch.cancel()
            cast.close()
            if self.checks.violation is None and self.raised is None:
                await self._end(cast, mischief)
            cast.kill_all()
        self.details = self.details or cast.details
        self._count(cast)

    async def _watch(self, cast: Cast) -> None:
        """Look after the lives, and after progress (I6)."""
        while not self._over.done():
            await asyncio.sleep(TICK_S)
            if cast.bury() and not self._over.done():
                self._over.set_result(None)
            newest = self.checks.newest
            if self._liveness is not None and newest is not None and not self.checks.is_complete:
                self._liveness.look(newest)
            if self.loop.time() % bounds.SIZES_EVERY_S < TICK_S:
                self._look_at_sizes(cast)
            since_s = self.loop.time() - max(self._changed_s, cast.changed_s, self._committed_s)
            if since_s > self.setup.progress_bound_s * (1 if self.hub.calm else 2):
                self.details = self.loop.stacks()
                self.checks.violated("I6", f"no commit for {since_s:.0f} s; {len(cast.lives)} peers are there")

    def _look_at_sizes(self, cast: Cast) -> None:
        """No table of a living peer has grown beyond its bound; what was asked while a peer stood
        still it does first.
        """
        entries_max = bounds.entries_max(len(cast.lives), self.setup.manifest.batch.most)
        for member in sorted(cast.lives):
            if self.history.out_s(member, member, bounds.CAUGHT_UP_S):
                continue
            large = sizes.oversized(self.hub.handler_of(member), entries_max)
            if large:
                self.checks.violated("I7", f"{member}: {', '.join(large)}")

    async def _end(self, cast: Cast, mischief: Mischief) -> None:
        """The founder has ended with code 0: everyone that had a place follows, and nothing is
        left.
        """
        self._look_at_sizes(cast)
        mischief.thaw()
        while mischief.is_ending():
            await asyncio.sleep(0.1)
        for life in mischief.stragglers():
            self.details = self.loop.stacks(life.owner)
            self.checks.violated("I7", f"{life.member} still runs, {mischief.end_grace_s:g} s after the run ended")
        cast.kill_all()
        cast.bury()
        await asyncio.sleep(2 * KILL_GRACE_S)
        if self.hub.open_calls:
            self.checks.violated("I7", f"{len(self.hub.open_calls)} calls are open after everyone ended")
        if not cast.has_diverged:
            self.checks.finished(self.written)

    def _found(self, violation: Violation) -> None:
        self.transcript.tell("checks", str(violation))
        if not self._over.done():
            self._over.set_result(None)

    # ---- who lives -------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """The troubles of all lives."""
        return self.hub.history

    def is_alive(self, member: Member) -> bool:
        """Whether this life has not ended."""
        return self.hub.is_alive(member)

    def is_stuck(self, member: Member) -> bool:
        """Whether its device never comes back from what it does next."""
        life = self._cast.life_of(member) if self._cast is not None else None
        return life is not None and life.pace.stuck

    # ---- what is seen ----------------------------------------------------------------------------

    def asked(self, sender: Endpoint, receiver: Endpoint, request: Request, payload: bytes) -> None:
        """A request sets out; what a peer asks itself is for the checks alone."""
        if sender == receiver:
            self.checks.asked(sender, request, payload)
            return
        self.transcript.trace(f"{sender.member} -> {receiver.member}: {type(request).__name__} {len(payload)}")
        self.checks.asked(sender, request, payload)
        if self._mischief is not None:
            self._mischief.asked(request, sender.member, receiver.member)
        if isinstance(request, Open):
            self.liars.opened(request.plan)
        if isinstance(request, Open) and self._liveness is not None and self.checks.goes_on(request.plan):
            self._liveness.see(request.plan, sender.member)
        elif isinstance(request, TakeRoll) and self._liveness is not None:
            self._liveness.average(request.roll.base)
        elif isinstance(request, Meet) and self._liveness is not None:
            self._liveness.looks_beyond(sender.member)
        self._show(Moment(sender, receiver, request, None))

    def answered(self, sender: Endpoint, receiver: Endpoint, request: Request, outcome: Outcome) -> None:
        """A handler has ended."""
        if isinstance(outcome, Refused) and outcome.kind is RefusalKind.UNPROVEN:
            self._unproven(sender.member, receiver.member, request, outcome)
        if isinstance(request, Hello) and isinstance(outcome, Reply):
            self._placed(sender.member)
        if sender == receiver:
            self.checks.answered(receiver, request, outcome)
            return
        shown = type(outcome.message).__name__ if isinstance(outcome, Reply) else str(outcome)
        self.transcript.trace(f"{receiver.member} -> {sender.member}: {shown}")
        if isinstance(outcome, Refused) and outcome.kind is RefusalKind.FORBIDDEN:
            self._forbidden(sender.member, receiver.member, request, outcome)
        elif isinstance(request, Open) and isinstance(outcome, Reply) and self._mischief is not None:
            self._mischief.promised(receiver.member, request.plan)
        elif _drops_plan(request) and isinstance(outcome, Reply) and self._mischief is not None:
            self._mischief.dropped(receiver.member)
        self.checks.answered(receiver, request, outcome)
        if self._mischief is not None:
            self._mischief.answered(request, sender.member, receiver.member)
        self._show(Moment(sender, receiver, request, outcome))

    def _show(self, moment: Moment) -> None:
        """Let the script see a moment."""
        script, director = self._script, self._director
        if script is not None and director is not None:
            self._of_script(lambda: script.see(director, moment))

    def _of_script(self, ask: Callable[[], T]) -> T | None:
        """What the script answers; None once it has raised, for which the rehearsal ends."""
        if self.raised is None:
            try:
                return ask()
            except Exception as error:  # noqa: BLE001 - `rehearse` raises it
                self.raised = error
                if not self._over.done():
                    self._over.set_result(None)
        return None

    def _forbidden(self, sender: Member, receiver: Member, request: Request, refusal: Refused) -> None:
        """All peers here but a liar are honest; see `Mischief.may_not_forbid`.

        Who was out of the sender's reach until now does not know of it where it came meanwhile, or
        leads another side.
        """
        self.statistics.forbidden[type(request).__name__] += 1
        if self.liars.is_liar(sender.peer_id) or self.liars.is_liar(receiver.peer_id):
            return
        if (
            self.history.quiet_s(sender, receiver) >= bounds.REACHED_S
            and self._mischief is not None
            and (self.checks.committed or not self._mischief.is_replaced(self._stage.directory.geneses))
            and self._mischief.may_not_forbid(sender, receiver, request)
        ):
            self.checks.violated("N3", f"{sender} is honest, and {receiver} refuses it: {refusal.detail}")

    def _placed(self, member: Member) -> None:
        if self._mischief is not None and not self.checks.committed:
            self._mischief.placed(member, self._stage.directory.geneses)

    def _unproven(self, sender: Member, receiver: Member, request: Request, refusal: Refused) -> None:
        """What an honest peer says that was decided was decided."""
        self.transcript.tell("network", f"{receiver} refuses {type(request).__name__} from {sender}: {refusal}")
        is_parted = may_disbelieve(request, self.history.quiet_s(sender, receiver), self.setup.manifest.timing)
        if not (is_parted or self.liars.is_liar(sender.peer_id) or self.liars.is_liar(receiver.peer_id)):
            self.checks.violated("N3", f"{sender} is honest, and {receiver} does not believe it: {refusal.detail}")

    def _fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """What the script wants of this call; told the first time it wants the same."""
        script = self._script
        fate = self._of_script(lambda: script.fate(sender, receiver, request)) if script is not None else None
        if fate is not None:
            what = f"{type(request).__name__} from {sender.member} to {receiver.member}: {fate.summary()}"
            if what not in self._fates:
                self._fates.add(what)
                self.transcript.tell(SCRIPT, what)
        return fate

    def befell(self, what: str) -> None:
        """The network did something to a call."""
        self.transcript.tell("network", what)

    def _told(self, member: Member, event: Event) -> None:
        self.transcript.tell_event(str(member), event)
        self.statistics.events[type(event).__name__] += 1
        self.checks.told(member, event)
        self.liars.told(event)
        if isinstance(event, Placed):
            self._placed(member)
        if isinstance(event, Ended) and event.why.startswith(PAUSED):
            self.checks.paused(member)
        if self._liveness is not None:
            self._liveness.told(member, event)
        now_s = self.loop.time()
        # Else a successor tells it again
        if isinstance(event, IterationCommitted) and event.lineage not in self._committed:
            self._committed.add(event.lineage)
            if self._committed_s:
                self.statistics.longest_gap_s = max(self.statistics.longest_gap_s, now_s - self._committed_s)
            self._committed_s, self._stage_changes = now_s, 0
            coordinators = self._mischief.coordinators if self._mischief is not None else ()
            self.hub.statistics.traffic.mark(event.iteration, now_s, tuple(coordinators))
        elif isinstance(event, (StageLost, StageBuilt)) and self._stage_changes < bounds.STAGE_CHANGES_MAX:
            self._changed_s, self._stage_changes = now_s, self._stage_changes + 1

    def _count(self, cast: Cast) -> None:
        counted, network = self.statistics, self.hub.statistics
        counted.iterations = len(self.checks.committed)
        counted.virtual_s, counted.steps = self.loop.time(), self.loop.step_count
        counted.checks, counted.handlers = self.checks.made_count, network.handlers_run
        counted.cuts_compared = self.checks.cut_count
        counted.traffic = network.traffic
        counted.payload_bytes = network.payload_sent_bytes
        counted.calls.update(network.calls)
        counted.faults.update(cast.faults + network.faults)


def rehearse(
    seed: int,
    *,
    setup: Setup | None = None,
    iterations: int | None = None,
    factories: Factories | None = None,
    script: Script | None = None,
    full_transcript: bool = False,
    drawn: Drawn = Drawn.USUAL,
) -> RehearsalResult:
    """Play one rehearsal.

    Args:
        seed: of everything.
        setup: what is played; None = drawn from the seed.
        iterations: of a drawn setup; None = drawn as well.
        factories: what it is made of; None = the trainer with the integer engine.
        script: what happens at chosen moments, besides the faults of the setup.
        full_transcript: keep a line for every call and every answer.
        drawn: what kind of setup is drawn.

    Raises:
        SwarmfreeError: it is called where an event loop runs, as in a notebook; it has one of its
            own.
        Exception: whatever the script raises, as it is.
    """
    _require_no_loop()
    setup, factories = setup or DRAWS[drawn](seed, iterations=iterations), factories or Factories()
    loop = VirtualLoop(time_limit_s=TIME_LIMIT_S)
    rehearsal = _Rehearsal(seed, setup, factories, script, loop, full=full_transcript)

    def complain(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        rehearsal.checks.violated("I7", f"the loop complains: {context.get('message')}: {context.get('exception')!r}")

    loop.set_exception_handler(complain)
    with _collector_resting():
        try:
            loop.run_until_complete(loop.create_task(rehearsal.run(), name="rehearsal"))
        except StuckError as error:
            rehearsal.details = str(error)
            rehearsal.checks.violated("I6", str(error).splitlines()[0])
        finally:
            loop.abandon()
            loop.close()
    if rehearsal.raised is not None:
        raise rehearsal.raised
    return RehearsalResult(
        seed=seed,
        violation=rehearsal.checks.violation,
        details=rehearsal.details,
        digest=rehearsal.transcript.digest(),
        transcript=rehearsal.transcript.lines,
        statistics=rehearsal.statistics,
        iterations=iterations,
        drawn=drawn,
    )


def _require_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SwarmfreeError("rehearse has an event loop of its own, and one runs here: await asyncio.to_thread(rehearse, seed)")


def _drops_plan(request: Request) -> bool:
    """Whether whoever does as a request says has no plan any more: it joins another swarm, or has
    built its state anew.
    """
    return isinstance(request, Build) or (isinstance(request, Goodbye) and request.rejoin)


def _is_forced(request: Request) -> bool:
    """Whether a request tells of a record that fewer than a majority have decided."""
    record = request.record if isinstance(request, Commit) else request.plan.last_record if isinstance(request, Open) else None
    return record is not None and record.iteration in record.forced


def may_disbelieve(request: Request, quiet_s: float, timing: TimingSection) -> bool:
    """Whether an honest peer may refuse what another one says was decided: a forced record, where
    it has just woken, or was parted from the sender `quiet_s` ago, and still hears another
    coordinator, until the two have met.
    """
    return _is_forced(request) and quiet_s < max(bounds.REACHED_S, bounds.Bounds.of(timing, is_lossy=False).meeting_s)


@contextmanager
def _collector_resting() -> Iterator[None]:
    """Collect garbage before and after, not in between, so that no finaliser runs at a moment that
    memory chose.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""Who plays: the lives of a rehearsal, how they start, what their ends mean, and who takes their
place.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from swarmfree.policy.halt import is_unspent_halt
from swarmfree.policy.placement import wanted
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.names import ENDS_STAGE, Endpoint, Member
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.plan import Plan
from swarmfree.sim.bootstrap import Bootstrap
from swarmfree.sim.partitions import Break, machine_of
from swarmfree.sim.peer_ports import WALL_START_S, WORK_SPREAD_MAX, DeviceError
from swarmfree.sim.simulated_peer import Life, Stage
from swarmfree.sim.startup_faults import Blackout, Fall, Opening
from swarmfree.sim.transcript import Transcript

KILL_GRACE_S = 3.0
FIRST_PORT = 4001
STRANGER_S_MAX = 0.5
BACK_S = 2.0
"""After a pause that a script has ordered, each peer comes back within this."""
OFF_LOOK_S = 1.0
"""It is looked this often whether the script has somebody come back who is switched off."""
FULL_S = 20.0
"""Disks that refuse as a run pauses do so for this long."""


class Cast:
    """All lives, past ones not included.

    Args:
        stage: what lives share.
        group: where they run.
        transcript: who starts and ends.
        stream: makes a named random stream.

    Attributes:
        lives: living ones, and those that ended since `bury` was last called.
        killed: everybody who ever was.
        full: whose weights cannot be written.
        broken: whose device never comes back, or raises at the next piece of work.
        hindered_s: peer id -> until when it last stood still or was cut off; infinite while that
            lasts.
        faults: kinds of falls, counted.
        coordinator: who sent the newest plan; None before the first.
        details: traceback or stacks of what went wrong.
        has_diverged: somebody ended because training diverges: nothing is written then.
    """

    def __init__(
        self, stage: Stage, group: asyncio.TaskGroup, transcript: Transcript, stream: Callable[[str], random.Random]
    ) -> None:
        """Nobody is there."""
        self._stage, self._group, self._transcript, self._stream = stage, group, transcript, stream
        self._rng = stream("cast")
        self.bootstrap = Bootstrap(stage, group, transcript)
        self._peer_count, self._life_count, self._port = 0, 0, FIRST_PORT
        self._strangers = stream("strangers")
        self._is_open = True
        self.lives: dict[Member, Life] = {}
        self._changed_s = 0.0
        self._splits: dict[Break, None] = {}
        self._newest: dict[str, Member] = {}
        self.killed: set[Member] = set()  # only asked for membership, as the next one
        self.full: set[Member] = set()
        self.broken: set[Member] = set()
        self.hindered_s: dict[str, float] = {}
        self.off_until_s: dict[str, float] = {}  # a script's: who does not come back before
        self.faults: Counter[str] = Counter()
        self.coordinator: Member | None = None
        self.details = ""
        self.has_diverged = False

    @property
    def changed_s(self) -> float:
        """Virtual time of the last start, kill, stall or resumption of a peer.

        While the network is split this is always now: neither side may have as many peers as there
        are stages, so that nobody can go on.
        """
        return self._stage.loop.time() if self._splits else self._changed_s

    # -- coming
    def begin(self) -> None:
        """The first feeder at once, the others within the drawn time."""
        setup = self._stage.setup
        roles = [(True, False)] * (setup.feeders - 1) + [(False, False)] * setup.bodies + [(False, True)] * setup.standbys
        roles += [(True, True)] * setup.feeding_standbys
        self._start(self._new_peer_id(), can_feed=True, standby=False)
        if setup.opening is not None:
            self.bootstrap.start()
            self._open(setup.opening)
        for can_feed, standby in roles:
            self._later(self._rng.uniform(0, setup.start_spread_s), self._new_peer_id(), can_feed=can_feed, standby=standby)

    def join(self, *, standby: bool) -> None:
        """Start a new peer, which asks for a place or, with `standby`, waits for a loss."""
        self.disturbed("join")
        self._start(self._new_peer_id(), can_feed=False, standby=standby)

    def life_of(self, member: Member) -> Life | None:
        """The life that this member is, or in which it lives as a guest; None where that has
        ended.
        """
        return self.lives.get(member) or next((life for life in self.lives.values() if life.has_guest(member)), None)

    def close(self) -> None:
        """Nobody starts any more."""
        self._is_open = False

    def _new_peer_id(self) -> str:
        self._peer_count += 1
        return f"QmPeer{self._peer_count:02d}"

    def _later(self, delay_s: float, peer_id: str, *, can_feed: bool, standby: bool, address: str = "") -> None:
        def start() -> None:
            off_s = self.off_until_s.get(peer_id, 0.0) - self._stage.loop.time()
            if off_s > 0 and self._is_open:
                self._stage.hub.later(min(off_s, OFF_LOOK_S), start)  # the script may choose another moment
            else:
                self._start(peer_id, can_feed=can_feed, standby=standby, address=address)

        self._stage.hub.later(delay_s, start)

    def _start(self, peer_id: str, *, can_feed: bool, standby: bool, address: str = "") -> None:
        if not self._is_open:
            return
        drawn = self._rng.getrandbits(64)
        self._life_count += 1
        incarnation = f"{self._life_count:08x}{drawn % (1 << 32):08x}"
        if not address:
            address = f"/ip4/127.0.0.1/tcp/{self._port}/p2p/{peer_id}"
            self._port += 1
        endpoint = Endpoint(Member(peer_id, incarnation), (address,))
        life = Life(self._stage, endpoint, self._stream(f"peer/{drawn:016x}"), can_feed=can_feed, standby=standby)
        self.lives[life.member] = life
        self._newest[peer_id] = life.member
        if can_feed:
            self._stage.hub.spared.add(peer_id)  # stage 0 and the first coordinator are among these
        self._changed_s = self._stage.loop.time()
        role = "feeder" if can_feed else "standby" if standby else "body"
        self._transcript.tell(str(life.member), f"starts as {role} at {address}")
        life.begin(self._group)

    # -- falling
    def _open(self, opening: Opening) -> None:
        """What befalls the first feeder and the bootstrap node, each at its time."""
        later = self._stage.hub.later
        if opening.fall is not None:
            later(opening.fall_s, self._fall_first, opening)
        if opening.bootstrap_down_s < math.inf:
            later(opening.bootstrap_down_s, self.bootstrap.kill)
        if opening.bootstrap_up_s < math.inf:
            later(opening.bootstrap_up_s, self._raise_bootstrap)

    def _raise_bootstrap(self) -> None:
        setup = self._stage.setup
        is_needed = self._stage.checks.newest is None or setup.blackout is not None or setup.pause is not None
        if self._is_open and is_needed:
            self._changed_s = self._stage.loop.time()
            self.bootstrap.start()

    def _fall_first(self, opening: Opening) -> None:
        """The first feeder falls before anything is committed; for good where others can feed."""
        life = next(iter(self.lives.values()), None)
        if life is None or not life.is_alive or self._stage.checks.newest is not None:
            return
        if opening.fall is Fall.FROZEN:
            self.freeze(life, opening.fall_for_s)
        elif opening.fall is Fall.UNREACHABLE:
            self.shut(life, opening.fall_for_s)
        else:
            self.kill(life, "first falls", "it came first", is_final=opening.fall is Fall.GONE and self.leaves_enough([life]))

    def shut(self, life: Life, duration_s: float) -> None:
        """Nobody listens where a peer says it does, for so long."""
        self._transcript.tell(str(life.member), f"cannot be called for {duration_s:.3f} s")
        self.disturbed("unreachable")
        self.hindered_s[life.member.peer_id] = math.inf
        self._stage.hub.close_port(life.member)

        def open_again() -> None:
            self._changed_s = self.hindered_s[life.member.peer_id] = self._stage.loop.time()
            self._stage.hub.open_port(life.member)

        self._stage.hub.later(duration_s, open_again)

    def disturbed(self, kind: str) -> None:
        """Count a fault."""
        self.faults[kind] += 1
        self._changed_s = self._stage.loop.time()

    def kill(self, life: Life, kind: str, why: str, *, is_final: bool = False) -> None:
        """A peer dies; somebody will come for it, unless that is final."""
        self._transcript.tell(str(life.member), f"killed: {why}")
        self.disturbed(kind)
        self.killed.add(life.member)
        self.hindered_s.pop(life.member.peer_id, None)
        life.kill()
        if not is_final:
            self._replace(life)
        if self._stage.setup.faults.stranger_share and self._strangers.random() < self._stage.setup.faults.stranger_share:
            self._stage.hub.later(self._strangers.uniform(0, STRANGER_S_MAX), self._settle_stranger, life.endpoint.addresses[0])

    def _settle_stranger(self, address: str) -> None:
        if self._stage.hub.settle_stranger(address):
            self._transcript.tell("network", f"a peer of another run listens at {address}")
            self.disturbed("stranger")

    def black_out(self, blackout: Blackout) -> None:
        """All die at once, and come back as who they were; some find their disks empty, but not
        all.
        """
        if not self._is_open:
            return
        self.disturbed("blackout")
        self.coordinator = None
        kept = machine_of(next((peer for peer, disk in self._stage.disks.items() if disk), ""))
        for life in [life for life in self.lives.values() if life.is_alive]:
            self._transcript.tell(str(life.member), "killed: everybody dies")
            self.killed.add(life.member)
            self.hindered_s.pop(life.member.peer_id, None)
            life.kill()
            if self._rng.random() >= blackout.disk_share and life.member.peer_id != kept:
                self.lose_disk(life.member.peer_id)
            self._later(
                self._rng.uniform(0.1, blackout.back_s), life.member.peer_id, can_feed=life.can_feed, standby=life.standby
            )
        if blackout.with_bootstrap:
            self.bootstrap.kill()
        if not self.bootstrap.is_up:  # it may have fallen before the run began
            self._stage.hub.later(self._rng.uniform(0.1, blackout.back_s), self._restart_bootstrap)

    def give_order(self, halt: Halting, ahead_s: int = 0) -> None:
        """The organiser has the run stop, for a while or for good, by a clock that is so much
        ahead.
        """
        if not self._is_open or self._stage.checks.is_complete:
            return
        self.disturbed(halt)
        pause = self._stage.setup.pause
        self._publish(Order(ahead_s, halt), f"orders {halt}")
        for life in self.lives.values():
            if pause is not None and self._rng.random() < pause.full_share:
                self.fill_disk(life, FULL_S)
        if not self.bootstrap.is_up:
            self._restart_bootstrap()

    def set_batch(self, microbatches: int) -> None:
        """The organiser sets how many microbatches each iteration has from the next one on; refused
        where an order to pause stands.
        """
        directory = self._stage.directory
        spent = directory.geneses[-1].spent if directory.geneses else 0
        stands = directory.order is not None and is_unspent_halt(directory.order[0], spent)
        if self._is_open and not self._stage.checks.is_complete and not stands:
            self._publish(Order(0, Halting.NOT, microbatches, spent), f"sets {microbatches} microbatches")

    def _publish(self, order: Order, what: str) -> None:
        wall_s, before = WALL_START_S + self._stage.loop.time(), self._stage.directory.order
        number = max(int(wall_s) + order.number, before[0].number + 1 if before is not None else 0)
        self._transcript.tell("organiser", f"{what}: number {number}")
        self._stage.directory.order = replace(order, number=number), wall_s

    def forget_orders(self) -> None:
        """The directory went with those who kept it, and who comes back reads none."""
        self._transcript.tell("organiser", "no order stands in the directory any more")
        self._stage.directory.order = None

    def fill_disk(self, life: Life, duration_s: float) -> None:
        """The disk of a peer takes nothing for so long."""
        self._transcript.tell(str(life.member), f"its disk is full for {duration_s:.3f} s")
        life.pace.shelf_refuses = True

        def free() -> None:
            life.pace.shelf_refuses = False

        self._stage.hub.later(duration_s, free)

    def _return(self, life: Life) -> None:
        """One that has paused is started again, some time later."""
        self.coordinator = None
        pause = self._stage.setup.pause
        back_s = self._rng.uniform(0.1, pause.back_s if pause is not None else BACK_S)
        self._later(back_s, life.member.peer_id, can_feed=life.can_feed, standby=life.standby)
        self._changed_s = self._stage.loop.time()

    def _restart_bootstrap(self) -> None:
        if self._is_open:
            self.bootstrap.start()

    def disk(self, peer_id: str) -> tuple[HeldSnapshot, ...]:
        """What lies on this one's disk, newest first."""
        return tuple(sorted(self._stage.disks.get(peer_id, ()), key=lambda held: -held.iteration))

    def lose_disk(self, peer_id: str) -> None:
        """The next life of this peer finds nothing."""
        self._stage.disks.pop(peer_id, None)
        for guest in [other for other in self._stage.disks if machine_of(other) == peer_id]:
            del self._stage.disks[guest]

    def freeze(self, life: Life, duration_s: float) -> None:
        """A peer stands still for so long."""
        self._transcript.tell(str(life.member), f"stands still for {duration_s:.3f} s")
        self.disturbed("freeze")
        self.hindered_s[life.member.peer_id] = math.inf
        self._stage.hub.freeze(life.member)
        self._stage.hub.later(duration_s, self.thaw, life)

    def thaw(self, life: Life) -> None:
        """It goes on, if it lives and stands still."""
        if self._stage.hub.is_frozen(life.member):
            self._transcript.tell(str(life.member), "goes on")
            self._changed_s = self.hindered_s[life.member.peer_id] = self._stage.loop.time()
            self._stage.hub.thaw(life.member)
            self._hinder_on()

    def leave(self, life: Life) -> None:
        """A peer is asked to leave; somebody will come for it when it has left."""
        self._transcript.tell(str(life.member), "is asked to leave")
        self.disturbed("leave")
        life.leave()

    def fail(self, life: Life) -> None:
        """The next piece of work of a peer's device raises."""
        self._transcript.tell(str(life.member), "its device raises an exception")
        self.disturbed("device error")
        self.broken.add(life.member)
        life.pace.raises = True

    def fill(self, life: Life, refuses: Callable[[int], bool]) -> None:
        """A peer's weights cannot be written where `refuses` says so."""
        self._transcript.tell(str(life.member), "its disk is full")
        self.disturbed("full disk")
        self.full.add(life.member)
        life.pace.refuses_weights = refuses

    def shelve(self, life: Life, wait_s: float, duration_s: float) -> None:
        """A peer's shelf is slow, or refuses, for a while."""
        what = f"takes {wait_s:.3f} s longer" if wait_s else "refuses"
        self._transcript.tell(str(life.member), f"its shelf {what} for {duration_s:.3f} s")
        self.disturbed("slow shelf" if wait_s else "shelf refuses")
        life.pace.shelf_wait_s, life.pace.shelf_refuses = wait_s, not wait_s

        def recover() -> None:
            life.pace.shelf_wait_s, life.pace.shelf_refuses = 0.0, False

        self._stage.hub.later(duration_s, recover)

    def hide(self, wait_s: float, duration_s: float) -> None:
        """The directory is slow, or shows nothing, for a while."""
        directory = self._stage.directory
        what = f"takes {wait_s:.3f} s longer" if wait_s else "shows nothing"
        self._transcript.tell("network", f"the directory {what} for {duration_s:.3f} s")
        self.disturbed("slow directory" if wait_s else "empty directory")
        directory.wait_s, directory.shows_nothing = wait_s, not wait_s

        def recover() -> None:
            self._changed_s = self._stage.loop.time()
            directory.wait_s, directory.shows_nothing = 0.0, False

        self._stage.hub.later(duration_s, recover)

    def lag(self, sender: Life, receiver: Life, factor: float, duration_s: float) -> None:
        """What one peer says takes longer to the other for a while."""
        ends = sender.member.peer_id, receiver.member.peer_id
        self._transcript.tell("network", f"{factor:.3g} times slower from {ends[0]} to {ends[1]} for {duration_s:.3f} s")
        self.disturbed("slow link")
        self._stage.hub.links.slow(*ends, factor)
        self._stage.hub.later(duration_s, self._stage.hub.links.mend, *ends)

    def stick(self, life: Life) -> None:
        """A peer's device hangs for good; somebody will come for it when it has noticed, and
        ended.
        """
        self._transcript.tell(str(life.member), "its device is stuck")
        self.disturbed("stuck device")
        self.broken.add(life.member)
        life.pace.stuck = True

    def slow(self, life: Life, factor: float, duration_s: float, *, disk: bool) -> None:
        """A peer's device, or its disk, takes `factor` times as long for so many seconds; the
        newest word counts.
        """
        what = "disk" if disk else "device"
        self._transcript.tell(str(life.member), f"{what} {factor:.3g} times slower for {duration_s:.3f} s")
        self.disturbed(f"slow {what}")
        self._set_pace(life, factor, disk=disk)

        def recover() -> None:
            if (life.pace.disk if disk else life.pace.compute) == factor and life.is_alive:
                self._transcript.tell(str(life.member), f"{what} as fast as before")
                self._set_pace(life, 1.0, disk=disk)

        self._stage.hub.later(duration_s, recover)

    def _set_pace(self, life: Life, factor: float, *, disk: bool) -> None:
        if disk:
            life.pace.disk = factor
        else:
            life.pace.compute = factor

    def begin_break(self, new: Break, kind: str, duration_s: float | None) -> None:
        """Break the network, for `duration_s` seconds or, if that is None, until `end_break`."""
        self.disturbed(kind)
        if kind == "split":
            self._splits[new] = None
        self._hinder(new, math.inf)
        self._stage.hub.begin_break(new)
        if duration_s is not None:
            self._stage.hub.later(duration_s, self.end_break, new)

    def end_break(self, ended: Break) -> None:
        """The network is mended there; nothing happens where it was already."""
        if ended in self._stage.hub.breaks.lasting:
            self._changed_s = self._stage.loop.time()
            self._splits.pop(ended, None)
            self._stage.hub.end_break(ended)
            self._hinder(ended, self._changed_s)
            self._hinder_on()

    def _hinder(self, held: Break, until_s: float) -> None:
        """Keep who is cut off by it from somebody."""
        peers = dict.fromkeys(member.peer_id for member in self.lives)
        for peer in peers:
            if any(held.parts(peer, other) for other in peers):
                self.hindered_s[peer] = until_s

    def _hinder_on(self) -> None:
        """What has not ended yet keeps them on, whatever has just ended."""
        for lasting in self._stage.hub.breaks.lasting:
            self._hinder(lasting, math.inf)
        self.hindered_s |= {member.peer_id: math.inf for member in self.lives if self._stage.hub.is_frozen(member)}

    def leaves_enough(self, falling: list[Life]) -> bool:
        """Whether the swarm can go on without the `falling` peers.

        Enough sound peers for every stage must be left, one of which can feed data; where another
        founder may begin the run, as many as it begins with. If every dead peer is replaced, the
        answer is always yes. Once all iterations are done nobody is waited for longer than
        `join_wait_s`, so that who stands still or is cut off in the last one may be back too late.
        """
        setup = self._stage.setup
        if setup.faults.replaced_share == 1:
            return True
        left = [life for life in self.lives.values() if life.is_alive and life not in falling]
        sound = [life for life in left if not (life.leaving or life.pace.stuck or life.pace.raises)]
        sound = [life for life in sound if not self.looks_stuck(max(life.pace.compute, life.pace.begun))]
        if self._is_last:
            sound = [life for life in sound if self.hindered_s.get(life.member.peer_id) != math.inf]
        feeders = sum(life.can_feed for life in sound)
        if self._stage.checks.newest is None:
            if setup.room_share:
                return False  # nobody adopts before the run begins, and feeders that are left may be sources
            if setup.faults.strikes_ends or setup.opening is not None:
                return len(sound) >= setup.manifest.peers_min and feeders >= wanted(ENDS_STAGE, setup.manifest)
        # A peer with room serves a stage more; who can feed, and has none, may be needed elsewhere
        places = sum(1 + life.has_room for life in sound)
        feeds = any(life.can_feed and (life.has_room or not setup.room_share) for life in sound)
        return places >= setup.manifest.stage_count and feeds

    def may_part(self, group: Collection[str]) -> bool:
        """Whether peers with these ids may be cut off from all others: in the last iterations only
        where one of the two sides has enough.
        """
        sides: tuple[list[Life], list[Life]] = [], []
        for life in self.lives.values():
            sides[life.member.peer_id in group].append(life)
        return not self._is_last or any(self.leaves_enough(side) for side in sides)

    @property
    def _is_last(self) -> bool:
        """Whether whoever is out of reach now may be so when all iterations are done."""
        newest = self._stage.checks.newest
        return newest is not None and newest.iteration + 2 >= self._stage.setup.manifest.run.iterations

    def looks_stuck(self, factor: float) -> bool:
        """Whether a device that takes so many times as long may count as stuck, so that its peer
        ends.
        """
        setup = self._stage.setup
        return factor * WORK_SPREAD_MAX * setup.work_max_s > setup.manifest.timing.stuck_s

    def _replace(self, life: Life) -> None:
        """Somebody comes for it after a while: itself again, or a newcomer; at times nobody, unless
        it fell by no fault and leaves too few.
        """
        faults, rng = self._stage.setup.faults, self._rng
        if faults.replaced_share < 1 and rng.random() >= faults.replaced_share and self.leaves_enough([life]):
            self._transcript.tell(str(life.member), "nobody comes for it")
            self.faults["nobody comes"] += 1
            return
        delay_s = rng.uniform(faults.replace_min_s, faults.replace_max_s)
        again = life.can_feed or rng.random() < faults.respawn_rate
        again = again and not self._stage.liars.is_liar(life.member.peer_id)
        same_port = rng.random() < faults.same_port_rate
        peer_id = life.member.peer_id if again else self._new_peer_id()
        address = life.endpoint.addresses[0] if again and same_port else ""
        self._later(delay_s, peer_id, can_feed=life.can_feed, standby=life.standby, address=address)

    # -- ending
    def waits_in_vain(self, plan: Plan) -> bool:
        """Whether the side of this plan has lost a stage, and the run is over without that side, so
        that nobody comes.
        """
        living = {life.member for life in self.lives.values() if life.is_alive}
        has_lost = any(living.isdisjoint(replica.endpoint.member for replica in replicas) for replicas in plan.replicas)
        return has_lost and not self._is_open and not self._stage.checks.has_won(plan)

    def is_written(self, stage: int) -> bool:
        """Whether anybody has written this stage's weights."""
        return any(written == stage for written, _ in self._stage.written)

    def bury(self) -> bool:
        """Take note of every life that has ended; True when one ended with code 0 after the last
        iteration, so that the run is over.
        """
        over = False
        for life in tuple(self.lives.values()):
            if not life.is_alive:
                del self.lives[life.member]
                self._stage.hub.later(KILL_GRACE_S, self.look_for_leaks, life)
                over = self._note_end(life) or over
        return over

    def _note_end(self, life: Life) -> bool:
        checks = self._stage.checks
        if DeviceError.__name__ in life.crash:  # whoever has a faulty device may fall by it
            self.faults["quit by device error"] += 1
            self._replace(life)
        elif life.crash:
            self.details = life.crash
            told = [line.strip(" |") for line in life.crash.splitlines() if any(letter.isalpha() for letter in line)]
            checks.violated("I7", f"{life.member} crashed: {told[-1]}")
        if life.crash or life.killed:
            return False
        self._transcript.tell(str(life.member), f"ended with code {life.code} {life.why}".rstrip())
        if life.paused:
            self._return(life)
            return False
        if life.leaving and life.code == 0:
            self._replace(life)
            return False
        if life.why.startswith("training diverged") and not checks.is_exact:  # integers cannot
            self.has_diverged = True
            return True
        if (
            life.code != 0
            and not life.pace.stuck
            # So slow that it looks so; one that wakes may count a tick before it takes the result
            and not (max(life.pace.begun, life.pace.before) > 1 and "device is stuck" in life.why)
            and life.member not in self.full
            and "are not written" not in life.why  # its disk has no room
            # The organiser says so, and `called_over` has looked at the weights
            and not (self._stage.directory.is_over and life.why.startswith("the run is over"))
            and self._newest[life.member.peer_id] == life.member
            and not self._stage.liars.is_liar(life.member.peer_id)  # it was excluded
        ):
            checks.violated("I7", f"{life.member} ended itself, though nothing was wrong with it: {life.why}")
        if life.code != 0 and self._is_open:
            self.faults["quit"] += 1
            self._replace(life)
        return life.code == 0 and checks.is_complete

    def look_for_leaks(self, life: Life) -> None:
        """Nothing of an ended life may be left."""
        if self._stage.loop.tasks_of(life.owner):
            self.details = self._stage.loop.stacks(life.owner)
            self._stage.checks.violated("I7", f"{KILL_GRACE_S:g} s after its end {life.member} still has tasks")

    def kill_all(self) -> None:
        """The rehearsal is over."""
        self.close()
        self.bootstrap.kill()
        for life in self.lives.values():
            if life.is_alive:
                life.kill()

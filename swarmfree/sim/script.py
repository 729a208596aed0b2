"""Scenarios: a script sees every message of a rehearsal and lets things happen at exactly that
moment, where rates and schedules hit by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from swarmfree.protocol.messages import HeldSnapshot, Request
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.order import Halting
from swarmfree.sim import partitions
from swarmfree.sim.fault_injector import Mischief
from swarmfree.sim.faults import Fate
from swarmfree.sim.memory_call import Outcome
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.partitions import Break
from swarmfree.sim.population import Cast
from swarmfree.sim.simulated_peer import Life
from swarmfree.sim.transcript import Transcript

SCRIPT = "script"
"""Who gives the commands in a transcript."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A request that sets out, or an outcome of its handler.

    Args:
        sender, receiver: of the request.
        request: what was asked.
        outcome: what the handler came to; None as the request sets out.
    """

    sender: Endpoint
    receiver: Endpoint
    request: Request
    outcome: Outcome | None


class Director:
    """What a script can do.

    Args:
        hub: the network.
        cast: the peers.
        mischief: knows the newest plan.
        transcript: gets a line for each command.
        ask: calls what the script does later, unless it has raised before; what it raises ends the
            rehearsal.
    """

    def __init__(
        self,
        hub: MemoryHub,
        cast: Cast,
        mischief: Mischief,
        transcript: Transcript,
        ask: Callable[[Callable[[], None]], None],
    ) -> None:
        """Nothing has been done."""
        self.hub, self._cast, self._mischief, self._transcript, self._ask = hub, cast, mischief, transcript, ask

    def tell(self, what: str) -> None:
        """Write into the transcript what the script does or why, before what follows from it."""
        self._transcript.tell(SCRIPT, what)

    # -- who is there
    @property
    def coordinator(self) -> Member | None:
        """Who sent the newest plan; None before the first, or where it is dead."""
        coordinator = self._cast.coordinator
        return coordinator if coordinator is not None and self._life(coordinator) is not None else None

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.hub.loop.time()

    def members(self, stage: int) -> tuple[Member, ...]:
        """Living members of a stage by the newest plan, sorted."""
        plan = self._mischief.plan
        named = {replica.endpoint.member for replica in plan.replicas[stage]} if plan is not None else set()
        return tuple(sorted(member for member, life in self._cast.lives.items() if member in named and life.is_alive))

    def peers(self) -> tuple[Member, ...]:
        """Everybody that lives, with a place or without, sorted."""
        return tuple(sorted(member for member, life in self._cast.lives.items() if life.is_alive))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        """Do something later, whoever is dead by then."""
        self.hub.later(delay_s, lambda: self._ask(what))

    # -- peers
    def kill(self, *members: Member) -> None:
        """These die now; somebody comes for each as the plan of faults says."""
        self.tell(f"kill {', '.join(map(str, members))}")
        for member in members:
            life = self._life(member)
            if life is not None:
                self._cast.kill(life, "kill", "by the script")

    def switch_on(self, at_s: Mapping[str, float]) -> None:
        """These peers come back, once they have ended, at these moments of virtual time, or later
        where the plan of faults says so.
        """
        self.tell(f"comes back: {', '.join(f'{peer} at {moment:.1f}' for peer, moment in at_s.items())}")
        self._cast.off_until_s |= at_s

    def disk(self, peer_id: str) -> tuple[HeldSnapshot, ...]:
        """What lies on this one's disk, newest first."""
        return self._cast.disk(peer_id)

    def give_order(self, halt: Halting, ahead_s: int = 0) -> None:
        """The organiser has the run stop, by a clock that is so much ahead."""
        self._cast.give_order(halt, ahead_s)

    def set_batch(self, microbatches: int) -> None:
        """The organiser sets another batch, where no order to pause stands."""
        self._cast.set_batch(microbatches)

    def forget_orders(self) -> None:
        """The directory went with those who kept it."""
        self._cast.forget_orders()

    def fill_disk(self, member: Member, duration_s: float) -> None:
        """The disk of this one takes nothing for so long."""
        life = self._life(member)
        if life is not None:
            self._cast.fill_disk(life, duration_s)

    def lose_disk(self, member: Member) -> None:
        """What this one has on its disk is gone, and nothing more comes there in this life."""
        self.tell(f"the disk of {member} is lost")
        self._cast.lose_disk(member.peer_id)

    def freeze(self, member: Member, duration_s: float) -> None:
        """This one stands still for so long."""
        self._befall(member, f"freeze {member} for {duration_s:g} s", lambda life: self._cast.freeze(life, duration_s))

    def thaw(self, member: Member) -> None:
        """This one goes on at once, if it stands still."""
        self._befall(member, f"thaw {member}", self._cast.thaw)

    def join(self, *, standby: bool = False) -> None:
        """Start a new peer, which asks for a place or, with `standby`, waits for a loss."""
        self.tell("a standby joins" if standby else "a peer joins")
        self._cast.join(standby=standby)

    def leave(self, member: Member) -> None:
        """This one is asked to leave, as by SIGTERM."""
        self._befall(member, f"ask {member} to leave", self._cast.leave)

    def stick(self, member: Member) -> None:
        """The device of this one never comes back from what it does next."""
        self._befall(member, f"the device of {member} is stuck", self._cast.stick)

    def slow(self, member: Member, factor: float, duration_s: float) -> None:
        """The device of this one computes `factor` times slower for so long."""
        what = f"the device of {member} is {factor:g} times slower for {duration_s:g} s"
        self._befall(member, what, lambda life: self._cast.slow(life, factor, duration_s, disk=False))

    def slow_disk(self, member: Member, factor: float, duration_s: float) -> None:
        """Writes and the directory of this one take `factor` times as long for so long."""
        what = f"the disk of {member} is {factor:g} times slower for {duration_s:g} s"
        self._befall(member, what, lambda life: self._cast.slow(life, factor, duration_s, disk=True))

    def shut(self, member: Member, duration_s: float) -> None:
        """Nobody listens where this one says that it does for so long; it lives, and calls
        others.
        """
        self._befall(member, f"nobody can call {member} for {duration_s:g} s", lambda life: self._cast.shut(life, duration_s))

    def _befall(self, member: Member, what: str, act: Callable[[Life], None]) -> None:
        """Tell what befalls this one, and do it where it lives."""
        self.tell(what)
        life = self._life(member)
        if life is not None:
            act(life)

    def _life(self, member: Member) -> Life | None:
        life = self._cast.lives.get(member)
        return life if life is not None and life.is_alive else None

    # -- the network; without a duration until `heal`
    def partition(
        self,
        group: Iterable[Member],
        other: Iterable[Member] | None = None,
        *,
        duration_s: float | None = None,
        refused: bool = False,
    ) -> Break:
        """Two groups hear nothing of each other; without a second group it is everybody else, also
        who comes later.
        """
        others = None if other is None else [member.peer_id for member in other]
        return self._begin(partitions.partition([m.peer_id for m in group], others, refused=refused), "partition", duration_s)

    def deafen(self, member: Member, *, duration_s: float | None = None) -> Break:
        """This one hears nobody; what it sends arrives."""
        return self._begin(partitions.deaf(member.peer_id), "deaf", duration_s)

    def mute(self, member: Member, *, duration_s: float | None = None) -> Break:
        """Drop everything that this member sends, answers included; it still receives."""
        return self._begin(partitions.mute(member.peer_id), "mute", duration_s)

    def cut(self, one: Member, other: Member, *, duration_s: float | None = None, refused: bool = False) -> Break:
        """These two hear nothing of each other."""
        return self._begin(partitions.cut(one.peer_id, other.peer_id, refused=refused), "link cut", duration_s)

    def slow_links(self, member: Member, factor: float) -> None:
        """From now on everything between this one and all others takes `factor` times as long."""
        self.tell(f"the links of {member} are {factor:g} times slower")
        for other in self.peers():
            self.hub.links.slow(member.peer_id, other.peer_id, factor)
            self.hub.links.slow(other.peer_id, member.peer_id, factor)

    def heal(self, *which: Break) -> None:
        """Mend these breaks; without any, all that last."""
        self.tell("mend the network")
        for lasting in which or self.hub.breaks.lasting:
            self._cast.end_break(lasting)

    def _begin(self, new: Break, kind: str, duration_s: float | None) -> Break:
        self.tell(kind if duration_s is None else f"{kind} for {duration_s:g} s")
        self._cast.begin_break(new, kind, duration_s)
        return new


class Script:
    """A scenario; this one does nothing."""

    def see(self, director: Director, moment: Moment) -> None:
        """A message sets out, or a handler has ended."""

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """What the network does with this call; None = as drawn."""
        del sender, receiver, request
        return None

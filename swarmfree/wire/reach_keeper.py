"""Whether others can call this peer, and by way of which relays where they cannot: found out, kept
up, and announced.

Nothing here asks for a place or trains; what it changes is where this peer says that it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from swarmfree.protocol.errors import PeerUnreachable, SwarmfreeError
from swarmfree.protocol.local_config import RelayChoice
from swarmfree.wire.addresses import Address
from swarmfree.wire.relay_client import DialBack, RelayClient


@dataclass(frozen=True, slots=True)
class ReachTimes:
    """How long and how often.

    Args:
        recheck_s: a peer has itself dialled again after so long.
        look_s: relays are looked for again after so long, where none is held.
        few_s: the same where some are held, and fewer than are wanted.
        ask_s: how long a relay may take to say whether this peer can be called.
        settle_s: how long to wait for a first relay before going on.
        avoid_s: a relay that was lost is not tried again before.
    """

    recheck_s: float = 60.0
    look_s: float = 5.0
    few_s: float = 15.0
    ask_s: float = 7.0
    settle_s: float = 15.0
    avoid_s: float = 10.0


class AnnouncedNetwork(Protocol):
    """What is needed of the network: where it is, and that it says so."""

    @property
    def direct_address(self) -> Address:
        """Where this peer is called without a relay."""
        ...

    def announce(self, addresses: Sequence[Address]) -> None:
        """Be called at these from now on, the first one first."""
        ...


RELAYS_WANTED, RELAYS_WANTED_DIRECT = 2, 1
"""Of a peer that others cannot call, and of one that the relay can call: others may not be able to,
and go by way of the relay.
"""
ASKED_MAX = 3
DOUBTS = 2
"""So often in a row a peer that was reachable is told that it is not, before it believes that."""


class ReachKeeper:
    """Keeps what a peer announces true. A context manager: entered, it knows for the first time.

    Args:
        choice: whether relays are used.
        network: announces.
        client: talks with relays; its group is entered and left here.
        find_relays: those that are known now; the organiser's first.
        tell: says what changes, for people.
        times: how long and how often.
        rng: mixes relays, so that not all peers take the same.
    """

    def __init__(
        self,
        choice: RelayChoice,
        network: AnnouncedNetwork,
        client: RelayClient,
        find_relays: Callable[[], Awaitable[tuple[Address, ...]]],
        tell: Callable[[str], None],
        times: ReachTimes,
        rng: random.Random,
    ) -> None:
        """Know nothing yet."""
        self._choice, self._network, self._client = choice, network, client
        self._find_relays, self._tell, self._times, self._rng = find_relays, tell, times, rng
        self._group = client.group
        self._keeping: asyncio.Task[None] | None = None
        self._lines: dict[Address, asyncio.Task[None]] = {}
        self._held: dict[Address, None] = {}
        self._avoided: dict[Address, float] = {}
        self._relays: tuple[Address, ...] = ()
        self._changed = asyncio.Event()
        self._said = ""
        self._doubts, self._why = 0, "as it was told to be"
        self.is_reachable = choice is not RelayChoice.ALWAYS

    @property
    def is_checked(self) -> bool:
        """Whether there is anything to find out: an address of loopback is what it is."""
        return self._choice is not RelayChoice.NEVER and not (
            self._choice is RelayChoice.AUTO and self._network.direct_address.is_loopback
        )

    async def __aenter__(self) -> Self:
        """Find out for the first time.

        Raises:
            SwarmfreeError: relays are asked for in any case, and there is none.
        """
        await self._group.__aenter__()
        try:
            if self.is_checked:
                await self._settle()
                self._keeping = self._group.create_task(self._keep())
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._lines.values(), *([self._keeping] if self._keeping is not None else [])):
            task.cancel()
        self._client.close()
        await self._group.__aexit__(None, None, None)

    async def _settle(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._times.settle_s
        await self._look()
        if self._choice is RelayChoice.AUTO:
            await self._check(doubts=1)
        self._fill()
        while not self._held and loop.time() < until_s and (self._lines or not self.is_reachable):
            await self._wait(min(1.0, self._times.look_s))
            if not self._held and not self._lines:
                await self._look()
            self._fill()
        if self._choice is RelayChoice.ALWAYS and not self._held:
            raise SwarmfreeError(
                "--relay always: none of the run's relays can be used; a bootstrap node offers one unless it was started with --no-relay"
            )
        self._publish()

    async def _keep(self) -> None:
        """Look again, for ever."""
        loop = asyncio.get_running_loop()
        checked_s = looked_s = loop.time()
        while True:
            await self._wait(self._look_again_s)
            now_s = loop.time()
            if now_s - looked_s >= self._look_again_s:
                looked_s = now_s
                await self._look()
            if self._choice is RelayChoice.AUTO and now_s - checked_s >= self._times.recheck_s:
                checked_s = now_s
                await self._check(doubts=DOUBTS)
            self._fill()
            self._publish()

    @property
    def _look_again_s(self) -> float:
        times = self._times
        after_s = times.look_s if not self._lines else times.few_s if len(self._lines) < self._wanted else times.recheck_s
        return min(after_s, times.recheck_s)

    @property
    def _wanted(self) -> int:
        """So many relays."""
        return RELAYS_WANTED_DIRECT if self.is_reachable else RELAYS_WANTED

    async def _wait(self, within_s: float) -> None:
        """Until a relay is won or lost."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()

    async def _look(self) -> None:
        """See which relays there are; the ones known before stay where none is found."""
        own = self._network.direct_address.peer_id
        found = tuple(relay for relay in await self._find_relays() if relay.peer_id != own)
        if found:
            first, *rest = found
            self._rng.shuffle(rest)
            self._relays = (first, *rest)

    async def _check(self, doubts: int) -> None:
        """Have itself dialled by a few relays at once; the first of them that says anything is
        believed.
        """
        said: DialBack | None = None
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._ask(relay)) for relay in self._relays[:ASKED_MAX]]
            for answer in asked:
                said = said or await answer
                if said is not None:
                    answer.cancel()
        if said is None:
            return
        self._doubts = 0 if said.is_reachable else self._doubts + 1
        if said.is_reachable:
            self.is_reachable = True
        elif self._doubts >= doubts:
            self.is_reachable, self._why = False, said.why

    async def _ask(self, relay: Address) -> DialBack | None:
        with contextlib.suppress(PeerUnreachable, TimeoutError):
            async with asyncio.timeout(self._times.ask_s):
                return await self._client.ask(relay, self._network.direct_address)
        return None

    def _fill(self) -> None:
        """Register with as many relays as are wanted."""
        now_s = asyncio.get_running_loop().time()
        for relay in self._relays:
            if len(self._lines) < self._wanted and relay not in self._lines and self._avoided.get(relay, now_s) <= now_s:
                self._lines[relay] = self._group.create_task(self._line(relay))

    async def _line(self, relay: Address) -> None:
        def held() -> None:
            self._held[relay] = None
            self._publish()
            self._changed.set()

        loop = asyncio.get_running_loop()
        try:
            await self._client.register(relay, held)
        except PeerUnreachable as error:
            if relay in self._held and not self.is_reachable:
                self._tell(f"a relay is lost: {error}")
        finally:
            self._held.pop(relay, None)
            del self._lines[relay]
            self._avoided = {r: s for r, s in self._avoided.items() if s > loop.time()} | {
                relay: loop.time() + self._times.avoid_s
            }
            self._changed.set()

    def _publish(self) -> None:
        """Announce what is true; where nothing is, what was announced last."""
        direct = self._network.direct_address
        addresses = [*([direct] if self.is_reachable else []), *(direct.by_way_of(relay) for relay in self._held)]
        if not addresses:
            return
        self._network.announce(addresses)
        if self.is_reachable:
            self._say("others call this peer directly")
        else:
            names = " and ".join(relay.host_and_port for relay in self._held)
            self._say(f"others call this peer by way of the relay at {names}: {self._why}")

    def _say(self, text: str) -> None:
        """What is news; that all is as it should be is none at the beginning."""
        if text != self._said:
            is_news = bool(self._said) or not self.is_reachable
            self._said = text
            if is_news:
                self._tell(text)

"""``python -m tests.attacks.malformed_calls``: calls without end that are malformed, from many
names at once, for `benchmarks.attacked`.

Like `lasting_attacker`, whose messages these are, it has the ticket of an invite, and takes any
number of names with it. Each name has a connection to each peer, and several calls on it, each made
as soon as the one before is answered. The file that is its argument says what it attacks, as one
JSON object. It attacks between SIGUSR1 and SIGUSR2, until SIGTERM; standard output tells every half
second how many calls have ended, and how.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.attacks.lasting_attacker import NAME, Attacker, Target, in_directory

TELL_S = 0.5
GIVEN_UP = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "CancelledError", "TimeoutError")
"""What a call comes to that is not answered for as long as this attacker waits."""


class Caller(Attacker):
    """One of the names.

    Args:
        order: what the file says.
        number: of the name.
    """

    def __init__(self, order: dict[str, Any], number: int) -> None:
        """Nobody is called."""
        super().__init__({**order, "rate": 1.0, "seed": int(order["seed"]) + number})
        self.papers = self.papers_of(f"{NAME} {number}")
        self._long = self._long_ones()  # in this name

    async def go_on(self, target: Target, goes: asyncio.Event) -> None:
        """One call after the other, for ever."""
        kinds: list[tuple[Callable[[Target], Awaitable[None]], int]] = [
            (self.any_message, 40),
            (self.leaders_word, 25),
            (self.anothers_name, 10),
            (self.garbage, 24),
            (self.long_one, 1),
        ]
        while True:
            await goes.wait()
            (chosen,) = self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
            await self.attack_once(chosen.__name__, chosen(target))

    async def listen(self, target: Target) -> None:
        """Hear the run's own plan and record, of which later calls are made."""
        for _ in range(4):
            await self.attack_once("question", self.question(target))
        self.told.clear()


def outcomes(callers: list[Caller]) -> dict[str, int]:
    """How often each answer came, whatever was sent."""
    found: dict[str, int] = {}
    for caller in callers:
        for told, count in caller.told.items():
            came = told.partition(": ")[2]
            found[came] = found.get(came, 0) + count
    return found


def tell(callers: list[Caller]) -> None:
    """What came of all so far."""
    found = outcomes(callers)
    made = sum(count for came, count in found.items() if "own fault" not in came)
    answered = made - sum(count for came, count in found.items() if came.partition(" ")[0] in GIVEN_UP)
    said = {"made": made, "answered": answered, "names": len(callers)}
    sys.stdout.write(json.dumps({**said, "outcomes": dict(sorted(found.items()))}) + "\n")
    sys.stdout.flush()


async def attack(callers: list[Caller], at_once: int, goes: asyncio.Event) -> None:
    """Until cancelled, or the parent is gone."""
    parent = os.getppid()
    async with asyncio.TaskGroup() as tasks:
        for caller in callers:
            for target in caller.targets.values():
                await caller.listen(target)
                for _ in range(at_once):
                    tasks.create_task(caller.go_on(target, goes))
        sys.stdout.write(json.dumps({"ready": len(callers[0].targets)}) + "\n")
        while os.getppid() == parent:
            tell(callers)
            await asyncio.sleep(TELL_S)


async def main() -> None:
    """Attack when told to, until SIGTERM."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    callers, goes = [Caller(order, number) for number in range(int(order["names"]))], asyncio.Event()
    async with in_directory(callers[0].entry_points) as (node, _):
        while len(callers[0].targets) < int(order["peers"]):
            await callers[0].look(node)
            await asyncio.sleep(TELL_S)
        for caller in callers[1:]:
            caller.targets = {peer_id: Target(peer_id, one.address) for peer_id, one in callers[0].targets.items()}
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(attack(callers, int(order["at_once"]), goes))
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, goes.set)
            loop.add_signal_handler(signal.SIGUSR2, goes.clear)
            loop.add_signal_handler(signal.SIGTERM, working.cancel)
    tell(callers)


if __name__ == "__main__":
    asyncio.run(main())

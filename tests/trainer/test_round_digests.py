"""What members tell each other of a round's contributions while its sum is still computed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.records import MicrobatchSet, PartialSum, PartialSumId, Roll
from swarmfree.trainer.member.averaging import Averaging, Round, Sum
from swarmfree.trainer.pipeline.tensor_digest import digest_of

T = TypeVar("T")
ME, SIBLING = Member("me", "0" * 16), Member("sibling", "1" * 16)


class Device:
    """Asks for the digests when its thread is done and the event loop knows nothing yet."""

    def __init__(self) -> None:
        """Nothing is asked yet."""
        self.ask: Callable[[], object] = lambda: None
        self.told: list[object] = []

    async def run(self, rank: object, age: int, work: Callable[[], T]) -> T:
        """Do the work, and ask."""
        done = work()
        self.told.append(self.ask())
        return done


async def test_digests_are_written_where_they_are_read() -> None:
    """Else a question that comes while the device is at a sum reads what changes meanwhile."""
    engine = SimpleNamespace(reduce=lambda parts: (b"".join(parts), 1.0))
    context = cast("Any", SimpleNamespace(me=ME, audits=True, ports=SimpleNamespace(engine=engine)))
    device = Device()
    averaging = Averaging(context, cast("Any", None), cast("Any", device), cast("Any", None), cast("Any", None))
    sums = tuple(PartialSum(PartialSumId(each, 0), MicrobatchSet.of([n]), (n,)) for n, each in enumerate((ME, SIBLING)))
    roll = Roll(0, "b0", 1, sums, (Endpoint(ME, ()), Endpoint(SIBLING, ())))
    current = Round(roll, cast("Any", None), cast("Any", None))
    averaging._round, current.sums[0] = current, Sum(contributions={ME: b"mine", SIBLING: b"theirs"})
    device.ask = lambda: averaging.contributions(roll.round())
    await averaging._summed(current, 0)
    assert device.told == [()]
    assert [(c.member, c.digest) for c in averaging.contributions(roll.round())] == [
        (ME, digest_of(b"mine")),
        (SIBLING, digest_of(b"theirs")),
    ]

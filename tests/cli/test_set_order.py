"""Orders: which batch ``swarmfree set`` asks for, and what the organiser hears of any order, with a
directory and peers in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from swarmfree.cli import halt_run
from swarmfree.cli.halt_run import give_order, microbatches_in
from swarmfree.protocol.errors import (
    CallFailed,
    ConfigError,
    PeerSilent,
    PeerUnreachable,
    RefusalKind,
    Refused,
    RunEnded,
    SwarmfreeError,
)
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetPlan, Request
from swarmfree.protocol.names import Endpoint, Founder, Member
from swarmfree.protocol.order import Halting, Order
from swarmfree.wire.organiser import draw_organiser
from swarmfree.wire.signed_order import SignedOrder, read_order, sign_order

KEY = draw_organiser()


@pytest.mark.parametrize(
    ("change", "count"), [("batch.microbatches=32", 32), (" batch.microbatches = 1 ", 1), ("batch.microbatches=007", 7)]
)
def test_a_batch_is_a_whole_number_of_microbatches(change: str, count: int) -> None:
    """Blanks around it do not matter."""
    assert microbatches_in(change) == count


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0",
        "-1",
        "+3",
        "1.5",
        "1e3",
        "=3",
        "3 4",
        "\u0663",
        "\u00b2",
        "0x10",
        "1_0",
        "nan",
        "\0",
        str(1 << 31),
        "9" * 20,
        "9" * 5000,
        "0" * 9 + "9" * 99,
    ],
)
def test_no_other_batch_is_taken(value: str) -> None:
    """Also not a number of thousands of digits, which ends in one short line."""
    with pytest.raises(ConfigError, match=r"batch\.microbatches = .*: a whole number above 0 is expected") as refused:
        microbatches_in(f"batch.microbatches={value}")
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize("change", ["", "=", "=4", "4", "microbatches=4", "batch.rows=4", "batch.microbatches_max=4", "x" * 9999])
def test_nothing_else_is_set(change: str) -> None:
    """All other keys are agreed as the run is made."""
    with pytest.raises(ConfigError, match=r"only batch\.microbatches=N can be set while a run goes on") as refused:
        microbatches_in(change)
    assert len(str(refused.value)) < 200


class MemoryDirectory:
    """What one organiser sees of the directory.

    Attributes:
        known: the newest order there.
        given: by this organiser.
        beside: another one's, that comes to stand there while peers are waited for.
        answers: how a call of each peer fails before an order is given, and after it; None: it does
            not.
    """

    def __init__(self, known: Order | None, spent: int | None) -> None:
        """No peer has anything yet."""
        self.known, self.given = known, list[SignedOrder]()
        self.beside: SignedOrder | None = None
        self.spent, self.keepers, self.is_ended, self.iteration = spent, 2, False, 0
        self.answers: dict[str, tuple[CallFailed | None, CallFailed | None]] = {"QmMe": (None, None)}

    async def ban_lists(self) -> None:
        """Read orders."""
        if self.given and self.beside is not None and self.beside.counts_more_than(self.given[-1]):
            self.known = self.beside.order

    def order(self) -> Order | None:
        """The newest one."""
        return self.known

    async def founder(self) -> Founder | None:
        """Of the newest genesis."""
        return None if self.spent is None else Founder(1, "QmMe", 4, "ab" * 32, self.spent)

    async def announcements(self) -> list[Any]:
        """Of all peers."""
        ends = [Endpoint(Member(peer_id, "00"), ()) for peer_id in self.answers]
        return [SimpleNamespace(iteration=self.iteration, endpoint=end) for end in ends]

    async def is_over(self) -> bool:
        """Whether the organiser has said so."""
        return self.is_ended

    async def publish_order(self, order: SignedOrder, lease_s: float) -> None:
        """Keep it."""
        assert lease_s > 0
        await asyncio.sleep(0.001)
        self.given.append(order)
        self.known = order.order

    async def keepers_of_order(self, order: SignedOrder) -> int:
        """How many peers have it."""
        assert order == self.given[-1]
        return self.keepers


@pytest.fixture
def manifest(small_manifest: Manifest) -> Manifest:
    """A run of this organiser's that may have twice as many microbatches."""
    batch = replace(small_manifest.batch, microbatches_max=2 * small_manifest.batch.microbatches)
    timing = replace(small_manifest.timing, lease_s=0.01)
    return replace(small_manifest, batch=batch, organiser=KEY.peer_id, timing=timing)


class Line:
    """How peers are called."""

    def __init__(self, directory: MemoryDirectory) -> None:
        """They are in this directory."""
        self._directory = directory

    async def call(self, to: Endpoint, request: Request, *, silence_s: float) -> None:
        """Implements `Network.call`: one answer before an order, another one after it."""
        assert isinstance(request, GetPlan)
        assert silence_s > 0
        failure = self._directory.answers[to.member.peer_id][bool(self._directory.given)]
        if failure is not None:
            raise failure


def open_for(monkeypatch: pytest.MonkeyPatch, directory: MemoryDirectory, manifest: Manifest) -> None:
    """Let orders go into this directory."""

    @contextlib.asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(directory=directory, manifest=manifest, network=Line(directory))

    monkeypatch.setattr(halt_run, "open_run", opened)


async def _set(monkeypatch: pytest.MonkeyPatch, directory: MemoryDirectory, manifest: Manifest, count: int) -> Order:
    """Set a batch; the order that is given."""
    open_for(monkeypatch, directory, manifest)
    assert await give_order(None, KEY, Halting.NOT, 1.0, count) == 0  # type: ignore[arg-type]
    (order,) = directory.given
    return order.order


@pytest.mark.parametrize(
    ("known", "spent", "number", "after"),
    [
        (None, None, 0, 0),
        (None, 1 << 41, (1 << 41) + 1, 1 << 41),
        (Order(1 << 41, Halting.NOT, 4, 70), 50, (1 << 41) + 1, 70),
        (Order(1 << 41, Halting.NOT, 4, 70), 90, (1 << 41) + 1, 90),
        (Order(60, Halting.PAUSE), 60, 0, 60),
    ],
    ids=["the first", "after a resume by a clock ahead", "after another batch", "after another, and a resume", "after a pause"],
)
async def test_a_batch_is_ordered_after_all_before(
    monkeypatch: pytest.MonkeyPatch, manifest: Manifest, known: Order | None, spent: int | None, number: int, after: int
) -> None:
    """Its number is more than theirs, by whatever clock; it says up to which halts are over, as far
    as anybody knew, so that it replaces none that it does not know of. 0 is this second.
    """
    now_s = int(time.time())
    directory = MemoryDirectory(known, spent)
    order = await _set(monkeypatch, directory, manifest, 2 * manifest.batch.microbatches)
    assert read_order(directory.given[0].content, manifest).order == order, "peers take it, too"
    assert (order.halt, order.microbatches, order.after) == (Halting.NOT, 2 * manifest.batch.microbatches, after)
    assert order.number == number if number else now_s <= order.number <= now_s + 60


async def test_a_batch_that_cannot_be_is_refused_before_anything_is_published(
    monkeypatch: pytest.MonkeyPatch, manifest: Manifest
) -> None:
    """More than the run was made for, while a halt stands, after the end."""
    directory = MemoryDirectory(None, None)
    with pytest.raises(ConfigError, match=f"this run was made for at most {manifest.batch.most}"):
        await _set(monkeypatch, directory, manifest, manifest.batch.most + 1)
    directory.known = Order(60, Halting.PAUSE)
    with pytest.raises(SwarmfreeError, match="order 60 to pause stands"):
        await _set(monkeypatch, directory, manifest, 1)
    directory.known, directory.iteration = None, manifest.run.iterations - 1
    with pytest.raises(SwarmfreeError, match=r"the run is in its last iteration, 4 of 4: none comes after it"):
        await _set(monkeypatch, directory, manifest, 1)
    directory.is_ended = True
    with pytest.raises(RunEnded, match=r"there is nothing to set batch\.microbatches=1"):
        await _set(monkeypatch, directory, manifest, 1)
    assert not directory.given


async def test_who_comes_second_in_one_second_hears_of_the_first(monkeypatch: pytest.MonkeyPatch, manifest: Manifest) -> None:
    """Two organisers, one number: peers follow one of both, and only that one is told that they
    do. A halt always counts more.
    """
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    pair = [sign_order(KEY, manifest, Order(1000, Halting.NOT, count)) for count in (1, 2)]
    first, second = sorted(pair, key=lambda order: order.content)
    assert first.counts_more_than(second)
    assert not second.counts_more_than(first)
    for mine, other, is_told in ((first, second, False), (second, first, True)):
        directory = MemoryDirectory(None, None)
        directory.beside = other
        if is_told:
            with pytest.raises(
                SwarmfreeError, match=f"order 1000 to set batch.microbatches={other.order.microbatches} was given at"
            ):
                await _set(monkeypatch, directory, manifest, mine.order.microbatches)
        else:
            assert await _set(monkeypatch, directory, manifest, mine.order.microbatches) == mine.order
    halted = MemoryDirectory(None, None)
    halted.beside = sign_order(KEY, manifest, Order(1000, Halting.PAUSE))
    with pytest.raises(SwarmfreeError, match="order 1000 to pause was given at the same time, and counts more"):
        await _set(monkeypatch, halted, manifest, 1)


async def test_an_order_that_nobody_took_or_that_came_too_late_is_told(
    monkeypatch: pytest.MonkeyPatch, manifest: Manifest
) -> None:
    """No peer publishes it within a lease; or the run was about to go on from snapshots."""
    directory = MemoryDirectory(None, None)
    directory.keepers = 0
    with pytest.raises(SwarmfreeError, match=r"is published, but no peer has taken it within 0\.01 s"):
        await _set(monkeypatch, directory, manifest, 1)
    late = MemoryDirectory(None, None)

    async def founder() -> Founder:
        return Founder(1, "QmMe", 4, "ab" * 32, 1 << 40 if late.given else 0)

    monkeypatch.setattr(late, "founder", founder)
    with pytest.raises(SwarmfreeError, match="came as the run was about to go on from snapshots, and is not obeyed"):
        await _set(monkeypatch, late, manifest, 1)


ENDED, LOST = PeerUnreachable("nobody listens", refused=True), PeerUnreachable("no way there")
SILENT, CLOSED = PeerSilent("it says nothing"), Refused(RefusalKind.NOT_ADMITTED, "no ticket")


@pytest.mark.parametrize(
    ("halt", "answers", "ended"),
    [
        (Halting.STOP, [(None, ENDED), (CLOSED, ENDED), (SILENT, SILENT), (ENDED, ENDED)], "2 peers have"),
        (Halting.PAUSE, [(None, ENDED), (LOST, SILENT)], "1 peer has"),
        (Halting.PAUSE, [(None, ENDED), (LOST, None)], ""),
        (Halting.PAUSE, [(None, ENDED), (SILENT, CLOSED)], ""),
        (Halting.STOP, [(None, ENDED), (None, None)], ""),
        (Halting.STOP, [(None, ENDED), (None, CLOSED)], ""),
        (Halting.STOP, [(None, ENDED), (None, LOST)], ""),
        (Halting.STOP, [(None, ENDED), (None, SILENT)], ""),
        (Halting.STOP, [(SILENT, ENDED), (LOST, ENDED), (ENDED, ENDED)], ""),
        (Halting.STOP, [], ""),
        (Halting.NOT, [(None, ENDED)], ""),
        (Halting.STOP, [(None, ENDED)] * halt_run.ASKED_MAX, "64 peers have"),
        (Halting.STOP, [(None, ENDED)] * (halt_run.ASKED_MAX + 1), ""),
    ],
    ids=[
        "all",
        "one that lived",
        "one that was cut off",
        "one that was silent",
        "one lives",
        "one refuses",
        "one is cut off",
        "one is silent",
        "none lived",
        "nobody",
        "a batch",
        "many",
        "too many",
    ],
)
async def test_an_order_is_taken_where_all_that_lived_have_ended(
    monkeypatch: pytest.MonkeyPatch,
    manifest: Manifest,
    capsys: pytest.CaptureFixture[str],
    halt: Halting,
    answers: list[tuple[CallFailed | None, CallFailed | None]],
    ended: str,
) -> None:
    """They have ended between two looks, and nobody has a copy; who ends while a batch is set has
    not obeyed.
    """
    directory = MemoryDirectory(None, None)
    directory.keepers, directory.answers = 0, {f"Qm{number}": answer for number, answer in enumerate(answers)}
    open_for(monkeypatch, directory, manifest)
    if ended:
        assert await give_order(None, KEY, halt, 1.0) == 0  # type: ignore[arg-type]
        assert f"{ended} ended since, all that answered before (if they have crashed" in capsys.readouterr().out
    else:
        with pytest.raises(SwarmfreeError, match="no peer has taken it"):
            await give_order(None, KEY, halt, 1.0, 0 if halt is not Halting.NOT else 1)  # type: ignore[arg-type]
    assert len(directory.given) == 1


@pytest.mark.parametrize(("halt", "ends"), [(Halting.PAUSE, "; else set it again once the run goes on"), (Halting.STOP, "")])
@pytest.mark.parametrize("known", [Order(60, Halting.NOT, 3), Order(60, Halting.PAUSE), None])
async def test_who_halts_a_run_hears_which_batch_may_never_come(
    monkeypatch: pytest.MonkeyPatch,
    manifest: Manifest,
    capsys: pytest.CaptureFixture[str],
    halt: Halting,
    ends: str,
    known: Order | None,
) -> None:
    """A halt takes the place of a batch that no record has obeyed yet."""
    open_for(monkeypatch, MemoryDirectory(known, 50), manifest)
    assert await give_order(None, KEY, halt, 1.0) == 0  # type: ignore[arg-type]
    said = capsys.readouterr().out.splitlines()[1:]
    place = f"order 60 to set batch.microbatches=3 holds if an iteration has begun with it{ends}"
    assert said == ([place] if known is not None and known.microbatches else [])


@pytest.mark.parametrize(("keepers", "taken"), [(1, "1 peer has taken it so far"), (2, "2 peers have taken it so far")])
async def test_who_has_taken_an_order_is_told(
    monkeypatch: pytest.MonkeyPatch, manifest: Manifest, capsys: pytest.CaptureFixture[str], keepers: int, taken: str
) -> None:
    """And nothing of peers that have ended."""
    directory = MemoryDirectory(None, None)
    directory.keepers = keepers
    open_for(monkeypatch, directory, manifest)
    assert await give_order(None, KEY, Halting.STOP, 1.0) == 0  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert f" to stop: {taken}; after the iteration" in said
    assert "ended since" not in said


async def test_peers_have_a_lease_to_take_an_order(monkeypatch: pytest.MonkeyPatch, manifest: Manifest) -> None:
    """However soon one that is asked has to answer."""
    manifest = replace(manifest, timing=replace(manifest.timing, silence_s=0.01, lease_s=10.0))
    directory, looks = MemoryDirectory(None, None), list[SignedOrder]()

    async def keepers(order: SignedOrder) -> int:
        looks.append(order)
        return len(looks) // 20

    monkeypatch.setattr(halt_run, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(directory, "keepers_of_order", keepers)
    open_for(monkeypatch, directory, manifest)
    assert await give_order(None, KEY, Halting.STOP, 1.0) == 0  # type: ignore[arg-type]
    assert len(looks) == 20


async def test_a_peer_is_asked_for_as_long_as_it_may_be_silent(monkeypatch: pytest.MonkeyPatch, manifest: Manifest) -> None:
    """And not for a lease, which is how long all may take together."""
    manifest = replace(manifest, timing=replace(manifest.timing, silence_s=0.5))
    directory, waits_s, call = MemoryDirectory(None, None), list[float](), Line.call

    async def watched(self: Line, to: Endpoint, request: Request, *, silence_s: float) -> None:
        waits_s.append(silence_s)
        await call(self, to, request, silence_s=silence_s)

    monkeypatch.setattr(Line, "call", watched)
    open_for(monkeypatch, directory, manifest)
    assert await give_order(None, KEY, Halting.STOP, 1.0) == 0  # type: ignore[arg-type]
    assert waits_s == [0.5]


async def test_an_order_is_published_while_peers_are_asked(monkeypatch: pytest.MonkeyPatch, manifest: Manifest) -> None:
    """One that is silent holds it up for nobody."""
    directory, is_given = MemoryDirectory(None, None), list[bool]()
    directory.answers = {"Qm0": (SILENT, SILENT), "Qm1": (None, ENDED)}

    async def slow(_: Line, to: Endpoint, __: Request, *, silence_s: float) -> CallFailed | None:
        if to.member.peer_id == "Qm0":
            await asyncio.sleep(0.05)
            is_given.append(bool(directory.given))
            raise SILENT
        return None

    monkeypatch.setattr(Line, "call", slow)
    open_for(monkeypatch, directory, manifest)
    assert await give_order(None, KEY, Halting.STOP, 1.0) == 0  # type: ignore[arg-type]
    assert is_given == [True]

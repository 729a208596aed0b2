"""The weights of a run that goes on, taken out without stopping it.

All stages are of one iteration: a part comes only from a replica that is at exactly that iteration
and lineage, and counts once the record of that iteration has committed and its state digest is the
one that was computed here. Nobody keeps a state for whoever exports: where a stage has stepped on
before all of it was here, everything is begun anew at the iteration that has come.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from swarmfree.cli.run_access import RunAccess
from swarmfree.cockpit.text import PAUSE_ORDERED
from swarmfree.model.exported_state import ExportedState
from swarmfree.model.layout import FLOAT_BYTES, layout_of
from swarmfree.policy.answer_checks import fitting_plan, fitting_record
from swarmfree.policy.block_split import split_after
from swarmfree.policy.halt import is_unspent_halt
from swarmfree.policy.part_batches import state_batch
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import (
    CallFailed,
    ConfigError,
    Excluded,
    ProtocolViolation,
    RefusalKind,
    Refused,
    RunEnded,
    SwarmfreeError,
)
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetPlan, GetRecord, GetState, PlanAnswer, RecordAnswer, State
from swarmfree.protocol.names import ABSENT, Endpoint, Founder, Member
from swarmfree.protocol.order import Halting
from swarmfree.protocol.pieces import parts_of
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.storage.atomic_files import told_in_one_line
from swarmfree.storage.dataset import TOKENIZER_FILE

TRIES = 12
"""Of one iteration each."""
ASKS = 4
"""Each replica of a stage is asked so often for one batch of parts."""
LANES = 2
ASKED_MAX = 16
AGAIN_S, PROGRESS_S = 0.25, 2.0
RECORD_WAITS = 10
"""So many `join_wait_s` a copy waits for its iteration to commit."""
T = TypeVar("T")
Tensors = dict[str, tuple[tuple[int, ...], bytes]]


class StateGone(Exception):
    """A stage has gone on, or another lineage has won: what was copied so far is of no use."""


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """What is copied.

    Args:
        iteration: that all states are ready for.
        lineage: that they stand on.
        donors: of each stage, whom to ask in order.
    """

    iteration: int
    lineage: str
    donors: tuple[tuple[Endpoint, ...], ...]

    def peers(self) -> list[Endpoint]:
        """Some of all stages."""
        return list(dict.fromkeys(donor for stage in self.donors for donor in stage))[:ASKED_MAX]


@dataclass(slots=True)
class Coming:
    """One stage on its way here.

    Args:
        state: as far as it is here.
        givers: who gave parts of it.
    """

    state: ExportedState
    givers: set[Member] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Exported:
    """A model that was taken out of a run.

    Args:
        iteration: that its weights are ready for: so many are committed in them.
        record: of the iteration that began with them.
        stages: of each, Hugging Face name -> (shape, float32 bytes).
    """

    iteration: int
    record: Record
    stages: tuple[Tensors, ...]


class LiveExport:
    """One export: it looks for an iteration, copies it, and proves it; then again, where that came
    to nothing.
    """

    def __init__(self, access: RunAccess, ticket: bytes, say: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            access: to the run.
            ticket: that is shown, empty for none.
            say: takes a line about how it goes on.
        """
        self._access, self._ticket, self._say = access, ticket, say
        self._manifest = access.manifest
        self._layouts = [layout_of(self._manifest, stage) for stage in range(self._manifest.stage_count)]
        self._shunned: set[Member] = set()
        self._here_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Of all weights."""
        return FLOAT_BYTES * sum(layout.size for layout in self._layouts)

    async def run(self) -> Exported:
        """Take the model out.

        Raises:
            Excluded: the run does not let this machine in.
            RunEnded: it is over.
            SwarmfreeError: it has not begun, a stage has no replica that answers, or no iteration
                lasted long enough.
        """
        if why := self._access.admission.refusal(self._access.asker.peer_id, self._ticket):
            raise Excluded(f"the run does not let this machine in: {why}")
        last = ""
        for attempt in range(TRIES):
            target = await self._target(attempt)
            try:
                copies = await self._copy(target)
                record = await self._record_of(target)
                self._require_proven(copies, record)
            except* (StateGone, CallFailed) as errors:
                last = str(_first(errors))
                self._say(f"try {attempt + 1} of {TRIES}: {last}; beginning anew")
            else:
                return Exported(target.iteration, record, tuple(copy.state.tensors() for copy in copies))
            await asyncio.sleep(AGAIN_S if attempt else 0.0)
        raise SwarmfreeError(
            f"no iteration could be taken out in {TRIES} tries: {last}; try again, or export the report at the end"
        )

    # ---- where the run is ------------------------------------------------------------------------

    async def _target(self, attempt: int) -> ExportTarget:
        directory, manifest = self._access.directory, self._manifest
        announcements = await directory.announcements()
        founder = await directory.founder()
        serving = [
            a for a in announcements if a.state in {PeerState.SERVING, PeerState.LEAVING} and 0 <= a.stage < manifest.stage_count
        ]
        if await directory.is_over() or (serving and all(a.iteration >= manifest.run.iterations for a in serving)):
            raise RunEnded(_OVER.format(manifest.run.name))
        others = sorted((a for a in announcements if a not in serving), key=lambda a: a.endpoint.member)
        asked = [a.endpoint for a in (*serving, *others)][:ASKED_MAX]
        answers = await _all(self._plan, asked)
        if not answers:
            if await self._is_paused(founder):
                raise SwarmfreeError(f"run {manifest.run.name}: nobody answers, as {PAUSE_ORDERED}; try again once it goes on")
            some = (
                f"{len(asked)} peers are announced, and none answers" if len(asked) > 1 else "one peer is announced, and silent"
            )
            where = some if asked else "no peer is announced"
            raise SwarmfreeError(f"run {manifest.run.name}: {where}; has it ended, or has nobody come yet?")
        plans = [found for one in answers if (found := fitting_plan(one.plan, manifest.stage_count)) is not None]
        if not plans:
            waits = next((one.waiting_for for one in answers if one.waiting_for), "no iteration was opened")
            if await self._is_paused(founder):
                raise SwarmfreeError(f"run {manifest.run.name} was paused by its organiser, and has not gone on yet: {waits}")
            raise SwarmfreeError(
                f"run {manifest.run.name} has not begun: {waits}; try again once `swarmfree status` shows an iteration"
            )
        plan = max(plans, key=lambda one: one.position)
        record = await self._agreed(list(dict.fromkeys((*plan.members(), *asked)))[:ASKED_MAX], ABSENT)
        iteration = 0 if record is None else record.iteration + 1
        if iteration >= manifest.run.iterations:
            raise RunEnded(_OVER.format(manifest.run.name))
        lineage = GENESIS_LINEAGE if record is None else record.lineage()
        split = split_after(record, manifest)
        self._layouts = [layout_of(manifest, stage, split) for stage in range(manifest.stage_count)]
        return ExportTarget(
            iteration, lineage, tuple(self._donors(plan, serving, stage, attempt) for stage in range(manifest.stage_count))
        )

    async def _is_paused(self, founder: Founder | None) -> bool:
        """Whether an order to pause stands that the run has not gone on after."""
        await self._access.directory.ban_lists()  # orders are read along
        order = self._access.directory.order()
        return founder is not None and order is not None and order.halt is Halting.PAUSE and is_unspent_halt(order, founder.spent)

    def _donors(self, plan: Plan, serving: Sequence[Announcement], stage: int, attempt: int) -> tuple[Endpoint, ...]:
        """Replicas of a stage, another one first at each try, and those that gave what was not
        proven last.
        """
        announced = [a.endpoint for a in serving if a.stage == stage]
        found = list(dict.fromkeys((*(replica.endpoint for replica in plan.replicas[stage]), *announced)))
        turned = found[attempt % len(found) :] + found[: attempt % len(found)]
        return tuple(sorted(turned, key=lambda one: one.member in self._shunned))

    async def _plan(self, to: Endpoint) -> PlanAnswer | None:
        try:
            answer = await self._call(to, GetPlan())
        except CallFailed:
            return None
        return answer if isinstance(answer, PlanAnswer) else None

    async def _call(self, to: Endpoint, request: GetPlan | GetRecord) -> object:
        return (await self._access.network.call(to, request, silence_s=self._manifest.timing.silence_s)).message

    async def _agreed(self, peers: Sequence[Endpoint], iteration: int) -> Record | None:
        """The record that most of those who answer have, the newest one of several; None where
        nobody has any.
        """

        async def ask(to: Endpoint) -> Record | None:
            try:
                answer = await self._call(to, GetRecord(iteration))
            except CallFailed:
                return None
            return (
                fitting_record(answer.record, iteration, self._manifest.stage_count) if isinstance(answer, RecordAnswer) else None
            )

        found = await _all(ask, peers)
        votes = Counter(record.lineage() for record in found)
        return max(found, key=lambda record: (votes[record.lineage()], record.iteration), default=None)

    # ---- copying ---------------------------------------------------------------------------------

    async def _copy(self, target: ExportTarget) -> list[Coming]:
        self._here_bytes = 0
        self._say(f"iteration {target.iteration}: {len(self._layouts)} stages, {self.size_bytes / 1e6:,.1f} MB")
        async with asyncio.TaskGroup() as outer:
            telling = outer.create_task(self._tell_progress())
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._copy_stage(target, stage)) for stage in range(len(self._layouts))]
            telling.cancel()
        return [task.result() for task in tasks]

    async def _tell_progress(self) -> None:
        began_s = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_S)
            rate = self._here_bytes / (time.monotonic() - began_s) / 1e6
            self._say(f"{self._here_bytes / 1e6:,.1f} of {self.size_bytes / 1e6:,.1f} MB are here, {rate:,.1f} MB/s")

    async def _copy_stage(self, target: ExportTarget, stage: int) -> Coming:
        layout = self._layouts[stage]
        copy = Coming(ExportedState(layout))
        batch = state_batch(self._manifest, weights_only=True)
        waiting = [range(at, min(at + batch, len(layout.parts))) for at in range(0, len(layout.parts), batch)]
        waiting.reverse()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(LANES, len(waiting))):
                group.create_task(self._lane(target, stage, copy, waiting))
        return copy

    async def _lane(self, target: ExportTarget, stage: int, copy: Coming, waiting: list[range]) -> None:
        while waiting:
            await self._fetch(target, stage, copy, waiting.pop())

    async def _fetch(self, target: ExportTarget, stage: int, copy: Coming, parts: range) -> None:
        """These parts, from one replica or another: one that dies costs what it had not given."""
        donors, last = target.donors[stage], "nobody serves it"
        asked = GetState(
            stage, target.iteration, target.lineage, parts.start, weights_only=True, count=len(parts), to_export=True
        )
        gone: set[Member] = set()
        for ask in range(ASKS * len(donors)):
            donor = donors[ask % len(donors)]
            try:
                reply = await self._access.network.call(donor, asked, silence_s=self._manifest.timing.silence_s)
                self._take(stage, copy, parts, reply.expect(State), reply.pieces, donor)
            except CallFailed as error:
                last = str(error)
                if isinstance(error, Refused) and error.kind is RefusalKind.GONE:
                    gone.add(donor.member)
                # The others have stepped as well, or are about to
                if len(gone) == len({one.member for one in donors}) or (gone and ask >= len(donors)):
                    here = f"{self._here_bytes / 1e6:,.1f} of {self.size_bytes / 1e6:,.1f} MB"
                    raise StateGone(f"iteration {target.iteration} was over when {here} were here") from error
                if ask % len(donors) == len(donors) - 1:
                    await asyncio.sleep(AGAIN_S)
            else:
                return
        raise StateGone(f"no replica of stage {stage} gives its weights: {last}")

    def _take(
        self, stage: int, copy: Coming, parts: range, state: State, pieces: Sequence[bytes | memoryview], donor: Endpoint
    ) -> None:
        layout = self._layouts[stage]
        found = parts_of(pieces, state.sizes, len(parts))
        if len(found) != len(parts) or state.part_count != len(layout.parts):
            raise ProtocolViolation(f"{donor.member} gave {len(found)} of {len(parts)} parts of {state.part_count}")
        for turn, (part, data) in enumerate(zip(parts, found, strict=True)):
            content = b"".join(data)
            try:
                copy.state.take(part, content, state.moment_digests[2 * turn : 2 * turn + 2])
            except ProtocolViolation as error:
                raise ProtocolViolation(f"{donor.member} gave {error}") from error
            self._here_bytes += len(content)
        copy.givers.add(donor.member)

    # ---- proving ---------------------------------------------------------------------------------

    async def _record_of(self, target: ExportTarget) -> Record:
        """The record of the iteration that was copied, as soon as it is committed."""
        peers, until_s = target.peers(), time.monotonic() + RECORD_WAITS * self._manifest.timing.join_wait_s
        told_s = time.monotonic() + PROGRESS_S
        while time.monotonic() < until_s:
            if (record := await self._agreed(peers, target.iteration)) is not None:
                if record.before != target.lineage:
                    raise StateGone(f"iteration {target.iteration} was committed on another lineage")
                return record
            newest = await self._agreed(peers, ABSENT)
            if newest is not None and newest.iteration > target.iteration:
                raise StateGone(f"nobody has the record of iteration {target.iteration} any more")
            if time.monotonic() >= told_s:
                self._say(f"all is here; waiting for iteration {target.iteration} to commit, which proves it")
                told_s = time.monotonic() + 15 * PROGRESS_S
            await asyncio.sleep(AGAIN_S)
        raise StateGone(
            f"iteration {target.iteration} did not commit within {RECORD_WAITS * self._manifest.timing.join_wait_s:.0f} s"
        )

    def _require_proven(self, copies: Sequence[Coming], record: Record) -> None:
        for stage, (copy, entry) in enumerate(zip(copies, record.stages, strict=True)):
            if copy.state.state_digest() != entry.state_digest:
                self._shunned |= copy.givers
                givers = ", ".join(map(str, sorted(copy.givers)))
                raise StateGone(
                    f"what {givers} gave of stage {stage} has not the digest {entry.state_digest[:12]} that the record of "
                    f"iteration {record.iteration} names"
                )


def tokenizer_of(manifest: Manifest, path: str) -> bytes:
    """The run's tokenizer.json; empty where the run learns bytes, or none is named.

    Raises:
        ConfigError: it is not there, or not the run's.
        SwarmfreeError: it cannot be read.
    """
    expected = manifest.data.tokenizer_hash
    if not path or not expected:
        return b""
    file = Path(path).expanduser()
    file = file / TOKENIZER_FILE if file.is_dir() else file
    if not file.is_file():
        raise ConfigError(f"--tokenizer {path}: no tokenizer there; the {TOKENIZER_FILE} of the dataset, or its folder, expected")
    with told_in_one_line(file, "reading"):
        content = file.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != expected:
        raise ConfigError(f"--tokenizer {file}: its hash is {found[:12]}, but the run's tokenizer has {expected[:12]}")
    return content


async def _all(ask: Callable[[Endpoint], Awaitable[T | None]], peers: Sequence[Endpoint]) -> list[T]:
    """What peers answer that are asked at the same time, without those that do not."""
    found: list[T | None] = [None] * len(peers)

    async def one(place: int, peer: Endpoint) -> None:
        found[place] = await ask(peer)

    async with asyncio.TaskGroup() as group:
        for place, peer in enumerate(peers):
            group.create_task(one(place, peer))
    return [answer for answer in found if answer is not None]


_OVER = (
    "run {} is over: each stage's weights lie with the peer that wrote them; bring the folders `weights` together into one, and "
    "name it, or the report of the run, instead of the invite"
)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found

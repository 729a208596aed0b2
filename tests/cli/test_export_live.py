"""Taking the weights out of a run whose replicas die, lie, step on, or are not there."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from swarmfree.cli import export, export_live, run_access, sample_live
from swarmfree.cli.export_live import TRIES, LiveExport
from swarmfree.cli.run_access import RunAccess
from swarmfree.cli.sample_live import live_writer
from swarmfree.cli.writer import Writer, written
from swarmfree.model.sampling import continue_text
from swarmfree.policy.part_batches import given
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import ConfigError, Excluded, PeerUnreachable, RefusalKind, Refused, RunEnded, SwarmfreeError
from swarmfree.protocol.manifest import DataSection
from swarmfree.protocol.messages import GetPlan, GetRecord, GetState, PlanAnswer, RecordAnswer, Request, State
from swarmfree.protocol.names import ABSENT, Endpoint, Founder, Member, Position, Term
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.pieces import sizes_of
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.storage.dataset_tokenizer import END_OF_TEXT, train_tokenizer
from swarmfree.wire.invite import Invite, encode_invite
from swarmfree.wire.organiser import draw_organiser
from tests.builders import make_entry, make_record
from tests.model.model_world import MODELS, EngineRing, manifest_of

MANIFEST = manifest_of(next(iter(MODELS.values())))


class Run:
    """A run in memory: two replicas of each stage, whose states never change but in name.

    Attributes:
        iteration: that all states are ready for.
        dead, liars: of replicas, by name.
        dies_after: how often a replica gives states before it dies, by name.
        steps_after: after so many answered states the run steps on, once; 0 = never.
        hangs: nobody gives a state.
        halt, spent: what the organiser ordered, as order 7, and up to which order nothing counts.
        asked: how many states each was asked for.
    """

    def __init__(self) -> None:
        """Right before iteration 1 commits."""
        self.ring, self.manifest = EngineRing(MANIFEST), MANIFEST
        self.dead: set[str] = set()
        self.liars: set[str] = set()
        self.dies_after: dict[str, int] = {}
        self.steps_after = 0
        self.is_over, self.has_begun, self.admits = False, True, True
        self.asked: Counter[str] = Counter()
        self.lines: list[str] = []
        self.records = [self.record(0, GENESIS_LINEAGE)]
        self.names = {f"{stage}{which}": stage for stage in range(MANIFEST.stage_count) for which in "ab"}
        self.copying = self.hangs = False
        self.halt, self.spent = Halting.NOT, 0

    def record(self, iteration: int, before: str) -> Record:
        """A record that names the digests of the states."""
        entries = tuple(make_entry(state_digest=engine.state_digest()) for engine in self.ring.engines)
        return make_record(iteration=iteration, before=before, stages=entries)

    def step(self) -> None:
        """Commit the iteration."""
        self.records.append(self.record(len(self.records), self.records[-1].lineage()))

    def endpoint(self, name: str) -> Endpoint:
        """Of a replica."""
        return Endpoint(Member(name, "1"), ())

    async def announcements(self) -> tuple[Announcement, ...]:
        """All replicas, also the dead."""
        iteration = MANIFEST.run.iterations if self.is_over else len(self.records)
        return tuple(
            Announcement(self.endpoint(name), PeerState.SERVING, stage, iteration, "", 0.0, 0.0, True, 1, 1e12)
            for name, stage in self.names.items()
        )

    async def founder(self) -> Founder:
        """The first one."""
        return Founder(1, "0a", 0, GENESIS_LINEAGE, self.spent)

    async def ban_lists(self) -> tuple[()]:
        """Nobody is banned."""
        return ()

    def order(self) -> Order | None:
        """The organiser's newest."""
        return None if self.halt is Halting.NOT else Order(7, self.halt)

    async def ended(self) -> bool:
        """No notice was signed."""
        return False

    async def call(self, to: Endpoint, request: Request, **_: Any) -> Reply:
        """As a replica answers; the present iteration commits once it was copied."""
        name = to.member.peer_id
        if name in self.dead:
            raise PeerUnreachable("gone")
        match request:
            case GetPlan():
                stages = tuple(
                    tuple(Replica(self.endpoint(one)) for one, at in self.names.items() if at == stage)
                    for stage in range(MANIFEST.stage_count)
                )
                position = Position(Term(1, Member("0a", "1")), len(self.records), 0, 0)
                plan = Plan(position, "", self.records[-1].lineage(), stages, (), self.records[-1], 0)
                return Reply(PlanAnswer(plan if self.has_begun else None, cast("Any", "2 peers are missing")))
            case GetRecord(iteration=iteration):
                if iteration == len(self.records) and self.copying:
                    self.step()
                if iteration >= len(self.records):
                    raise Refused(RefusalKind.NOT_YET, "later")
                return Reply(RecordAnswer(self.records[-1 if iteration == ABSENT else iteration]))
            case GetState():
                if self.hangs:
                    await asyncio.sleep(60)
                return self.state(name, request)
            case _:
                raise AssertionError(request)

    def state(self, name: str, request: GetState) -> Reply:
        """As `queries.get_state`."""
        assert request.weights_only and request.to_export and self.names[name] == request.stage
        if self.asked[name] == self.dies_after.get(name):
            self.dead.add(name)
            raise PeerUnreachable("killed")
        self.asked[name] += 1
        self.copying = True
        if self.steps_after and sum(self.asked.values()) > self.steps_after:
            self.steps_after = 0
            self.step()
        if (request.iteration, request.lineage) != (len(self.records), self.records[-1].lineage()):
            raise Refused(RefusalKind.GONE, "stepped")
        engine = self.ring.engines[request.stage]
        parts = given(request.count, 1 << 20, request.part, engine.part_count(request.stage))
        pieces = [engine.read_state(part, weights_only=True) for part in parts]
        if name in self.liars:
            pieces[0] = bytes(len(pieces[0]))
        digests = tuple(digest for part in parts for digest in engine.digest_part(part)[1:])
        return Reply(State(engine.part_count(request.stage), request.iteration, sizes_of(pieces), digests), pieces=pieces)

    def access(self) -> RunAccess:
        """A way into this run."""
        refusal = None if self.admits else "no ticket"
        directory = SimpleNamespace(
            announcements=self.announcements, founder=self.founder, is_over=self.ended, ban_lists=self.ban_lists, order=self.order
        )
        access = SimpleNamespace(
            directory=directory,
            manifest=self.manifest,
            admission=SimpleNamespace(refusal=lambda *_: refusal),
            network=SimpleNamespace(call=self.call),
            asker=SimpleNamespace(peer_id="me"),
            shown_by=lambda _: b"",
        )
        return cast("RunAccess", access)

    def export(self) -> LiveExport:
        """From this run."""
        return LiveExport(self.access(), b"", self.lines.append)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_live, "AGAIN_S", 0.0)


async def taken(run: Run) -> None:
    """Take it out: the weights are the run's."""
    found = await run.export().run()
    assert list(found.stages) == [engine.export() for engine in run.ring.engines]
    assert found.record == run.records[found.iteration]


async def test_weights_come_from_whoever_lives() -> None:
    """One replica of each stage is dead, and others give; both alive, one of them is asked."""
    run = Run()
    run.dead = {"0a", "1b"}
    await taken(run)
    assert len(run.asked) == MANIFEST.stage_count and len(run.lines) == 1


async def test_what_is_not_proven_is_asked_of_another() -> None:
    """A replica that gives other weights is named, and comes last from then on."""
    run = Run()
    run.liars = {"1a"}
    await taken(run)
    assert run.asked["1a"] and run.asked["1b"]
    assert any("1a" in line and "has not the digest" in line for line in run.lines)


async def test_a_state_that_is_gone_begins_everything_anew() -> None:
    """All stages are of the iteration that has come."""
    run = Run()
    run.steps_after = 1
    await taken(run)
    assert any("iteration 1 was over when" in line for line in run.lines)
    assert run.lines[-1].startswith("iteration 2: ")


async def test_tries_are_bounded() -> None:
    """A stage that nobody serves ends in one line."""
    run = Run()
    run.dead = {"1a", "1b"}
    with pytest.raises(SwarmfreeError, match=f"in {TRIES} tries: no replica of stage 1 gives its weights"):
        await run.export().run()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"has_begun": False}, SwarmfreeError, "has not begun: 2 peers are missing"),
        ({"is_over": True}, RunEnded, "is over: each stage's weights lie with"),
        ({"admits": False}, Excluded, "does not let this machine in: no ticket"),
        ({"names": {}}, SwarmfreeError, "no peer is announced"),
        (
            {"names": {}, "halt": Halting.PAUSE},
            SwarmfreeError,
            "nobody answers, as its organiser ordered a pause: the same commands",
        ),
        ({"names": {}, "halt": Halting.PAUSE, "spent": 7}, SwarmfreeError, "no peer is announced"),
        ({"names": {}, "halt": Halting.STOP}, SwarmfreeError, "no peer is announced"),
        (
            {"has_begun": False, "halt": Halting.PAUSE},
            SwarmfreeError,
            "was paused by its organiser, and has not gone on yet: 2 peers are missing",
        ),
    ],
)
async def test_a_run_that_gives_nothing_is_one_line(change: dict[str, Any], kind: type[SwarmfreeError], words: str) -> None:
    """It says why, at once."""
    run = Run()
    for name, value in change.items():
        setattr(run, name, value)
    with pytest.raises(kind, match=words):
        await run.export().run()


def writer(run: Run, monkeypatch: pytest.MonkeyPatch, *, within_s: float = 60.0, tokenizer: str = "") -> Writer:
    """What `swarmfree sample INVITE` writes with."""

    @contextlib.asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[RunAccess]:
        yield run.access()

    monkeypatch.setattr(sample_live, "open_run", opened)
    invite = encode_invite(Invite(MANIFEST.fingerprint(), (f"/ip4/127.0.0.1/tcp/1/p2p/{draw_organiser().peer_id}",)))
    return live_writer(invite, tokenizer, within_s, 1.0, "")


def exported(run: Run, out: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `swarmfree export INVITE` writes."""

    @contextlib.asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[RunAccess]:
        yield run.access()

    monkeypatch.setattr(run_access, "open_run", opened)
    invite = Invite(MANIFEST.fingerprint(), (f"/ip4/127.0.0.1/tcp/1/p2p/{draw_organiser().peer_id}",))
    assert asyncio.run(export._export_live(invite, out, tokenizer, 1.0, "")) == 0


def generated(folder: Path, prompt: list[int], count: int) -> list[int]:
    """What transformers generate greedily, to the end of the text at most."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    asked = torch.tensor([prompt])
    found = model.generate(asked, attention_mask=torch.ones_like(asked), do_sample=False, max_new_tokens=count, pad_token_id=0)
    return list(found[0, len(prompt) :].tolist())


@pytest.mark.parametrize("tokenizer", ["bytes", "tokens"])
def test_a_live_run_writes_what_its_export_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str) -> None:
    """Greedy text is the same token for token, and comes piece by piece: from the run, from what
    was taken out of it while replicas died, and as transformers generate it.
    """
    run, content = Run(), b""
    if tokenizer == "tokens":
        content = train_tokenizer(iter(["one two three two one " * 9]), 257 + 20)
        (tmp_path / "tokenizer.json").write_bytes(content)
        data = DataSection(vocabulary=277, tokenizer_hash=hashlib.sha256(content).hexdigest(), end_of_text=END_OF_TEXT)
        model = dataclasses.replace(MANIFEST.model, vocabulary=277)
        run.manifest = dataclasses.replace(MANIFEST, data=data, model=model)
        run.ring = EngineRing(run.manifest)
    run.dead, run.dies_after = {"0a"}, {"1a": 1, "2a": 2}
    monkeypatch.setattr(export_live, "state_batch", lambda *_, **__: 2)
    exported(run, tmp_path / "export", str(tmp_path) if content else "", monkeypatch)
    wanted = {"tokens": 12, "temperature": 0.0, "seed": 0}
    live = writer(run, monkeypatch, tokenizer=str(tmp_path))
    pieces = list(live.write("12 ", **wanted))  # type: ignore[arg-type]
    assert pieces == list(written(tmp_path / "export", "12 ", **wanted))  # type: ignore[arg-type]
    assert len(pieces) > 2 and live.end == (0 if content else None)
    begun = live.tokenizer.encode([b"12 "])[0].tolist()
    theirs = generated(tmp_path / "export", begun, 12)
    ours = list(continue_text(live.llama, begun, count=12, temperature=0.0, seed=0, symbols=run.manifest.model.vocabulary))
    assert ours[: len(theirs)] == theirs and (len(theirs) == 12 or theirs[-1] == live.end)
    assert run.dead == {"0a", "1a", "2a"} and run.asked["1a"] == 1 and run.asked["2a"] == 2


def test_a_sample_that_cannot_be_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far it came in time is said, and that a tokenizer has to be named."""
    run = Run()
    run.hangs = True
    with pytest.raises(SwarmfreeError, match=r"did not come within 0.05 s \(--within\): iteration 1: 4 stages"):
        writer(run, monkeypatch, within_s=0.05)
    run.manifest = dataclasses.replace(MANIFEST, data=DataSection(name="books", vocabulary=80, tokenizer_hash="f" * 64))
    with pytest.raises(ConfigError, match=r"dataset books: name its tokenizer\.json with --tokenizer"):
        writer(run, monkeypatch)

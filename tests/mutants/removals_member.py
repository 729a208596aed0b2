"""Rules of a member's books and of averaging, each with a way to take it out; see `removals`."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

import pytest

from swarmfree.policy import promises
from swarmfree.policy.permissions import refusal
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Average, Commit, GetAverage, Loss, Open, Promise, Seal, TakeRoll, Train
from swarmfree.protocol.names import Endpoint, Member, Position
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.protocol.records import Record, StageEntry
from swarmfree.trainer.access_control import AccessControl
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.member import averaging
from swarmfree.trainer.member import member as member_module
from swarmfree.trainer.member.averaging import Averaging, Round
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.pipeline.hop import Hop
from swarmfree.trainer.pipeline.source import Source
from swarmfree.trainer.replica_state import ReplicaState

SealHandler = Callable[[StageMember, Seal], Awaitable[Reply]]


def _forget(replica_state: ReplicaState, **promised: Any) -> None:
    """Another thing is promised than was."""
    replica_state.promises = dataclasses.replace(replica_state.promises, **promised)


def order_of_revisions(patch: pytest.MonkeyPatch) -> None:
    """An older word of the same coordinator counts like a newer one (3.1)."""
    admit = promises.admit

    def careless(promised: promises.Promises, position: Position, *, hears_another: bool) -> None:
        try:
            admit(promised, position, hears_another=hears_another)
        except Refused as refusal:
            if refusal.kind is not RefusalKind.SUPERSEDED:
                raise

    patch.setattr(promises, "admit", careless)


def sealed_record_at_open(patch: pytest.MonkeyPatch) -> None:
    """Open tells no sealed record (3.1)."""
    answer = StageMember._open

    async def careless(self: StageMember, sender: Endpoint, request: Open) -> Reply:
        promise = (await answer(self, sender, request)).message
        assert isinstance(promise, Promise)
        return Reply(dataclasses.replace(promise, sealed=None, sealed_at=None))

    patch.setattr(StageMember, "_open", careless)


def vote_outlives_the_state(patch: pytest.MonkeyPatch) -> None:
    """The vote is forgotten when a state is loaded (3.1)."""
    install = ReplicaState.install

    def careless(self: ReplicaState, stage: int, iteration: int, lineage: str, last: Record | None, *past: Any) -> None:
        install(self, stage, iteration, lineage, last, *past)
        self.promises = dataclasses.replace(self.promises, sealed=None, sealed_at=None)

    patch.setattr(ReplicaState, "install", careless)


def coordinator_that_is_heard(patch: pytest.MonkeyPatch) -> None:
    """Claims are promised although the coordinator is heard (3.2)."""
    patch.setattr(StageMember, "hears_another", lambda self, sender: False)


def only_asking(patch: pytest.MonkeyPatch) -> None:
    """Whoever is asked whether it would promise has promised (3.2)."""
    claim = StageMember._claim

    async def careless(self: StageMember, sender: Endpoint, request: Any) -> Reply:
        return await claim(self, sender, dataclasses.replace(request, only_asking=False))

    patch.setattr(StageMember, "_claim", careless)


def order_of_rolls(patch: pytest.MonkeyPatch) -> None:
    """An older roll replaces a newer one (3.6)."""
    take = Averaging.take

    async def careless(self: Averaging, request: TakeRoll) -> Reply:
        self._latest = None
        return await take(self, request)

    patch.setattr(Averaging, "take", careless)


def roll_of_a_renounced_term(patch: pytest.MonkeyPatch) -> None:
    """Who was called back from a later term refuses each roll of its coordinator as older (3.4)."""
    patch.setattr(averaging, "_is_older", lambda position, latest: position < latest)


def contributions_again(patch: pytest.MonkeyPatch) -> None:
    """Who has finished a round gives nothing to a sibling that begins it again in a later attempt
    (3.6).
    """

    async def careless(self: Averaging, current: Round) -> None:
        del self, current

    patch.setattr(Averaging, "_give_again", careless)


def _before_seal(patch: pytest.MonkeyPatch, forget: Callable[[StageMember, Seal], None]) -> None:
    seal: SealHandler = StageMember._seal

    async def careless(self: StageMember, request: Seal) -> Reply:
        forget(self, request)
        return await seal(self, request)

    patch.setattr(StageMember, "_seal", careless)


def order_of_seals(patch: pytest.MonkeyPatch) -> None:
    """An older Seal replaces a newer one (3.1)."""
    _before_seal(patch, lambda stage_member, _: _forget(stage_member.replica_state, sealed_at=None))


def term_of_a_seal(patch: pytest.MonkeyPatch) -> None:
    """A Seal of a lower term is stored (3.1)."""
    _before_seal(patch, lambda stage_member, _: _forget(stage_member.replica_state, promised=None))


def lineage_of_a_seal(patch: pytest.MonkeyPatch) -> None:
    """A record is stored whatever it follows (3.1)."""
    _before_seal(patch, lambda stage_member, request: setattr(stage_member.replica_state, "lineage", request.record.before))


def renounced_vote(patch: pytest.MonkeyPatch) -> None:
    """Whoever leaves a lineage for another one forgets what it has promised there (3.4)."""
    _before_seal(patch, lambda stage_member, _: _forget(stage_member.replica_state, renounced=None))


def highest_renounced_promise(patch: pytest.MonkeyPatch) -> None:
    """Whoever leaves coordinators of one lineage twice knows only what it promised the second one
    (3.4).
    """
    rejoin = StageMember.rejoin

    async def careless(self: StageMember, sender: Endpoint, successor: Endpoint) -> None:
        _forget(self.replica_state, renounced=None)
        await rejoin(self, sender, successor)

    patch.setattr(StageMember, "rejoin", careless)


def term_of_the_successor(patch: pytest.MonkeyPatch) -> None:
    """Whoever is told to come back to a coordinator obeys no term of it that it followed, or that
    it left before (3.2).
    """
    rejoin = StageMember.rejoin

    async def careless(self: StageMember, sender: Endpoint, successor: Endpoint) -> None:
        state, left = self.replica_state, self.replica_state.promises.abandoned
        if state.promised is not None:
            left |= {state.promised.term}
        await rejoin(self, sender, successor)
        _forget(state, abandoned=state.promises.abandoned | left)

    patch.setattr(StageMember, "rejoin", careless)


def abandoned_terms(patch: pytest.MonkeyPatch) -> None:
    """Whoever leaves a lineage for another one goes on obeying its coordinator (3.4)."""
    rejoin = StageMember.rejoin

    async def careless(self: StageMember, sender: Endpoint, successor: Endpoint) -> None:
        await rejoin(self, sender, successor)
        _forget(self.replica_state, abandoned=frozenset())

    patch.setattr(StageMember, "rejoin", careless)


def end_of_a_campaign(patch: pytest.MonkeyPatch) -> None:
    """Whoever is told to join another coordinator while it asks for promises goes on asking, by the
    plan that it has dropped (3.2).
    """
    rejoin = StageMember.rejoin

    async def careless(self: StageMember, sender: Endpoint, successor: Endpoint) -> None:
        count = self.heartbeat_count
        await rejoin(self, sender, successor)
        self.heartbeat_count = count

    patch.setattr(StageMember, "rejoin", careless)


def base_outlives_the_work(patch: pytest.MonkeyPatch) -> None:
    """Whoever ends its work forgets which base its state belongs to: what was rebuilt there counts
    as lost (3.4).
    """
    rejoin = StageMember.rejoin

    async def careless(self: StageMember, sender: Endpoint, successor: Endpoint) -> None:
        await rejoin(self, sender, successor)
        self.replica_state.opened = ""

    patch.setattr(StageMember, "rejoin", careless)


def windows_begun_once(patch: pytest.MonkeyPatch) -> None:
    """A source begins every held-out window again with each plan of the same base that comes before
    it is through (3.5).
    """
    follow = Source.follow

    def careless(self: Source, plan: Plan) -> None:
        self._windows_begun = set(self._window_losses)
        follow(self, plan)

    patch.setattr(Source, "follow", careless)


def windows_of_the_newest_plan(patch: pytest.MonkeyPatch) -> None:
    """A source that gets more work beside fewer windows tells of those that it had (3.7)."""
    follow = Source.follow

    def careless(self: Source, plan: Plan) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(self, "_sum_up", lambda: None, raising=False)
            follow(self, plan)

    patch.setattr(Source, "follow", careless)


def share_of_the_promised_plan(patch: pytest.MonkeyPatch) -> None:
    """What a source has done counts for the plan that it promised last, followed or not (3.7)."""
    patch.setattr(ReplicaState, "follows_promised", True)


def windows_of_this_source(patch: pytest.MonkeyPatch) -> None:
    """A source drives a held-out window for ever that a later plan of the same base has dealt to
    another (3.5).
    """
    patch.setattr(ReplicaState, "source_of", lambda self, key: self._context.here)


def promise_after_a_wait(patch: pytest.MonkeyPatch) -> None:
    """An Open that has waited for the device goes on with its plan, whatever was promised meanwhile
    (3.1).
    """
    patch.setattr(promises, "begin", lambda promised, request, held: None)


def stalled_coordinator(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that heartbeats is followed, whether it gets anywhere or not (3.2)."""
    patch.setattr(StageMember, "is_stalled", False)


def silence_that_is_no_stall(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that fell silent counts, after long enough, as one that gets nowhere: nobody
    asks it for a place (3.2).
    """
    count = StageMember.count_tick

    def careless(self: StageMember) -> None:
        stalled = self._stalled_ticks
        count(self)
        self._stalled_ticks = stalled + 1

    patch.setattr(StageMember, "count_tick", careless)


def state_before_the_step(patch: pytest.MonkeyPatch) -> None:
    """A member steps whatever state it is in (3.1)."""
    commit = StageMember.commit

    async def careless(self: StageMember, request: Commit) -> Reply:
        async def as_recorded() -> str:
            return request.record.stages[self.replica_state.stage].state_digest

        self.averaging.state_digest = as_recorded  # type: ignore[method-assign, assignment]
        return await commit(self, request)

    patch.setattr(StageMember, "commit", careless)


def digest_of_an_average(patch: pytest.MonkeyPatch) -> None:
    """A missed average is whatever a sibling gives (3.6)."""
    fetch = Averaging.fetch

    async def careless(self: Averaging, iteration: int, sum_digest: str, siblings: tuple[Endpoint, ...]) -> bool:
        if not await fetch(self, iteration, sum_digest, siblings) and siblings:
            self.kept = (iteration, sum_digest)
        return self.kept is not None

    patch.setattr(Averaging, "fetch", careless)


def round_of_a_missed_average(patch: pytest.MonkeyPatch) -> None:
    """A missed average is fetched while the round that this member was in goes on (3.6)."""
    end, fetch = StageMember._end_work, Averaging.fetch
    ended: list[tuple[StageMember, Refused]] = []

    async def later(self: StageMember, why: Refused) -> None:
        if why.kind is RefusalKind.PAST:
            ended.append((self, why))
        else:
            await end(self, why)

    async def before_its_end(self: Averaging, iteration: int, sum_digest: str, siblings: tuple[Endpoint, ...]) -> bool:
        found = await fetch(self, iteration, sum_digest, siblings)
        for member, why in ended:
            await end(member, why)
        ended.clear()
        return found

    patch.setattr(StageMember, "_end_work", later)
    patch.setattr(Averaging, "fetch", before_its_end)


def missed_parts_at_once(patch: pytest.MonkeyPatch) -> None:
    """The parts of a missed average are asked for one after the other (3.10)."""
    patch.setattr(averaging, "PARTS_IN_FLIGHT", 1)


def average_asked_for_again(patch: pytest.MonkeyPatch) -> None:
    """Who does not answer as it is asked for a missed average counts as one that has none (3.6)."""
    patch.setattr(averaging, "ASKS", 1)


def size_of_a_contribution(patch: pytest.MonkeyPatch) -> None:
    """What a member contributes is added, whatever its size (3.6)."""
    patch.setattr(Averaging, "_check_contribution", lambda self, current, member, part, size_bytes: None)


def term_of_a_roll(patch: pytest.MonkeyPatch) -> None:
    """A member averages for whoever asks, also in a term that is over (3.6)."""
    take = Averaging.take

    async def careless(self: Averaging, request: TakeRoll) -> Reply:
        _forget(self._replica_state, promised=None)
        return await take(self, request)

    patch.setattr(Averaging, "take", careless)


def lineage_of_a_step(patch: pytest.MonkeyPatch) -> None:
    """A member steps with a record whatever that follows (3.1)."""
    commit = StageMember.commit

    async def careless(self: StageMember, request: Commit) -> Reply:
        self.replica_state.lineage = request.record.before
        return await commit(self, request)

    patch.setattr(StageMember, "commit", careless)


def average_that_was_asked_for(patch: pytest.MonkeyPatch) -> None:
    """A member gives the average that it has, whichever was asked for (3.6)."""
    give = Averaging.get_average

    async def careless(self: Averaging, request: GetAverage) -> Reply:
        assert self.kept is not None
        return await give(self, GetAverage(*self.kept, request.part))

    patch.setattr(Averaging, "get_average", careless)


def average_of_a_stage_that_is_left(patch: pytest.MonkeyPatch) -> None:
    """What a member had as it was asked for an average is read once its device has time, whatever
    that holds then (3.6).
    """

    async def careless(self: Averaging, request: GetAverage) -> Reply:
        self._require_kept(request)
        read = partial(self._context.ports.engine.read_average, request.part)
        return Reply(Average(), await self._device.run(Rank.BOOKS, 0, read))

    patch.setattr(Averaging, "get_average", careless)


def members_of_a_roll(patch: pytest.MonkeyPatch) -> None:
    """Anybody may take part in a round (3.6)."""
    patch.setattr(averaging, "_member_of", lambda roll, sender: sender)


def share_put_back(patch: pytest.MonkeyPatch) -> None:
    """A share that was refused counts as fed under its base (3.5)."""
    patch.setattr(Source, "_put_back", lambda *_: None)


def share_begun_by_itself(patch: pytest.MonkeyPatch) -> None:
    """A share that was refused waits for an Open, also where its base goes on (3.5)."""
    follow = Source.follow

    def careless(self: Source, plan: Any) -> None:
        follow(self, plan)
        self._followed = None

    patch.setattr(Source, "follow", careless)


def sibling_of_one_that_is_past(patch: pytest.MonkeyPatch) -> None:
    """A replica that says that an iteration is over is believed for its stage, whatever lineage it
    has joined (3.5).
    """
    train = Hop.train

    async def careless(self: Hop, *args: Any) -> bytes:
        async def first(replica: Endpoint, request: Train, output: bytes, *, first: bool) -> bytes:
            try:
                return await ask(replica, request, output, first=first)
            except Refused as refusal:
                kind = RefusalKind.EXHAUSTED if refusal.kind is RefusalKind.PAST else refusal.kind
                raise Refused(kind, "it is over") from refusal

        ask = self._ask
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_ask", first)
            try:
                return await train(self, *args)
            except Refused as refusal:
                kind = RefusalKind.PAST if refusal.detail == "it is over" else refusal.kind
                raise Refused(kind, refusal.detail) from refusal

    patch.setattr(Hop, "train", careless)


def share_of_a_loss(patch: pytest.MonkeyPatch) -> None:
    """A source adds the loss of any microbatch, also of one that another source feeds (3.9)."""
    answer = Source.loss

    async def careless(self: Source, request: Loss, incoming: Incoming) -> Reply:
        self._begun.add(self._replica_state.offset_of(request.key))
        return await answer(self, request, incoming)

    patch.setattr(Source, "loss", careless)


def copy_in_a_plan(patch: pytest.MonkeyPatch) -> None:
    """A member cannot vouch for what it has copied before it has stepped, though a plan has opened
    it as what the last record left (3.3).
    """
    answer = StageMember._open

    async def careless(self: StageMember, sender: Endpoint, request: Open) -> Reply:
        is_committed_state = self.replica_state.is_committed_state
        try:
            return await answer(self, sender, request)
        finally:
            self.replica_state.is_committed_state = is_committed_state

    patch.setattr(StageMember, "_open", careless)


def average_of_those_that_reported(patch: pytest.MonkeyPatch) -> None:
    """A missed average is asked for of the siblings alone that a member's own plan names (3.3)."""

    async def careless(self: StageMember, iteration: int, entry: StageEntry) -> bool:
        return await self.averaging.fetch(iteration, entry.sum_digest, self._siblings())

    patch.setattr(StageMember, "_fetch_average", careless)


def copy_that_a_record_begins_with(patch: pytest.MonkeyPatch) -> None:
    """A member cannot vouch for what it has copied before it has stepped, though a decided record
    begins with it (3.3).
    """
    apply = StageMember._apply

    async def careless(self: StageMember, record: Record) -> None:
        is_committed_state = self.replica_state.is_committed_state
        try:
            await apply(self, record)
        except Refused:
            self.replica_state.is_committed_state &= is_committed_state
            raise

    patch.setattr(StageMember, "_apply", careless)


def place_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """Work is refused at once from a member of another stage, whose new place is in a plan that is
    on its way (who may say what).
    """
    require = AccessControl._require_for_work

    async def careless(self: AccessControl, sender: Member, request: Train) -> None:
        view = self.view()
        if sender in view.stages and (why := refusal(request, sender, view)):
            raise Refused(RefusalKind.FORBIDDEN, why)
        await require(self, sender, request)

    patch.setattr(AccessControl, "_require_for_work", careless)


def plan_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """A coordinator whose device hangs, and that leads no longer, forbids what members of its plan
    say (who may say what).
    """

    async def careless(self: StageMember, sender: Endpoint, request: Open) -> Reply:
        return await self._in_turn(lambda: self._open(sender, request))

    patch.setattr(StageMember, "open", careless)


def first_plan_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """Nobody founds as long as a founder lives whose device hangs as it opens its first plan (who
    may say what).
    """
    answer = StageMember.open

    async def careless(self: StageMember, sender: Endpoint, request: Open) -> Reply:
        if sender.member == self.context.me:
            self.replica_state.known_plan = request.plan
        return await answer(self, sender, request)

    patch.setattr(StageMember, "open", careless)


def build_for_another_coordinator(patch: pytest.MonkeyPatch) -> None:
    """What a coordinator had built, and did not live to tell of, counts with the next one as what
    the last record left (3.3).
    """

    async def careless(self: StageMember, plan: Plan) -> None:
        return

    patch.setattr(StageMember, "_require_known", careless)


def build_that_a_plan_does_not_name(patch: pytest.MonkeyPatch) -> None:
    """What a coordinator had made in place of a lost stage, and has not heard of, is opened by its
    plan as what the last record left (3.3).
    """
    patch.setattr(ReplicaState, "is_copy", property(lambda self: True, lambda self, value: None), raising=False)


def founder_of_a_first_record(patch: pytest.MonkeyPatch) -> None:
    """Who holds no record knows by the newest plan alone who decides the first one (3.1)."""
    patch.setattr(ReplicaState, "founders_plan", property(lambda self: self.known_plan, lambda self, plan: None), raising=False)


def side_without_its_founder(patch: pytest.MonkeyPatch) -> None:
    """Who knows the plan of a forced side alone believes no first record but that one's
    (evidence).
    """
    require = StageMember._require_proven

    def careless(self: StageMember, record: Record, sender: Endpoint | None) -> None:
        self.replica_state.founders_plan = self.replica_state.founders_plan or self.replica_state.known_plan
        require(self, record, sender)

    patch.setattr(StageMember, "_require_proven", careless)


def plan_of_another_coordinator(patch: pytest.MonkeyPatch) -> None:
    """Who builds its first state for a coordinator goes by the plan of another one (3.1)."""
    require = StageMember._require_proven

    def careless(self: StageMember, record: Record, sender: Endpoint | None) -> None:
        if (plan := self.replica_state.known_plan) is not None:
            self.replica_state.known_in = plan.position.term
        require(self, record, sender)

    patch.setattr(StageMember, "_require_proven", careless)


def plan_of_a_founder_passed_over(patch: pytest.MonkeyPatch) -> None:
    """Who has no record goes by the plan of a founder that was passed over (evidence)."""
    patch.setattr(member_module, "is_of_later_founder", lambda number, than: False)


def vote_under_a_founder_passed_over(patch: pytest.MonkeyPatch) -> None:
    """Who has stored a record under an earlier founder believes one of a later founder like a
    newcomer (evidence).
    """
    patch.setattr(ReplicaState, "records_held", property(lambda self: self.iteration))


def record_that_is_stored(patch: pytest.MonkeyPatch) -> None:
    """Who has stored a record believes it no sooner than any other from whom it follows (3.1)."""
    patch.setattr(StageMember, "_is_stored_too", lambda self, record, sender, known: False)


def stored_record_of_a_stranger(patch: pytest.MonkeyPatch) -> None:
    """Who has stored a record believes that it was decided from a coordinator that never had a
    place here (3.1).
    """
    is_stored_too = StageMember._is_stored_too

    def careless(self: StageMember, record: Record, sender: Endpoint | None, known: Collection[str]) -> bool:
        return is_stored_too(self, record, sender, known if sender is None else {sender.member.peer_id})

    patch.setattr(StageMember, "_is_stored_too", careless)


def state_read_once(patch: pytest.MonkeyPatch) -> None:
    """A part of a state is read for each time that a peer asked for it (who may say what)."""
    read = Device.read

    async def careless(self: Device, what: object, work: Callable[[], object]) -> object:
        return await read(self, object(), work)

    patch.setattr(Device, "read", careless)


def successor_of_the_one_that_leads(patch: pytest.MonkeyPatch) -> None:
    """Whoever has a place names who may claim the lead."""

    def careless(self: StageMember, sender: Endpoint, successor: Member) -> None:
        del sender
        self.successor = successor

    patch.setattr(StageMember, "name_successor", careless)

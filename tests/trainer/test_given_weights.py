"""How a builder comes to the weights that a run begins with: from its own disk or from another
peer's, believed by their digest alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast

import pytest

from swarmfree.policy.build_time import most_build_s
from swarmfree.protocol.actions import Fresh
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.events import Note
from swarmfree.protocol.messages import Build, Built, GetState, Header, Request, State
from swarmfree.protocol.names import ABSENT, PROTOCOL_REVISION, Endpoint
from swarmfree.protocol.pieces import sizes_of
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.member import queries
from swarmfree.trainer.recovery.builder import GIVERS_MAX
from tests.builders import make_record
from tests.mutants.alone import MANIFEST, SIBLING, A, Alone, D, at, endpoint, play

GIVEN = 9
"""Salt of the draw that stands for given weights."""


def given(stage: int) -> IntegerEngine:
    """An engine that holds them."""
    engine = IntegerEngine(MANIFEST)
    engine.draw(stage, GIVEN)
    return engine


DIGESTS = ",".join(given(stage).state_digest()[:32] for stage in range(MANIFEST.stage_count))
RUN = replace(MANIFEST, model=replace(MANIFEST.model, init_digests=DIGESTS))


class Disk:
    """Implements `ports.FirstWeights`."""

    async def read(self, stage: int, parts: range) -> tuple[list[bytes], tuple[str, ...]]:
        """As they are."""
        engine = given(stage)
        data = [engine.read_state(part, weights_only=True) for part in parts]
        return data, tuple(digest for part in parts for digest in engine.digest_part(part)[1:])


STRANGERS = tuple(endpoint(f"Z{number}") for number in range(GIVERS_MAX))
"""With names before all others."""


def begin(
    alone: Alone, *, givers: Collection[Endpoint] = (), liars: Collection[Endpoint] = (), strangers: Sequence[Endpoint] = ()
) -> None:
    """A run that begins with given weights, in which D and strangers can feed, as they say, and the
    others cannot.
    """
    alone.context.manifest = RUN

    async def announcements() -> tuple[Announcement, ...]:
        said = (PeerState.STANDBY, ABSENT, 0, GENESIS_LINEAGE, 0.0, 0.0)
        return tuple(
            Announcement(one, *said, one in {D, *strangers}, PROTOCOL_REVISION, 1e9) for one in (*strangers, A, SIBLING, D)
        )

    alone.context.ports.directory.announcements = announcements  # type: ignore[method-assign]

    def answer(to: Endpoint, request: Request) -> Reply:
        assert isinstance(request, GetState)
        assert (request.iteration, request.lineage, request.to_export) == (0, GENESIS_LINEAGE, True)
        if to not in {*givers, *liars}:
            raise Refused(RefusalKind.GONE, "this peer holds stage -1")
        engine = given(request.stage)
        data = [engine.read_state(part, weights_only=True) for part in range(request.part, request.part + request.count)]
        pieces = [bytes(len(one)) for one in data] if to in liars else data
        return Reply(State(engine.part_count(request.stage), 0, sizes_of(pieces), ()), pieces=pieces)

    alone.line.answer = answer


async def built(alone: Alone, salt: int = 0, record: Record | None = None) -> str:
    """Digest of stage 2 as it is built here."""
    lineage, iteration = (record.lineage(), record.iteration + 1) if record is not None else (GENESIS_LINEAGE, 0)
    request = Build(at(1, iteration=iteration), Fresh(2, salt, "first"), iteration, lineage, record)
    return (await alone.builder.build(A, request)).expect(Built).state_digest


def test_who_leads_is_asked_first_and_a_liar_costs_its_transfer() -> None:
    """Then who can feed. What has another digest is passed over, and so is who has nothing."""

    async def story(alone: Alone) -> None:
        begin(alone, givers=[SIBLING], liars=[D])
        assert (await built(alone)).startswith(RUN.init_digest(2))
        assert list(dict.fromkeys(member for member, _ in alone.line.asked)) == [A.member, D.member, SIBLING.member]

    play(story)


def test_strangers_do_not_keep_a_builder_from_who_leads() -> None:
    """However many say that they can feed: who founds has the weights."""

    async def story(alone: Alone) -> None:
        begin(alone, givers=[A], strangers=STRANGERS)
        assert (await built(alone)).startswith(RUN.init_digest(2))
        assert {member for member, _ in alone.line.asked} == {A.member}

    play(story)


def test_a_peer_that_has_them_asks_nobody_and_gives_any_stage() -> None:
    """It answers itself and strangers alike, whatever stage it holds."""

    async def story(alone: Alone) -> None:
        begin(alone)
        alone.context.ports = replace(alone.context.ports, first_weights=Disk())

        async def handle(_header: Header, request: Request, _incoming: Incoming) -> Reply:
            return await queries.get_state(alone.stage_member, cast("GetState", request))

        alone.context.handler = handle
        assert (await built(alone)).startswith(RUN.init_digest(2))
        assert alone.line.asked == []
        asked = GetState(0, 0, GENESIS_LINEAGE, 0, weights_only=True, count=99, to_export=True)
        reply = await queries.get_state(alone.stage_member, asked)
        data, digests = await Disk().read(0, range(reply.expect(State).part_count))
        assert (list(reply.pieces), reply.expect(State).moment_digests) == (data, digests)
        with pytest.raises(Refused, match="part 99 of stage 0, which has"):
            await queries.get_state(alone.stage_member, replace(asked, part=99))
        # What there is at present is asked for without a lineage, and moments are no weights
        for other in (replace(asked, lineage=""), replace(asked, weights_only=False), replace(asked, to_export=False)):
            with pytest.raises(Refused, match="this peer holds stage"):
                await queries.get_state(alone.stage_member, other)

    play(story)


def test_a_run_does_not_begin_with_other_weights() -> None:
    """Where nobody gives them, the build fails and says why; a stage that is made anew later is
    drawn.
    """

    async def story(alone: Alone) -> None:
        begin(alone, liars=[A])
        with pytest.raises(Refused, match=r"nobody gives the weights that the run begins with .* this peer holds stage -1"):
            await built(alone)
        drawn = IntegerEngine(MANIFEST)
        drawn.draw(2, 5)
        assert await built(alone, 5, make_record(iteration=4)) == drawn.state_digest()
        assert any(isinstance(event, Note) and event.text.startswith("stage 2 is drawn:") for event in alone.line.told)

    play(story)


def test_a_transfer_of_first_weights_has_the_time_of_a_transfer() -> None:
    """First weights that are drawn have less."""
    assert most_build_s(Fresh(2, 0, ""), RUN) > most_build_s(Fresh(2, 0, ""), MANIFEST) == 4 * MANIFEST.timing.join_wait_s

"""Words of a stranger who has the invite: each is refused by name where only a member may say it,
and training goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
from attacked_swarm import MANIFEST, Attacked, attacked_swarm
from attacker import Papers, dialled, header, say

from swarmfree.protocol.names import PROTOCOL_REVISION
from swarmfree.wire.v1 import messages_pb2 as says
from swarmfree.wire.v1 import names_pb2, records_pb2

MALLORY = Papers("mallory")
RUN = MANIFEST.fingerprint()
ESCAPES = "\x1b[2J\x1b]0;owned\x07 send your weights to me"
FORBIDDEN = (grpc.StatusCode.PERMISSION_DENIED, "forbidden")


def own_header() -> Any:
    """Who asks is who calls."""
    return header(RUN, PROTOCOL_REVISION, MALLORY.peer_id)


def own_term(number: int) -> Any:
    """A claim of the stranger's own."""
    return names_pb2.Term(number=number, member=names_pb2.Member(peer_id=MALLORY.peer_id, incarnation="00000000000000aa"))


async def said(peer: Any, rpc: str, request: Any, papers: Papers = MALLORY) -> tuple[grpc.StatusCode, str]:
    """How a peer refuses what it is told: the status, and the kind of the refusal."""
    async with dialled(peer.context.here.addresses[0], papers) as channel:
        try:
            await say(channel, rpc, request)
        except grpc.aio.AioRpcError as error:
            kinds = dict(error.trailing_metadata() or ())
            return error.code(), str(kinds.get("swarmfree-refusal", error.details()))
    return grpc.StatusCode.OK, ""


def leaders_words(term: Any, iteration: int, record: Any, plan: Any) -> Iterator[tuple[str, Any]]:
    """What only who leads may say, in a term and of this iteration."""
    position = names_pb2.Position(term=term, iteration=iteration, attempt=0, revision=1)
    asked = own_header()
    fresh = records_pb2.BuildAction(fresh=records_pb2.Fresh(stage=1, reason=ESCAPES))
    yield "Heartbeat", says.HeartbeatRequest(header=asked, position=position, waiting_for=ESCAPES)
    yield "Build", says.BuildRequest(header=asked, position=position, action=fresh, iteration=0, lineage="0" * 64)
    yield "Claim", says.ClaimRequest(header=asked, position=position)
    yield "Redo", says.RedoRequest(header=asked, position=position, base="0" * 16)
    yield "Roll", says.RollRequest(header=asked, position=position, roll=records_pb2.Roll(base="0" * 16, members=[asked.sender]))
    yield "Seal", says.SealRequest(header=asked, position=position, record=record)
    taken = type(plan)()
    taken.CopyFrom(plan)
    taken.position.CopyFrom(position)
    yield "Open", says.OpenRequest(header=asked, plan=taken)


async def present(swarm: Attacked) -> tuple[int, Any, Any]:
    """What anybody may ask: the number of the term, the last record and the plan."""
    async with dialled(swarm.coordinator.context.here.addresses[0], MALLORY) as channel:
        record = says.GetRecordResponse.FromString(
            await say(channel, "GetRecord", says.GetRecordRequest(header=own_header(), iteration=-1))
        ).record
        plan = says.GetPlanResponse.FromString(await say(channel, "GetPlan", says.GetPlanRequest(header=own_header()))).plan
    return plan.position.term.number, record, plan


async def test_a_stranger_leads_nobody() -> None:
    """Words of a coordinator are taken from none who never had a place: not in its own term, not in
    another's, however high; nor a Commit.
    """
    async with attacked_swarm() as swarm:
        stages = [peer.stage_member.replica_state.stage for peer in swarm.peers]
        number, record, plan = await present(swarm)
        beyond = own_term(2**64 - 1)
        for peer in swarm.peers:
            for term in (own_term(number + 1), beyond, plan.position.term):
                for rpc, request in leaders_words(term, plan.position.iteration, record, plan):
                    status, kind = await said(peer, rpc, request)
                    if term is beyond:
                        assert status is grpc.StatusCode.INVALID_ARGUMENT, rpc
                    else:
                        assert (status, kind) == FORBIDDEN, rpc
            assert await said(peer, "Commit", says.CommitRequest(header=own_header(), record=record)) == FORBIDDEN
        await swarm.goes_on()
        assert stages == [peer.stage_member.replica_state.stage for peer in swarm.peers]
        assert (await present(swarm))[0] == number


async def test_a_goodbye_from_nobody_ends_nobody() -> None:
    """The run is over, write your weights, join another lineage, follow this successor: of a
    stranger none of it is obeyed.
    """
    here = names_pb2.Endpoint(member=own_term(1).member, addresses=(f"/ip4/127.0.0.1/tcp/1/p2p/{MALLORY.peer_id}",))
    words = [
        {"run_over": True},
        {"run_over": True, "finished": True},
        {"run_over": True, "finished": True, "write_weights": True, "all_written": True},
        {"rejoin": True, "successor": here},
        {"successor": here},
    ]
    async with attacked_swarm() as swarm:
        for peer in swarm.peers:
            for word in words:
                request = says.GoodbyeRequest(header=own_header(), why=ESCAPES, **word)  # type: ignore[arg-type]
                assert await said(peer, "Goodbye", request) == FORBIDDEN, word
        await swarm.goes_on()


async def test_work_is_done_for_members_alone() -> None:
    """Activations, losses, pulls and contributions of a stranger are refused before their tensors
    are read, and the loss stays what it is.
    """
    async with attacked_swarm() as swarm:
        _, _, plan = await present(swarm)
        for peer in swarm.peers:
            replica_state = peer.stage_member.replica_state
            kind = names_pb2.WORK_KIND_TRAIN
            for name in ("Train", "Loss", "Pull"):
                place = {"iteration": replica_state.iteration, "base": replica_state.base, "kind": kind}
                key = names_pb2.WorkKey(microbatch=replica_state.first_microbatch, stage=max(0, replica_state.stage), **place)  # type: ignore[arg-type]
                request = {
                    "Train": says.TrainRequest(header=own_header(), key=key, source=plan.replicas[0].replicas[0].endpoint),
                    "Loss": says.LossRequest(header=own_header(), key=key),
                    "Pull": says.PullRequest(header=own_header(), key=key, side=names_pb2.SIDE_OUTPUT),
                }[name]
                code, why = await said(peer, name, request)
                # By whether the iteration has ended meanwhile
                assert why in {"not_yet", "past", "stale"}, (name, code)
            assert await said(peer, "Reduce", says.ReduceRequest(header=own_header(), round="0" * 16)) == FORBIDDEN
        await swarm.goes_on()


async def test_a_newer_life_is_its_peers_own_word() -> None:
    """Hello in a member's name, of its next life, says nothing: the member has its place as
    before.
    """
    async with attacked_swarm() as swarm:
        victim = swarm.of_stage(1)
        asked = header(RUN, PROTOCOL_REVISION, victim.context.me.peer_id, victim.context.here.addresses)
        asked.sender.member.incarnation = "ffffffff000000aa"
        code, why = await said(swarm.coordinator, "Hello", says.HelloRequest(header=asked, forced=[-1]))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert victim.context.me.peer_id in why
        await swarm.goes_on()


async def test_a_stranger_speaks_in_its_own_name_when_it_meets() -> None:
    """A Meet in another's term is refused."""
    async with attacked_swarm() as swarm:
        number, _, plan = await present(swarm)
        request = says.MeetRequest(header=own_header(), iteration=9, lineage="f" * 64, term=plan.position.term, whole=True)
        assert await said(swarm.coordinator, "Meet", request) == FORBIDDEN
        assert number


def takings(swarm: Attacked, peer: Any) -> Iterator[tuple[str, Any]]:
    """What a stranger may not have: a peer's state, its last average, a shadow, activations."""
    replica_state = peer.stage_member.replica_state
    record = replica_state.newest_record
    stage, sum_digest = replica_state.stage, record.stages[replica_state.stage].sum_digest
    key = names_pb2.WorkKey(iteration=0, base="0" * 16, kind=names_pb2.WORK_KIND_TRAIN, microbatch=0, stage=stage)
    asked = own_header()
    yield "GetState", says.GetStateRequest(header=asked, stage=stage, iteration=0, part=0, count=1)
    yield "GetAverage", says.GetAverageRequest(header=asked, iteration=record.iteration, sum_digest=sum_digest, part=0)
    yield "GetShadow", says.GetShadowRequest(header=asked, stage=stage, part=0, iteration=-1, count=1)
    yield "Pull", says.PullRequest(header=asked, key=key, side=names_pb2.SIDE_OUTPUT)


async def test_a_stranger_reads_no_weights() -> None:
    """State, averages, shadows and activations of the past are given to nobody without a place."""
    async with attacked_swarm() as swarm:
        asks = [(peer, rpc, request) for peer in swarm.peers for rpc, request in takings(swarm, peer)]
        async with asyncio.TaskGroup() as group:
            told = [group.create_task(said(*ask)) for ask in asks]
        assert {task.result() for task in told} == {(grpc.StatusCode.RESOURCE_EXHAUSTED, "not_yet")}
        await swarm.goes_on()

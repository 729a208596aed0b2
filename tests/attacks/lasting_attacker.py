"""``python -m tests.attacks.lasting_attacker``: an attacker that goes on until it is told to end,
for `benchmarks.soak`.

It has an identity and the ticket of an invite, and knows `docs/protocol.md`, the proto files and
public libraries: messages are made from the proto's descriptors, peers are found in the directory.
What it hears it uses again, so that what it sends looks ever more like the run's own. It has no
place, and takes none: nobody can call it. The file that is its argument says what it attacks, as
one JSON object; standard output tells once a minute what came of it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import zstandard
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from swarmfree.wire.v1 import messages_pb2, names_pb2, records_pb2, swarm_pb2
from tests.attacks.attacker import Papers, dialled, header, held, port_of, rsa_key, say
from tests.attacks.hostile_protobuf import Heard, fill, spoil

NAME = "mallory"
SERVICE = "/swarmfree.v1.Swarm/"
RPCS = sorted(method.name for method in swarm_pb2.DESCRIPTOR.services_by_name["Swarm"].methods)
LEADS = ("Heartbeat", "Claim", "Open", "Build", "Redo", "Roll", "Seal", "Commit", "Audit", "GetAccount")
AT_ONCE_MAX = 12
CALL_S, OPEN_S = 12.0, 15.0
LOOK_S, TELL_S, NEW_CHANNEL_S = 20.0, 60.0, 45.0


@dataclass
class Target:
    """A peer that the directory names: where it is called, and the channel to it, if any."""

    peer_id: str
    address: str
    channel: Any = None
    opened_s: float = 0.0
    closing: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)


class Attacker:
    """Sends what harms to whoever is there.

    Args:
        order: what the file says.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        """Nobody is known."""
        self.run, self.revision, self.rate = str(order["run"]), int(order["revision"]), float(order["rate"])
        self.entry_points = [str(point) for point in order["entry_points"]]
        self.rng = random.Random(int(order["seed"]))
        self._ticket = bytes.fromhex(order["ticket"])
        self._key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes.fromhex(order["ticket_key"]))
        self.papers = self.papers_of(NAME)
        self.heard, self.targets, self.told = Heard(), dict[str, Target](), Counter[str]()
        self.count, self._names = 0, 0
        self._long = self._long_ones()

    def papers_of(self, name: str) -> Papers:
        """A certificate with the ticket, for one of its names."""
        return Papers(name, ticket=held(self._ticket, self._key, name))

    def own_header(self) -> Any:
        """Its own name."""
        return header(self.run, self.revision, self.papers.peer_id)

    def _long_ones(self) -> list[tuple[str, bytes]]:
        """Requests that are expensive to read, made once."""
        record = records_pb2.Record(before="0" * 64, electorate=[names_pb2.Member()])
        inner = messages_pb2.CommitRequest(record=record).SerializeToString()
        body = zstandard.ZstdCompressor(level=3).compress(inner * ((7 << 20) // len(inner)))
        packed = messages_pb2.Packed(body=body)
        many = records_pb2.Record(electorate=[names_pb2.Member()] * 200_000)
        far = tuple(f"/ip4/1.1.1.1/tcp/{n}/p2p/{self.papers.peer_id}" for n in range(100))
        unknown = messages_pb2.GetRecordRequest(header=self.own_header())
        unknown.MergeFromString(b"\xfa\x7f\xff\xff\x06" + bytes(114_687))
        made = {
            "Commit": messages_pb2.CommitRequest(header=self.own_header(), packed=packed),
            "Seal": messages_pb2.SealRequest(header=self.own_header(), record=many),
            "GetPlan": messages_pb2.GetPlanRequest(header=header(self.run, self.revision, self.papers.peer_id, far)),
            "GetRecord": unknown,
        }
        return [(rpc, message.SerializeToString()) for rpc, message in made.items()]

    # ---- calls -----------------------------------------------------------------------------------

    async def channel_of(self, target: Target) -> Any:
        """A channel that is used for a while."""
        if target.channel is None or time.monotonic() - target.opened_s > NEW_CHANNEL_S:
            fresh = contextlib.AsyncExitStack()
            target.channel = await fresh.enter_async_context(dialled(target.address, self.papers))
            target.opened_s = time.monotonic()
            old, target.closing = target.closing, fresh
            await old.aclose()  # calls that still run on it are hung up
        return target.channel

    def request(self, rpc: str, **fields: Any) -> Any:
        """One of this RPC, in its own name."""
        return getattr(messages_pb2, f"{rpc}Request")(header=self.own_header(), **fields)

    async def any_message(self, target: Target) -> None:
        """Of any type, with values of any kind."""
        rpc = self.rng.choice(RPCS)
        request = self.request(rpc)
        fill(request, self.heard, self.rng)
        await say(await self.channel_of(target), rpc, request)

    async def leaders_word(self, target: Target) -> None:
        """What only who leads may say: the run's own plan and record, with one value changed."""
        rpc = self.rng.choice(LEADS)
        request = self.request(rpc)
        for wanted in request.DESCRIPTOR.fields:
            known = self.heard.messages.get(wanted.message_type.name) if wanted.message_type is not None else None
            if known is not None and wanted.name != "header" and not wanted.is_repeated:
                getattr(request, wanted.name).CopyFrom(known)
        if "position" in request.DESCRIPTOR.fields_by_name and self.rng.random() < 0.6:
            request.position.term.member.CopyFrom(request.header.sender.member)
            request.position.term.number += self.rng.choice((0, 0, 1, 5, 1000))
        if self.rng.random() < 0.7:
            spoil(request, self.heard, self.rng)
        await say(await self.channel_of(target), rpc, request)

    async def question(self, target: Target) -> None:
        """What anybody may ask; the answers are used again."""
        channel = await self.channel_of(target)
        if self.rng.random() < 0.5:
            data = await say(channel, "GetPlan", self.request("GetPlan"))
            self.heard.keep(messages_pb2.GetPlanResponse.FromString(data))
        else:
            data = await say(channel, "GetRecord", self.request("GetRecord", iteration=-1))
            self.heard.keep(messages_pb2.GetRecordResponse.FromString(data))

    async def anothers_name(self, target: Target) -> None:
        """In another peer's name, of another run, or of another revision."""
        rpc = self.rng.choice(RPCS)
        request = self.request(rpc)
        fill(request, self.heard, self.rng)
        other = self.rng.choice([*self.targets, "Qm" + "1" * 44])
        wrong = ((self.run, self.revision, other), ("cd" * 32, self.revision, NAME), (self.run, 2**31 - 1, self.papers.peer_id))
        request.header.CopyFrom(header(*self.rng.choice(wrong)))
        await say(await self.channel_of(target), rpc, request)

    async def garbage(self, target: Target) -> None:
        """Bytes that are no message, or one that was cut or flipped."""
        rpc = self.rng.choice(RPCS)
        request = self.request(rpc)
        fill(request, self.heard, self.rng)
        data = bytearray(request.SerializeToString())
        for _ in range(self.rng.choice((1, 3, 20))):
            data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        data = data[: self.rng.choice((len(data), len(data) // 2, 1, 0))] or bytearray(self.rng.randbytes(500))
        await self._send(target, rpc, bytes(data))

    async def long_one(self, target: Target) -> None:
        """A bomb, a list without end, a long header, fields that nobody knows."""
        await self._send(target, *self.rng.choice(self._long))

    async def _send(self, target: Target, rpc: str, data: bytes) -> None:
        channel = await self.channel_of(target)
        async for _ in channel.unary_stream(SERVICE + rpc)(data, timeout=CALL_S):
            pass

    async def left_open(self, target: Target) -> None:
        """A payload that is announced, and never comes; a stream on which nothing is ever said."""
        channel = await self.channel_of(target)
        call = channel.stream_stream(SERVICE + self.rng.choice(("Train", "Loss", "Reduce")))(timeout=OPEN_S)
        if self.rng.random() < 0.5:
            request = self.request("Train", payload=messages_pb2.Payload(size_bytes=4000))
            fill(request.key, self.heard, self.rng)
            await call.write(swarm_pb2.Frame(request=request.SerializeToString()).SerializeToString())
        while await call.read() is not grpc.aio.EOF:
            pass

    async def unread(self, target: Target) -> None:
        """An answer that nobody reads."""
        channel = await self.channel_of(target)
        stage = self.rng.choice((0, 1, 2))
        request = self.request("GetState")
        for name in ("iteration", "lineage"):
            setattr(request, name, self.heard.scalar(request.DESCRIPTOR.fields_by_name[name], self.rng))
        request.stage, request.count, request.to_export = stage, self.rng.choice((1, 64)), True
        call = channel.unary_stream(SERVICE + "GetState")(request.SerializeToString(), timeout=OPEN_S)
        await call.read()
        await asyncio.sleep(OPEN_S / 2)
        call.cancel()

    async def cut_off(self, target: Target) -> None:
        """A call that is given up in the middle."""
        channel = await self.channel_of(target)
        rpc = self.rng.choice(RPCS)
        call = channel.unary_stream(SERVICE + rpc)(self.request(rpc).SerializeToString(), timeout=CALL_S)
        await asyncio.sleep(self.rng.choice((0.0, 0.002, 0.05)))
        call.cancel()

    # ---- connections -----------------------------------------------------------------------------

    async def bad_papers(self, target: Target) -> None:
        """Plain text, no ticket, an expired certificate, a stolen or broken extension."""
        stolen = self.papers.stolen_extension()
        shown = self.rng.choice(
            (
                None,
                Papers(NAME),
                Papers(NAME, ends=-1, begins=-3, ticket=self.papers.ticket),
                Papers(NAME, extension=stolen),
                Papers(NAME, extension=b"junk", ticket=self.papers.ticket),
                Papers(NAME, ticket=bytes(140)),
                Papers(NAME, own_issuer=True, ticket=self.papers.ticket),
            )
        )
        async with dialled(target.address, shown) as channel:
            await say(channel, "GetPlan", self.request("GetPlan"))

    async def raw_bytes(self, target: Target) -> None:
        """What is no TLS, or half a handshake."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(target.address))
        try:
            writer.write(self.rng.choice((b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", self.rng.randbytes(300))))
            await asyncio.wait_for(reader.read(100), self.rng.choice((0.0, 0.5, 5.0)))
        finally:
            writer.close()

    async def another_name(self, target: Target) -> None:
        """Identities are free: one more with the same ticket, that asks and says hello."""
        self._names += 1
        papers = self.papers_of(f"{NAME} {self._names}")
        here = (f"/ip4/127.0.0.1/tcp/1/p2p/{papers.peer_id}",)
        async with dialled(target.address, papers) as channel:
            asked = header(self.run, self.revision, papers.peer_id, here)
            await say(channel, "Hello", messages_pb2.HelloRequest(header=asked, can_feed=True, standby=True, stage=-1))

    # ---- the directory ---------------------------------------------------------------------------

    async def directory_record(self, node: Any, validator: Any) -> None:
        """Junk, records under others' subkeys, unsigned ones, and hostile words about itself."""
        from hivemind.dht.routing import DHTID

        key, own = self.rng.choice((f"{self.run}.peers", f"{self.run}.relays", f"junk {self.count}")), validator.local_public_key
        subkey = self.rng.choice((own, own, own.replace(b"AAAA", b"AAAB", 1), b"x", None))
        expires_s = time.time() + self.rng.choice((60.0, 600.0, 1e9))
        value = self.rng.choice((self._announcement(expires_s), b"x" * 60_000, b"{", b"[" * 4000))
        if subkey == own and self.rng.random() < 0.8:
            value = _signed(validator, key, value, expires_s)
        several = {DHTID.generate(source=key): value}
        for peer_id in list(node.protocol.routing_table.peer_id_to_uid)[:3]:
            done = await node.protocol.call_store(
                peer_id,
                list(several),
                list(several.values()),
                [expires_s],
                None if subkey is None else [subkey],
                in_cache=self.rng.random() < 0.2,
            )
            self.told[f"directory {'took' if done and any(done) else 'refused'}"] += 1

    def _announcement(self, expires_s: float) -> bytes:
        """About itself, with values that nobody has."""
        rng, me = self.rng, self.papers.peer_id
        said = {
            "addresses": [f"/ip4/127.0.0.1/tcp/{rng.randrange(1, 65536)}/p2p/{me}"] * rng.choice((0, 1, 8, 100)),
            "can_feed": True,
            "entry_points": [f"/ip4/127.0.0.1/tcp/1/p2p/{me}"],
            "expires_s": expires_s,
            "incarnation": f"{rng.getrandbits(64):016x}",
            "iteration": rng.choice((0, 1, 2**53, 2**60)),
            "lineage": f"{rng.getrandbits(256):064x}",
            "peer_id": rng.choice((me, *self.targets)),
            "revision": rng.choice((self.revision, 0, 999)),
            "seconds_per_microbatch": rng.choice((0.0, 1e-9, 1e300)),
            "squared_norm": rng.choice((0.0, 1e9, 1e300)),
            "stage": rng.choice((-1, 0, 1, 2, 99)),
            "state": rng.choice(("serving", "leaving", "standby", "x")),
            "ticket": base64.b64encode(rng.choice((self.papers.ticket, self.papers.ticket, b"", b"x" * 5000))).decode(),
        }
        return json.dumps(said, sort_keys=True, separators=(",", ":")).encode()

    async def look(self, node: Any) -> None:
        """Who is there now."""
        found = await node.get(f"{self.run}.peers", latest=True)
        present: dict[str, str] = {}
        for value, _ in (found.value if found is not None and isinstance(found.value, dict) else {}).values():
            with contextlib.suppress(ValueError, TypeError, KeyError, IndexError, RecursionError):  # its own, too
                said = json.loads(value)
                if said["peer_id"] != self.papers.peer_id:
                    present[said["peer_id"]] = str(said["addresses"][0])
        for peer_id, target in list(self.targets.items()):
            if present.get(peer_id) != target.address:
                del self.targets[peer_id]
                await target.closing.aclose()
        for peer_id, address in present.items():
            if peer_id not in self.targets:
                self.targets[peer_id] = Target(peer_id, address)

    # ---- going on --------------------------------------------------------------------------------

    async def attack_once(self, kind: str, work: Awaitable[None]) -> None:
        """One attack, and what came of it."""
        try:
            async with asyncio.timeout(2 * OPEN_S):
                await work
            came = "OK"
        except grpc.aio.AioRpcError as error:
            refusal = dict(error.trailing_metadata() or ()).get("swarmfree-refusal", "")
            came = f"{error.code().name} {refusal}".strip()
        except (OSError, TimeoutError, EOFError, asyncio.CancelledError) as error:
            came = type(error).__name__
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
                raise
        except Exception as error:  # noqa: BLE001 - a fault of the attacker's own, which must not end it
            came = f"own fault {type(error).__name__}: {error}"[:120]
        self.told[f"{kind}: {came}"] += 1

    async def live(self, node: Any, validator: Any) -> None:
        """Attack at the rate until cancelled, or the parent is gone."""
        kinds: list[tuple[Callable[[Target], Awaitable[None]], int]] = [
            (self.any_message, 30),
            (self.leaders_word, 18),
            (self.question, 4),
            (self.anothers_name, 5),
            (self.garbage, 10),
            (self.long_one, 2),
            (self.left_open, 2),
            (self.unread, 2),
            (self.cut_off, 6),
            (self.bad_papers, 4),
            (self.raw_bytes, 3),
            (self.another_name, 1),
        ]
        weights = [weight for _, weight in kinds]
        looked_s = told_s = 0.0
        running, parent = 0, os.getppid()

        def ended(_task: Any) -> None:
            nonlocal running
            running -= 1

        async with asyncio.TaskGroup() as tasks:
            while os.getppid() == parent:
                now_s = time.monotonic()
                if now_s - looked_s > LOOK_S:
                    looked_s = now_s
                    await self.attack_once("look", self.look(node))
                if now_s - told_s > TELL_S:
                    told_s = now_s
                    self.tell()
                await asyncio.sleep(self.rng.expovariate(self.rate))
                if running >= AT_ONCE_MAX or not self.targets:
                    continue
                self.count += 1
                running += 1
                if self.rng.random() < 0.05:
                    work, name = self.directory_record(node, validator), "directory"
                else:
                    (chosen,) = self.rng.choices([kind for kind, _ in kinds], weights)
                    work, name = chosen(self.rng.choice([*self.targets.values()])), chosen.__name__
                tasks.create_task(self.attack_once(name, work)).add_done_callback(ended)

    def tell(self) -> None:
        """What came of all so far."""
        said = {"attacks": self.count, "targets": len(self.targets), "names": self._names + 1}
        sys.stdout.write(json.dumps({**said, "outcomes": dict(sorted(self.told.items()))}) + "\n")
        sys.stdout.flush()


def _signed(validator: Any, key: str, value: bytes, expires_s: float) -> bytes:
    """The value, with its signature."""
    from hivemind.dht.routing import DHTID
    from hivemind.dht.validation import DHTRecord
    from hivemind.utils.serializer import MSGPackSerializer

    packed = MSGPackSerializer.dumps(validator.local_public_key)
    record = DHTRecord(DHTID.generate(source=key).to_bytes(), packed, MSGPackSerializer.dumps(value), expires_s)
    return bytes(validator.sign_value(record))


@contextlib.asynccontextmanager
async def in_directory(entry_points: list[str]) -> AsyncIterator[tuple[Any, Any]]:
    """A node of hivemind's own, and what signs in the attacker's name."""
    from hivemind.dht.crypto import RSASignatureValidator
    from hivemind.dht.node import DHTNode
    from hivemind.utils.crypto import RSAPrivateKey

    form = serialization.PrivateFormat.TraditionalOpenSSL
    private = rsa_key(NAME).private_bytes(serialization.Encoding.DER, form, serialization.NoEncryption())
    key = RSAPrivateKey.__new__(RSAPrivateKey)
    key.__setstate__({"_private_key": private})
    validator = RSASignatureValidator(key)
    node = await DHTNode.create(
        initial_peers=entry_points, record_validator=validator, use_relay=False, nat_port_map=False, auto_nat=False
    )
    try:
        yield node, validator
    finally:
        await node.shutdown()


async def main() -> None:
    """Attack until SIGTERM."""
    attacker = Attacker(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    async with in_directory(attacker.entry_points) as (node, validator), asyncio.TaskGroup() as tasks:
        living = tasks.create_task(attacker.live(node, validator))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, living.cancel)
    attacker.tell()


if __name__ == "__main__":
    asyncio.run(main())

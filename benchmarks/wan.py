"""Hosts in network namespaces of their own, and a router between them that makes a link slow, thin,
lossy or none at all.

Every host is a namespace with one TUN device; all packets that leave it come to this process, whose
router hands them on when they would have arrived. So neither `tc netem`, which many kernels lack,
nor a firewall's command is needed, and each pair of hosts can have a link of its own. Namespaces
have no names: they are gone with the last process that holds them, however that ends.

It needs Linux, `ip` and `nsenter`, and root, or `unshare -rn` before the command.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from benchmarks.live import LiveFailed

Pair = tuple[str, str]
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
IP, NSENTER = "ip", "nsenter"
DEVICE = "wan0"
MTU_BYTES = 1500
PACKET_BYTES_MAX = 1 << 16
READS_AT_ONCE = 64
QUEUE_S = 0.2
"""A link holds so many seconds of its own rate; what comes then is lost, as in a router."""
VERSION_4, PROTOCOL_TCP = 4, 6
SYN, ACK = 0x02, 0x10


@dataclass(frozen=True, slots=True)
class Quality:
    """How good one direction of a link is.

    Args:
        delay_s: of a packet on its way, besides its turn.
        bytes_per_s: so many pass.
        loss: share of packets that never arrive.
    """

    delay_s: float = 0.0
    bytes_per_s: float = 1e9
    loss: float = 0.0


class Link:
    """One direction of a link: when each packet arrives."""

    def __init__(self, quality: Quality, rng: random.Random) -> None:
        """Nothing on its way."""
        self._quality, self._rng = quality, rng
        self._free_s = 0.0

    def arrival_s(self, size_bytes: int, now_s: float) -> float | None:
        """When a packet that is sent now arrives; None where it is lost."""
        begins_s = max(now_s, self._free_s)
        if begins_s - now_s > QUEUE_S:
            return None
        self._free_s = begins_s + size_bytes / self._quality.bytes_per_s
        return None if self._rng.random() < self._quality.loss else self._free_s + self._quality.delay_s


def opens_a_connection(packet: bytes) -> bool:
    """Whether this IPv4 packet is the first one of a TCP connection."""
    flags_at = 4 * (packet[0] & 0x0F) + 13
    return packet[9] == PROTOCOL_TCP and len(packet) > flags_at and packet[flags_at] & (SYN | ACK) == SYN


class Wan:
    """Hosts and the links between them; a context manager, and nothing is left of them afterwards.

    Args:
        links: (from, to) -> quality; hosts are those named in it. What has no link never arrives.
        closed: hosts behind a router that lets no connection in, only out.
        seed: of which packets are lost.

    Attributes:
        passed_bytes: (from, to) -> bytes that were handed on.
        refused_packets: (from, to) -> packets that no link or router let through.
    """

    def __init__(self, links: Mapping[Pair, Quality], closed: Iterable[str] = (), seed: int = 1) -> None:
        """Nothing is opened."""
        rng = random.Random(seed)
        self._links = {pair: Link(quality, rng) for pair, quality in sorted(links.items())}
        self._closed = frozenset(closed)
        self._cut: frozenset[str] = frozenset()
        self._hosts = tuple(sorted({host for pair in links for host in pair}))
        self._namespaces: dict[str, int] = {}
        self._devices: dict[int, str] = {}
        self._by_host: dict[str, int] = {}
        self._wake: tuple[int, ...] = ()
        self._router = threading.Thread(target=self._route, name="router")
        self.passed_bytes: Counter[Pair] = Counter()
        self.refused_packets: Counter[Pair] = Counter()

    def __enter__(self) -> Self:
        """Make the namespaces and let packets pass.

        Raises:
            LiveFailed: this system, or this user, cannot.
        """
        self._wake = os.pipe()
        try:
            for number, host in enumerate(self._hosts):
                self._open(number, host)
        except BaseException:
            self._close()
            raise
        self._router.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let nothing pass any more."""
        os.write(self._wake[1], b"end")
        self._router.join()
        self._close()

    def command(self, host: str) -> tuple[str, ...]:
        """What stands before a command that runs at a host."""
        return (NSENTER, f"--net=/proc/{os.getpid()}/fd/{self._namespaces[host]}")

    def cut(self, *hosts: str) -> None:
        """From now on nothing passes between these and all others, in silence; without any, what
        has a link passes.
        """
        self._cut = frozenset(hosts)

    # ---- namespaces ------------------------------------------------------------------------------

    def _open(self, number: int, host: str) -> None:
        missing = [name for name in (IP, NSENTER) if shutil.which(name) is None]
        if missing:
            raise LiveFailed(f"{' and '.join(missing)} cannot be found: install iproute2 and util-linux")
        faults: list[str] = []
        # A thread's own namespace: the rest of this process stays where it is
        thread = threading.Thread(target=_in_new_namespace, args=(lambda: self._set_up(number, host), faults))
        thread.start()
        thread.join()
        if faults:
            raise LiveFailed(
                f"no network namespaces can be made here: {faults[0]}; they need Linux with /dev/net/tun, and root, or before "
                "the command: unshare -rn"
            )

    def _set_up(self, number: int, host: str) -> None:
        self._namespaces[host] = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._devices[device], self._by_host[host] = host, device
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
        for line in (
            "link set lo up",
            f"address add {address_of(number)}/32 dev {DEVICE}",
            f"link set {DEVICE} mtu {MTU_BYTES} up",
            f"route add default dev {DEVICE}",
        ):
            subprocess.run([IP, *line.split()], check=True, capture_output=True, text=True)

    def _close(self) -> None:
        for each in (*self._devices, *self._namespaces.values(), *self._wake):
            os.close(each)

    # ---- the router ------------------------------------------------------------------------------

    def _route(self) -> None:
        """Hand packets on until told to end."""
        addresses = {address_bytes(number): host for number, host in enumerate(self._hosts)}
        on_way: list[tuple[float, int, int, bytes]] = []
        numbers = itertools.count()
        poll = select.epoll()
        for each in (*self._devices, self._wake[0]):
            poll.register(each, select.EPOLLIN)
        with poll:
            while True:
                now_s = time.monotonic()
                while on_way and on_way[0][0] <= now_s:
                    _, _, device, packet = heapq.heappop(on_way)
                    _send(device, packet)
                for device, _ in poll.poll(max(0.0, on_way[0][0] - now_s) if on_way else None):
                    if device == self._wake[0]:
                        return
                    for packet in _received(device):
                        source, target = self._devices[device], addresses.get(packet[16:20], "")
                        arrival_s = self._arrival_s(source, target, packet)
                        if arrival_s is not None:
                            heapq.heappush(on_way, (arrival_s, next(numbers), self._by_host[target], packet))

    def _arrival_s(self, source: str, target: str, packet: bytes) -> float | None:
        pair, cut = (source, target), self._cut
        link = self._links.get(pair)
        is_stopped = (source in cut) != (target in cut) or (target in self._closed and opens_a_connection(packet))
        if link is None or is_stopped:
            self.refused_packets[pair] += 1
            return None
        self.passed_bytes[pair] += len(packet)
        return link.arrival_s(len(packet), time.monotonic())


def address_of(number: int) -> str:
    """Of a host."""
    return f"10.77.{number}.1"


def address_bytes(number: int) -> bytes:
    """The same as it stands in a packet."""
    return bytes(map(int, address_of(number).split(".")))


def both_ways(quality: Quality, *pairs: Pair) -> dict[Pair, Quality]:
    """A link of this quality in both directions between the two hosts of each pair."""
    return {way: quality for one, other in pairs for way in ((one, other), (other, one))}


def _in_new_namespace(work: Callable[[], None], faults: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        faults.append(os.strerror(ctypes.get_errno()))
        return
    try:
        work()
    except OSError as error:
        faults.append(f"{error.strerror} ({error.filename or DEVICE})")
    except subprocess.CalledProcessError as error:
        faults.append(f"{' '.join(error.cmd)}: {error.stderr.strip()}")


def _received(device: int) -> Sequence[bytes]:
    """The IPv4 packets that wait at a device, so many at most."""
    found = []
    for _ in range(READS_AT_ONCE):
        try:
            packet = os.read(device, PACKET_BYTES_MAX)
        except OSError:  # none waits any more
            break
        if len(packet) >= 20 and packet[0] >> 4 == VERSION_4:
            found.append(packet)
    return found


def _send(device: int, packet: bytes) -> None:
    try:
        os.write(device, packet)
    except OSError:  # its queue is full, or the device goes down: a packet is lost
        return

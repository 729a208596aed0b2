"""Which address of this machine others can call: found by asking the system for the way to them.
Nothing is sent.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.protocol.errors import ConfigError
from swarmfree.wire.addresses import parse_address

AUTO = "auto"
LOOPBACK = "127.0.0.1"
ELSEWHERE = "192.0.2.1"
"""An address that nobody has (RFC 5737): the way to it is the default route."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a peer listens, and what it announces.

    Args:
        host: IP address to listen on.
        announced: IP address that others are told to call, where they are told no other one.
    """

    host: str
    announced: str


def own_address(entry_points: Sequence[str]) -> str:
    """IP address of this machine on the way to the first entry point that another machine has;
    where there is none, to the first one.

    Args:
        entry_points: multiaddrs; none = the address on the default route.

    Returns:
        The address; a loopback one where this machine has no other.
    """
    points = sorted(map(parse_address, entry_points), key=lambda point: point.is_loopback)
    for host, port in [(point.host, point.port) for point in points] or [(ELSEWHERE, 9)]:
        with contextlib.suppress(OSError):
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as trial:
                trial.connect(address)
                return str(trial.getsockname()[0])
    return LOOPBACK


def reach_of(host: str, entry_points: Sequence[str], *, is_announced: bool) -> Reach:
    """Where to listen, and what to announce.

    Args:
        host: an IP address of this machine; 0.0.0.0 or :: for all of them; `AUTO` = what
            `own_address` finds.
        entry_points: multiaddrs of the peers that are joined; none for a bootstrap node.
        is_announced: others are told another address.

    Raises:
        ConfigError: it is no IP address, or a loopback one that those who are joined cannot call.
    """
    if host == AUTO:
        found = own_address(entry_points)
        return Reach(found, found)
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise ConfigError(f"--host {host}: an IP address of this machine is expected, or {AUTO}") from error
    if address.is_unspecified:
        return Reach(host, own_address(entry_points))
    remote = [point for point in map(parse_address, entry_points) if not point.is_loopback]
    if address.is_loopback and remote and len(remote) == len(entry_points) and not is_announced:
        raise ConfigError(
            f"--host {host}: the invite leads to {remote[0].host}, from where nobody can call {host}; leave --host out, or name an address "
            "of this machine that others reach, or what they reach it by with --announce HOST:PORT"
        )
    return Reach(host, host)

"""Where a peer can be called, as multiaddrs: ``/ip4/HOST/tcp/PORT/p2p/PEER``, also ip6 and dns
names; by way of a relay ``/ip4/HOST/tcp/PORT/p2p/RELAY/p2p-circuit/p2p/PEER``, where host and port
are the relay's. Nothing is dialled here.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from swarmfree.protocol.errors import ConfigError
from swarmfree.wire.identity import is_peer_id

KINDS = ("ip4", "ip6", "dns", "dns4", "dns6")
ADDRESS_LETTERS_MAX = 400
_FORM = "/ip4/HOST/tcp/PORT/p2p/PEER"
_CIRCUIT = "p2p-circuit"
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """One TCP address of one peer.

    Args:
        kind: ip4, ip6, dns, dns4 or dns6.
        host: in the form that the kind has; an IPv6 address without brackets.
        port: 1 to 65535.
        peer_id: who answers there.
        relay: peer id of the relay that listens there and leads to the peer; empty = the peer
            itself does.
    """

    kind: str
    host: str
    port: int
    peer_id: str
    relay: str = ""

    def __str__(self) -> str:
        """The multiaddr."""
        way = f"/p2p/{self.relay}/{_CIRCUIT}" if self.relay else ""
        return f"{self.transport}{way}/p2p/{self.peer_id}"

    def by_way_of(self, relay: Address) -> Address:
        """This peer's address behind a relay.

        Raises:
            ConfigError: the relay is itself behind one, or is this peer.
        """
        made = Address(relay.kind, relay.host, relay.port, self.peer_id, relay.peer_id)
        if relay.relay or relay.peer_id == self.peer_id:
            raise ConfigError(f"address {made}: a relay is another peer, which is called directly")
        return made

    @property
    def transport(self) -> str:
        """The multiaddr without peers: ``/ip4/HOST/tcp/PORT``."""
        return f"/{self.kind}/{self.host}/tcp/{self.port}"

    @property
    def host_and_port(self) -> str:
        """``HOST:PORT`` for people, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if self.kind == "ip6" else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can call it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def grpc_target(self) -> str:
        """What a gRPC channel takes."""
        scheme = {"ip4": "ipv4:", "ip6": "ipv6:"}.get(self.kind, "dns:///")
        return scheme + self.host_and_port


def parse_address(text: str, *, relayed: bool = False) -> Address:
    """Read a multiaddr of a peer.

    Args:
        text: the multiaddr.
        relayed: it may lead there by way of a relay; for gRPC alone.

    Raises:
        ConfigError: one line that says which part is wrong.
    """
    shown = text if len(text) <= ADDRESS_LETTERS_MAX else text[:60] + "..."
    if len(text) > ADDRESS_LETTERS_MAX or not text.isprintable():
        raise ConfigError(f"address {shown!r}: {_FORM} expected, at most {ADDRESS_LETTERS_MAX} printable letters")
    way, circuit, end = text.partition(f"/{_CIRCUIT}/p2p/")
    if relayed and circuit:
        relay = parse_address(way)
        if not is_peer_id(end):
            raise ConfigError(f"address {text!r}: {end!r} is no libp2p peer id")
        return Address(relay.kind, relay.host, relay.port, end).by_way_of(relay)
    parts = text.split("/")
    if len(parts) != 7 or parts[0] or parts[3] != "tcp" or parts[5] != "p2p":
        raise ConfigError(f"address {text!r}: {_FORM} expected")
    _, kind, host, _, port, _, peer_id = parts
    if kind not in KINDS:
        raise ConfigError(f"address {text!r}: /{kind} is not known; expected one of /{', /'.join(KINDS)}")
    host = _checked_host(kind, host, text)
    if not is_port(port):
        raise ConfigError(f"address {text!r}: {port!r} is no port; expected 1 to 65535")
    if not is_peer_id(peer_id):
        raise ConfigError(f"address {text!r}: {peer_id!r} is no libp2p peer id")
    return Address(kind, host, int(port), peer_id)


def is_port(text: str) -> bool:
    """Whether `text` is a TCP port in plain decimal, 1 to 65535."""
    return text.isascii() and text.isdigit() and len(text) <= 5 and not text.startswith("0") and int(text) < 65536


def address_of(host: str, port: int, peer_id: str) -> Address:
    """The address of a peer at an IP address or DNS name.

    Raises:
        ConfigError: `host` is neither.
    """
    try:
        kind = f"ip{ipaddress.ip_address(host).version}"
    except ValueError:
        kind = "dns"
    text = f"/{kind}/{host}/tcp/{port}/p2p/{peer_id}"
    return Address(kind, _checked_host(kind, host, text), port, peer_id)


def parse_host_and_port(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; an IPv6 address stands in brackets.

    Raises:
        ConfigError: one line that says what was expected.
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not is_bracketed):
        raise ConfigError("HOST:PORT expected, an IPv6 address in brackets")
    if not is_port(port):
        raise ConfigError(f"{port!r} is no port; expected 1 to 65535")
    return (host[1:-1] if is_bracketed else host), int(port)


def split_host(text: str) -> tuple[str, int]:
    """Read ``HOST`` or ``HOST:PORT``; port 0 where none is named. An IPv6 address with a port
    stands in brackets.

    Raises:
        ConfigError: one line that says what was expected.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    host, port = (bare, 0) if ":" not in text or (bare.count(":") > 1 and "]" not in bare) else parse_host_and_port(text)
    address_of(host, port or 1, "anybody")
    return host, port


def _checked_host(kind: str, host: str, text: str) -> str:
    if kind in ("ip4", "ip6"):
        try:
            return str(ipaddress.IPv4Address(host) if kind == "ip4" else ipaddress.IPv6Address(host))
        except ValueError as error:
            raise ConfigError(f"address {text!r}: {host!r} is no IPv{kind[-1]} address") from error
    if not _NAME.fullmatch(host):
        raise ConfigError(f"address {text!r}: {host!r} is no host name")
    return host

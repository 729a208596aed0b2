"""Multiaddrs and gRPC targets."""

from __future__ import annotations

import pytest

from swarmfree.protocol.errors import ConfigError
from swarmfree.wire.addresses import Address, address_of, parse_address, parse_host_and_port

PEER = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"


@pytest.mark.parametrize(
    ("text", "target", "shown"),
    [
        (f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}", "ipv4:127.0.0.1:4001", "127.0.0.1:4001"),
        (f"/ip6/::1/tcp/65535/p2p/{PEER}", "ipv6:[::1]:65535", "[::1]:65535"),
        (f"/dns4/peer.example.org/tcp/1/p2p/{PEER}", "dns:///peer.example.org:1", "peer.example.org:1"),
        (f"/dns6/a/tcp/80/p2p/{PEER}", "dns:///a:80", "a:80"),
        (f"/dns/my_host-1.b/tcp/80/p2p/{PEER}", "dns:///my_host-1.b:80", "my_host-1.b:80"),
    ],
)
def test_multiaddr_is_read_and_written_back(text: str, target: str, shown: str) -> None:
    """A multiaddr keeps its text, and becomes the gRPC target and the HOST:PORT of the same
    place.
    """
    address = parse_address(text)
    assert str(address) == text
    assert address.grpc_target == target
    assert address.host_and_port == shown
    assert address.peer_id == PEER


def test_ipv6_has_one_form() -> None:
    """Different spellings of one IPv6 address are one address."""
    assert parse_address(f"/ip6/0:0::0001/tcp/5/p2p/{PEER}") == parse_address(f"/ip6/::1/tcp/5/p2p/{PEER}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "/ip4/HOST/tcp/PORT/p2p/PEER expected"),
        ("127.0.0.1:4001", "expected"),
        ("/ip4/127.0.0.1/tcp/4001", "expected"),
        (f"ip4/127.0.0.1/tcp/4001/p2p/{PEER}", "expected"),
        (f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}/", "expected"),
        (f"/ip4/127.0.0.1/udp/4001/p2p/{PEER}", "expected"),
        (f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}\n", "printable"),
        (f"/unix/a/tcp/4001/p2p/{PEER}", "/unix is not known"),
        (f"/ip4/127.0.0.256/tcp/4001/p2p/{PEER}", "'127.0.0.256' is no IPv4 address"),
        (f"/ip4/::1/tcp/4001/p2p/{PEER}", "'::1' is no IPv4 address"),
        (f"/ip6/127.0.0.1/tcp/4001/p2p/{PEER}", "no IPv6 address"),
        (f"/dns4/-bad-/tcp/4001/p2p/{PEER}", "'-bad-' is no host name"),
        (f"/dns4/a b/tcp/4001/p2p/{PEER}", "no host name"),
        (f"/dns4/{'a' * 64}/tcp/4001/p2p/{PEER}", "no host name"),
        (f"/ip4/127.0.0.1/tcp/0/p2p/{PEER}", "'0' is no port"),
        (f"/ip4/127.0.0.1/tcp/65536/p2p/{PEER}", "'65536' is no port"),
        (f"/ip4/127.0.0.1/tcp/+80/p2p/{PEER}", "no port"),
        (f"/ip4/127.0.0.1/tcp/８０/p2p/{PEER}", "no port"),
        ("/ip4/127.0.0.1/tcp/4001/p2p/QmNobody", "'QmNobody' is no libp2p peer id"),
        ("/" + "x" * 5000, "at most 400"),
    ],
)
def test_malformed_multiaddr_is_one_clear_line(text: str, why: str) -> None:
    """What is wrong with an address is said in one short line that names the part."""
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_address_of_a_host_chooses_the_kind() -> None:
    """IP addresses and names become multiaddrs of their kind; what is neither is refused."""
    assert address_of("10.0.0.1", 5, PEER) == Address("ip4", "10.0.0.1", 5, PEER)
    assert str(address_of("::1", 5, PEER)) == f"/ip6/::1/tcp/5/p2p/{PEER}"
    assert address_of("example.org", 5, PEER).kind == "dns"
    with pytest.raises(ConfigError, match="no host name"):
        address_of("two words", 5, PEER)


@pytest.mark.parametrize(
    ("text", "found"), [("10.0.0.1:80", ("10.0.0.1", 80)), ("[::1]:65535", ("::1", 65535)), ("example.org:1", ("example.org", 1))]
)
def test_host_and_port_are_read(text: str, found: tuple[str, int]) -> None:
    """An address or name before the last colon, an IPv6 address in brackets, and a port."""
    assert parse_host_and_port(text) == found


@pytest.mark.parametrize("text", ["", "host", ":80", "host:", "host:0", "host:65536", "host:http", "::1:80", "host:08"])
def test_what_is_no_host_and_port_is_one_clear_line(text: str) -> None:
    """A part that is missing or out of range is said, with what was found."""
    with pytest.raises(ConfigError, match=r"HOST:PORT expected|is no port"):
        parse_host_and_port(text)


RELAY = "QmVvV8JQmmqPCwXAaesWJPheUiEFJJ9HWRhWhuFuxVQxpR"


def test_an_address_behind_a_relay_is_read_where_it_may_be() -> None:
    """libp2p's form: the relay's address, `p2p-circuit`, the peer. Host and port are the relay's;
    where only direct addresses are of use it is none.
    """
    text = f"/ip4/203.0.113.7/tcp/4001/p2p/{RELAY}/p2p-circuit/p2p/{PEER}"
    address = parse_address(text, relayed=True)
    assert address == Address("ip4", "203.0.113.7", 4001, PEER, RELAY)
    assert str(address) == text
    assert address.grpc_target == "ipv4:203.0.113.7:4001"
    direct = Address("ip6", "::1", 5, PEER)
    assert direct.by_way_of(parse_address(f"/ip4/203.0.113.7/tcp/4001/p2p/{RELAY}")) == address
    with pytest.raises(ConfigError, match="expected"):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        f"/p2p-circuit/p2p/{PEER}",
        f"/ip4/1.2.3.4/tcp/1/p2p-circuit/p2p/{PEER}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}/p2p-circuit",
        f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/",
        f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{PEER}/",
        f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{RELAY}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit/p2p/{RELAY}/p2p-circuit/p2p/{PEER}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{PEER}/p2p-circuit/p2p/{PEER}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}/P2P-circuit/p2p/{PEER}",
    ],
)
def test_other_ways_through_relays_are_refused(text: str) -> None:
    """Without a relay, without a peer, through itself, through two: no address."""
    with pytest.raises(ConfigError):
        parse_address(text, relayed=True)

"""Which address of this machine others can call."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from swarmfree.protocol.errors import ConfigError
from swarmfree.wire.addresses import split_host
from swarmfree.wire.own_address import AUTO, LOOPBACK, Reach, own_address, reach_of
from swarmfree.wire.port_check import require_listening

PEER = "QmUHPRwTVD6VufJiSHscHvsZMvkprm7pc6VXQH2iUTuBSv"
NEAR, FAR = f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}", f"/ip4/10.77.0.1/tcp/4001/p2p/{PEER}"


def test_a_peer_of_this_machine_is_called_on_loopback() -> None:
    """An invite to this machine leads to its loopback address; so does one that names nobody where
    there is no way out.
    """
    assert own_address((NEAR,)) == LOOPBACK
    assert reach_of(AUTO, (NEAR,), is_announced=False) == Reach(LOOPBACK, LOOPBACK)
    assert ipaddress.ip_address(own_address(()))


def test_the_way_to_another_machine_counts_more_than_the_one_to_this() -> None:
    """In whatever order an invite names both: whoever comes from elsewhere cannot call loopback."""
    assert own_address((NEAR, FAR)) == own_address((FAR, NEAR))


def test_all_addresses_are_listened_on_and_one_is_announced() -> None:
    """Nobody can call 0.0.0.0."""
    assert reach_of("0.0.0.0", (NEAR,), is_announced=False) == Reach("0.0.0.0", LOOPBACK)  # noqa: S104 - what is tested


def test_loopback_with_an_invite_from_elsewhere_is_refused() -> None:
    """Nobody there could call back; unless some entry point is here, or another address is
    announced.
    """
    with pytest.raises(ConfigError, match=r"the invite leads to 10\.77\.0\.1.*leave --host out.*--announce HOST:PORT"):
        reach_of(LOOPBACK, (FAR,), is_announced=False)
    assert reach_of(LOOPBACK, (FAR, NEAR), is_announced=False).announced == LOOPBACK
    assert reach_of(LOOPBACK, (FAR,), is_announced=True).host == LOOPBACK


def test_what_is_no_address_is_refused() -> None:
    """The line says what is expected."""
    with pytest.raises(ConfigError, match="--host me: an IP address of this machine is expected, or auto"):
        reach_of("me", (NEAR,), is_announced=False)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("203.0.113.7", "203.0.113.7", 0),
        ("203.0.113.7:4001", "203.0.113.7", 4001),
        ("spot.example.org", "spot.example.org", 0),
        ("2001:db8::1", "2001:db8::1", 0),
        ("[2001:db8::1]", "2001:db8::1", 0),
        ("[2001:db8::1]:4001", "2001:db8::1", 4001),
    ],
)
def test_a_host_may_have_a_port(text: str, host: str, port: int) -> None:
    """Both forms are read, with names and with both kinds of IP addresses."""
    assert split_host(text) == (host, port)


@pytest.mark.parametrize("text", ["", "203.0.113.7:", "203.0.113.7:x", "a b", "[2001:db8::1]:0"])
def test_a_host_that_is_none_is_refused(text: str) -> None:
    """One line says what was expected."""
    with pytest.raises(ConfigError):
        split_host(text)


def test_a_port_whose_last_connection_has_just_ended_is_free() -> None:
    """A peer that is started again at once listens where it did: what the system remembers of an
    old connection is nobody's.
    """
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)) as caller:
            answered, _ = server.accept()
            answered.close()
            assert caller.recv(1) == b""
    require_listening(LOOPBACK, port)

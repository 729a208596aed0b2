"""Which server a TLS client asks for, read strictly from its first record."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.wire.client_hello import server_name_asked
from swarmfree.wire.frames import Malformed

NAME = "abc234.peer.swarmfree"
MOST = 8 << 10


def hello(name: str | None = NAME, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """What Python's client begins a connection with."""
    context = ssl.create_default_context()
    context.maximum_version = newest
    context.check_hostname = name is not None
    outgoing = ssl.MemoryBIO()
    begun = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        begun.do_handshake()
    return outgoing.read()


def test_the_name_is_read_from_a_real_hello_that_comes_in_any_pieces() -> None:
    """Until the record is whole nothing is said; then the server's name; what follows it is not
    looked at.
    """
    whole = hello()
    assert {server_name_asked(whole[:size], MOST) for size in range(1, len(whole))} == {None}
    assert server_name_asked(whole, MOST) == server_name_asked(whole + b"more", MOST) == NAME


def test_a_long_hello_is_refused_when_it_says_its_length() -> None:
    """Five bytes are enough: what does not come is not waited for."""
    with pytest.raises(Malformed, match=r"a first TLS record of 8,188 bytes; at most 8,192 are taken"):
        server_name_asked(b"\x16\x03\x01" + (MOST - 4).to_bytes(2, "big"), MOST)
    assert server_name_asked(b"\x16\x03\x01" + (MOST - 5).to_bytes(2, "big"), MOST) is None


def patched(old: bytes, new: bytes) -> bytes:
    """A real hello with some bytes changed."""
    whole = hello()
    assert whole.count(old) == 1
    return whole.replace(old, new)


NAMED = b"\x00\x00" + (5 + len(NAME)).to_bytes(2, "big")  # head of the extension
INSIDE = (3 + len(NAME)).to_bytes(2, "big") + b"\x00" + len(NAME).to_bytes(2, "big") + NAME.encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "no TLS handshake"),
        (b"\x16\x02\x00", "no TLS handshake"),
        (b"\x16\x03\x01\x00\x00", "a first TLS record of 0 bytes"),
        (b"\x16\x03\x01\x00\x05\x02\x00\x00\x01x", "does not begin with a ClientHello"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x02x", "cut off inside"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x00x", "something behind its end"),
        (hello(None), "asks for no server"),
        (hello(newest=ssl.TLSVersion.TLSv1_2), "without TLS 1.3"),
        (patched(NAME.encode(), NAME.upper().encode()), "what is no server's name"),
        (patched(NAME.encode(), b"\x1b" + NAME[1:].encode()), "what is no server's name"),
        (patched(INSIDE, INSIDE[:2] + b"\x01" + INSIDE[3:]), "what is no server's name"),
        (patched(INSIDE, b"\x00\x01" + INSIDE[2:]), "cut off inside"),
        (patched(NAMED + INSIDE, b"\x00\x2b" + NAMED[2:] + INSIDE), "an extension twice"),
    ],
)
def test_whatever_no_peer_says_is_refused_by_its_fault(data: bytes, why: str) -> None:
    """Another protocol, another version, another form: one sentence on what it is."""
    with pytest.raises(Malformed, match=why):
        server_name_asked(data, MOST)


@given(st.binary(max_size=600), st.integers(0, 600), st.binary(max_size=3))
def test_no_bytes_do_anything_else(noise: bytes, at: int, changed: bytes) -> None:
    """Any bytes, and a real hello with some bytes changed, give a name, or nothing yet, or are
    malformed.
    """
    whole = hello()
    for data in (b"\x16\x03\x01" + noise, whole[:at] + changed + whole[at + len(changed) :]):
        with contextlib.suppress(Malformed):
            assert server_name_asked(data, MOST) is None or server_name_asked(data, MOST)

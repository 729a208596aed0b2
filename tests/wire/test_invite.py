"""Invites: what a person pastes."""

from __future__ import annotations

import re
import string
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.errors import ConfigError, InviteError
from swarmfree.wire.invite import Invite, decode_invite, encode_invite

PEERS = ("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG", "12D3KooWMxiT4PdRZnxs8cgQx5fX5m6WTQoVYd7L5QgVzz2wGCGG")
INVITE = Invite("0123456789abcdef" * 4, (f"/ip4/127.0.0.1/tcp/4001/p2p/{PEERS[0]}",))
GOLDEN = (
    "swarmfree1abfqci2fm6e2xtppaerukz4jvpg66ajdivtytk6n54asgrlhrgv433yaar7qaaabb6qsee"
    "ratvwcxzipobuvgr42xhpszy7nzkilnactyaftabfx6cwmxypi53pzrgiwi4"
)

hosts = st.one_of(
    st.builds(
        lambda number: f"/ip4/{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", st.integers(0, 2**32 - 1)
    ),
    st.just("/ip6/2001:db8::1"),
    st.sampled_from(["/dns4/", "/dns6/", "/dns/"]).map(lambda kind: kind + "peer-1.example.org"),
)
addresses = st.builds(
    lambda host, port, peer: f"{host}/tcp/{port}/p2p/{peer}", hosts, st.integers(1, 65535), st.sampled_from(PEERS)
)
invites = st.builds(
    Invite, st.binary(min_size=32, max_size=32).map(bytes.hex), st.lists(addresses, min_size=1, max_size=8).map(tuple)
)


@given(invites)
def test_invite_gives_back_what_was_put_in(invite: Invite) -> None:
    """Every invite is read back as it was made, and is a word of letters and digits alone."""
    text = encode_invite(invite)
    assert decode_invite(text) == invite
    assert set(text) <= set(string.ascii_lowercase + string.digits)


def test_invite_of_one_address_is_short() -> None:
    """An invite with one address is at most two lines of a terminal."""
    assert len(encode_invite(INVITE)) <= 160


@given(invites, st.data())
def test_every_wrong_letter_is_noticed(invite: Invite, data: st.DataObject) -> None:
    """Whatever letter is changed, the invite is refused in one line and never read as another
    run.
    """
    text = encode_invite(invite)
    position = data.draw(st.integers(0, len(text) - 2))  # the last letter holds spare bits
    letter = data.draw(st.sampled_from([x for x in string.ascii_lowercase + string.digits if x != text[position]]))
    with pytest.raises(InviteError) as caught:
        decode_invite(text[:position] + letter + text[position + 1 :])
    assert "\n" not in str(caught.value)


@given(invites, st.data())
def test_every_cut_is_noticed(invite: Invite, data: st.DataObject) -> None:
    """An invite that lost its end is said to be cut off, wherever it was cut."""
    text = encode_invite(invite)
    with pytest.raises(InviteError, match="cut off"):
        decode_invite(text[: data.draw(st.integers(1, len(text) - 1))])


@given(st.text(max_size=300))
def test_any_text_ends_in_one_line(text: str) -> None:
    """Whatever is pasted, the answer is an invite or one line."""
    with pytest.raises(InviteError) as caught:
        decode_invite(text)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200))
def test_body_with_a_right_checksum_may_still_be_nonsense(body: bytes) -> None:
    """A whole invite whose content makes no sense is refused in one line, never with another
    error.
    """
    import base64
    import hashlib

    data = len(body).to_bytes(2, "big") + body
    data += hashlib.sha256(b"swarmfree1" + data).digest()[:4]
    text = "swarmfree1" + base64.b32encode(data).decode().rstrip("=").lower()
    try:
        invite = decode_invite(text)
    except InviteError as error:
        assert "cannot read it" in str(error)
    else:
        assert len(invite.fingerprint) == 64 and invite.entry_points


def test_pasting_does_no_harm() -> None:
    """Line breaks, blanks, quotes, braces and capitals around and in an invite change nothing."""
    text = encode_invite(INVITE)
    broken = "\n  ".join(text[a:b] for a, b in pairwise([0, 40, 80, len(text)]))
    for pasted in (
        f"  {text}\n",
        f"'{text}'",
        f'"{text}",',
        f"`{text}`",
        f"<{text}>.",
        text.upper(),
        broken,
        broken + "\r\n",
        f"{{{text}}}",
    ):
        assert decode_invite(pasted) == INVITE


def test_an_invite_pasted_several_times_is_one() -> None:
    """Copies of one invite are that invite, whatever stands between them; letters that nobody sees
    do no harm.
    """
    text = encode_invite(INVITE)
    for pasted in (
        text * 2,
        f"{text} {text}\n{text}",
        f"'{text}' '{text}'",
        f"\u201c{text[:50]}\u200b{text[50:]}\u201d",
        "\ufeff" + text,
    ):
        assert decode_invite(pasted) == INVITE


@pytest.mark.parametrize("word", ["INVITE", "{INVITE}", "<invite>", "${INVITE}", "'INVITE'"])
def test_the_word_that_stands_for_an_invite_is_told_to_be_one(word: str) -> None:
    """Who types the word of the README itself hears what is to be put in its place."""
    with pytest.raises(InviteError, match=r"INVITE stands for an invite, which begins with 'swarmfree1': copy .*") as caught:
        decode_invite(word.upper())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: "", "empty"),
        (lambda text: "  \n", "empty"),
        (lambda text: "hello", "'hello' is no invite: an invite begins with 'swarmfree1'"),
        (lambda text: "https://example.org/" + text, "is no invite"),
        (lambda text: text[:4], "cut off after 4 letters"),
        (lambda text: text[:12], "cut off after 12 letters"),
        (lambda text: text[:-7], "cut off: "),
        (lambda text: text + text[-6:], "6 letters too many"),
        (lambda text: text[:20] + "0" + text[21:], "letter 21 of the invite is '0', which no invite has (perhaps 'o'?)"),
        (lambda text: text[:30] + "-" + text[31:], "letter 31 of the invite is '-'"),
        (lambda text: text[:60] + ("b" if text[60] != "b" else "c") + text[61:], "checksum"),
        (lambda text: "swarmfree2" + text[10:], "newer swarmfree"),
        (lambda text: text + "a" * 5000, "far too many"),
        (lambda text: text + text[:60], "one invite is expected; 2 that differ stand behind each other (of 140 and 60 letters)"),
        (lambda text: "swarmfree peer " + text, "(one begins at letter 14: paste it alone)"),
    ],
)
def test_malformed_invite_says_what_is_wrong(change: object, why: str) -> None:
    """Each way to spoil an invite has its own short line that says how to mend it."""
    assert callable(change)
    with pytest.raises(InviteError) as caught:
        decode_invite(change(encode_invite(INVITE)))
    assert why in str(caught.value)
    assert len(str(caught.value)) < 300


def test_only_sound_invites_are_made() -> None:
    """A fingerprint or address that is malformed, none or too many of them, is the maker's
    mistake.
    """
    for fingerprint in ("", "ab", "g" * 64, "A" * 64):
        with pytest.raises(ConfigError, match="64 hex digits"):
            encode_invite(Invite(fingerprint, INVITE.entry_points))
    for count in (0, 9):
        with pytest.raises(ConfigError, match=f"not {count}"):
            encode_invite(Invite(INVITE.fingerprint, INVITE.entry_points * count))
    with pytest.raises(ConfigError, match=re.escape("'/ip4/a'")):
        encode_invite(Invite(INVITE.fingerprint, ("/ip4/a",)))


def test_invites_are_read_for_ever() -> None:
    """The letters of version 1 do not change: an invite that was printed once stays good."""
    assert encode_invite(INVITE) == GOLDEN
    assert decode_invite(GOLDEN) == INVITE

"""The tickets of a bootstrap node, and those that a person makes."""

from __future__ import annotations

import base64
import dataclasses
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarmfree.cli.engine_probe import EngineKind
from swarmfree.cli.main import app
from swarmfree.cli.options import Log
from swarmfree.cli.peer_order import PeerOrder
from swarmfree.cli.peer_run import PeerLife
from swarmfree.cli.run_tickets import TICKETS_FILE, RunTickets, run_tickets
from swarmfree.cli.ticket import COUNT_MAX, DAYS
from swarmfree.lab.local_order import order_of
from swarmfree.protocol.errors import ConfigError, InviteError
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest, RunSection
from swarmfree.wire import ticket as tickets_of_wire
from swarmfree.wire.admission import Admission
from swarmfree.wire.ban_list import longer_ban_list
from swarmfree.wire.identity import Identity, load_or_create_identity
from swarmfree.wire.invite import Invite, decode_invite, encode_invite
from swarmfree.wire.organiser import OrganiserKey, create_organiser, draw_organiser
from swarmfree.wire.ticket import DAY_S, TICKET_DAYS, make_ticket

PEER = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"
RUN = "ab" * 32
INVITE = Invite(RUN, (f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}",))


def test_a_restart_without_the_key_has_the_same_tickets(
    tmp_path: Path, manifest: Manifest, node: Identity, organiser: OrganiserKey
) -> None:
    """They are made once, kept so that nobody else reads them, and serve without the organiser's
    key; the node's own names founders, the invite's has no name.
    """
    made = run_tickets(tmp_path, manifest, node, organiser, None)
    assert (made.own.holder, made.own.names_founders) == (node.peer_id, True)
    assert made.invite is not None and (made.invite.holder, made.invite.count, made.invite.names_founders) == ("", 0, False)
    assert abs(made.own.expires_s - time.time() - TICKET_DAYS * DAY_S) < 60
    assert (tmp_path / TICKETS_FILE).stat().st_mode & 0o077 == 0
    assert run_tickets(tmp_path, manifest, node, None, None) == run_tickets(tmp_path, manifest, node, organiser, None) == made


@pytest.mark.parametrize("access", ["open", "list"])
def test_only_a_run_by_ticket_gives_one_away(
    tmp_path: Path, manifest: Manifest, node: Identity, organiser: OrganiserKey, access: str
) -> None:
    """In an open run nobody needs one, and in one by name each peer needs its own."""
    other = dataclasses.replace(manifest, run=dataclasses.replace(manifest.run, access=access))
    assert run_tickets(tmp_path, other, node, organiser, None).invite is None


def test_tickets_are_made_anew_when_they_must(
    tmp_path: Path, manifest: Manifest, node: Identity, organiser: OrganiserKey
) -> None:
    """Another identity, another run and a revoked ticket need the key; without it the node cannot
    be, but for the invite's ticket.
    """
    made = run_tickets(tmp_path, manifest, node, organiser, None)
    stranger = load_or_create_identity(tmp_path / "stranger")
    other_run = dataclasses.replace(manifest, run=RunSection(seed=9))
    for run, identity in ((manifest, stranger), (other_run, node)):
        with pytest.raises(ConfigError, match="this node's ticket is missing, expired or revoked"):
            run_tickets(tmp_path, run, identity, None, None)
    assert made.invite is not None
    bans = longer_ban_list(organiser, manifest, None, peers=(), tickets=[made.invite.ticket_id])
    assert run_tickets(tmp_path, manifest, node, None, bans).invite is None
    again = run_tickets(tmp_path, manifest, node, organiser, bans)
    assert again.own == made.own and again.invite not in {None, made.invite}
    soon = make_ticket(organiser, manifest.fingerprint(), int(time.time()) + DAY_S, holder=node.peer_id, names_founders=True)
    kept = json.loads((tmp_path / TICKETS_FILE).read_text())
    (tmp_path / TICKETS_FILE).write_text(json.dumps({**kept, "own": "AAAA"}))
    with pytest.raises(ConfigError, match=r"tickets\.json is damaged"):
        run_tickets(tmp_path, manifest, node, organiser, None)
    (tmp_path / TICKETS_FILE).write_text(json.dumps({**kept, "own": base64.b64encode(soon.to_bytes()).decode()}))
    assert run_tickets(tmp_path, manifest, node, None, None).own == soon
    assert run_tickets(tmp_path, manifest, node, organiser, None).own.expires_s > soon.expires_s


def test_an_expired_ticket_is_not_served(tmp_path: Path, manifest: Manifest, node: Identity, organiser: OrganiserKey) -> None:
    """Without the key the node gives no expired ticket away, and cannot be where its own has
    expired.
    """
    made, past_s = run_tickets(tmp_path, manifest, node, organiser, None), int(time.time()) - 1
    own = make_ticket(organiser, manifest.fingerprint(), past_s, holder=node.peer_id, names_founders=True)
    invite = make_ticket(organiser, manifest.fingerprint(), past_s)
    kept = json.loads((tmp_path / TICKETS_FILE).read_text())
    (tmp_path / TICKETS_FILE).write_text(json.dumps({**kept, "invite": base64.b64encode(invite.invite_bytes()).decode()}))
    assert run_tickets(tmp_path, manifest, node, None, None) == RunTickets(made.own, None)
    (tmp_path / TICKETS_FILE).write_text(json.dumps({**kept, "own": base64.b64encode(own.invite_bytes()).decode()}))
    with pytest.raises(ConfigError, match="missing, expired or revoked"):
        run_tickets(tmp_path, manifest, node, None, None)


def test_a_banned_peer_is_not_sent_for_a_ticket(
    tmp_path: Path, manifest: Manifest, node: Identity, organiser: OrganiserKey
) -> None:
    """It is told that it is banned, and no more; one without a ticket is told how one is made."""
    order = PeerOrder(INVITE, LocalConfig(str(tmp_path)), Log.TEXT, EngineKind.TORCH, is_watched=False)
    with pytest.raises(InviteError, match=f"A ticket is made by: swarmfree ticket INVITE --organiser FILE --peer {node.peer_id}"):
        PeerLife(order)._require_ticket(Admission(manifest), node)
    bans = longer_ban_list(organiser, manifest, None, peers=[node.peer_id], tickets=[])
    with pytest.raises(InviteError, match=r"the organiser has banned peer \w+ \(list 1\)$"):
        PeerLife(order)._require_ticket(Admission(manifest, bans), node)


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_a_person_makes_tickets(tmp_path: Path) -> None:
    """The invite on stdout carries the ticket that was asked for; what it is for is told beside
    it.
    """
    key = create_organiser(tmp_path / "organiser.key")
    asked = ("ticket", encode_invite(INVITE), "--organiser", str(tmp_path / "organiser.key"))
    cases = [
        ((), "", 1, "for one peer"),
        (("--count", "0"), "", 0, "for any number of peers"),
        (("--count", "7"), "", 7, "for 7 peers"),
    ]
    for options, holder, count, words in [*cases, (("--peer", PEER), PEER, 0, f"for peer {PEER}")]:
        code, out, told = run(*asked, *options, "--days", "2")
        assert code == 0, told
        made = decode_invite(out).ticket
        assert made is not None and made.is_signed_by(key.peer_id, RUN)
        assert (made.holder, made.count, made.names_founders) == (holder, count, False)
        assert abs(made.expires_s - time.time() - 2 * DAY_S) < 60
        revoke = f"swarmfree ban INVITE --ticket {made.ticket_id} --organiser {tmp_path / 'organiser.key'}"
        assert revoke in told and words in told
        assert "whether this key is that run's organiser's was not checked" in told
        assert ("(run.access = list) it is of no use" in told) is not bool(holder)


def test_what_is_known_of_a_ticket_is_not_asked_again(tmp_path: Path) -> None:
    """An invite with a ticket for anybody shows whose run it is, and that such tickets are of use
    there; one for a peer shows the first alone.
    """
    key, path = create_organiser(tmp_path / "organiser.key"), str(tmp_path / "organiser.key")
    for holder, told_lines in (("", 1), (PEER, 2)):
        line = encode_invite(dataclasses.replace(INVITE, ticket=make_ticket(key, RUN, 2_000_000_000, holder=holder)))
        code, _, told = run("ticket", line, "--organiser", path)
        assert (code, told.count("\n")) == (0, told_lines), told


def test_what_a_person_gets_wrong_about_tickets_is_one_line(tmp_path: Path) -> None:
    """A key that is none or another run's, a peer that is none, and nobody to ban."""
    create_organiser(tmp_path / "organiser.key")
    strangers = encode_invite(dataclasses.replace(INVITE, ticket=make_ticket(draw_organiser(), RUN, 2_000_000_000)))
    key, line = str(tmp_path / "organiser.key"), encode_invite(INVITE)
    cases = [
        (("ticket", line, "--organiser", str(tmp_path / "none")), "No such file"),
        (("ticket", line), "Missing option '--organiser'"),
        (("ticket", strangers, "--organiser", key), "this key has not signed the invite's ticket"),
        (("ticket", line, "--organiser", "/dev/zero"), "organiser's key /dev/zero: no Ed25519 key"),
        (("ticket", line, "--organiser", key, "--peer", "nobody"), "--peer 'nobody': no peer id"),
        (("ticket", line, "--organiser", key, "--peer", ""), "--peer '': no peer id"),
        (("ticket", line, "--organiser", key, "--peer", PEER, "--count", "1"), "is for that peer alone"),
        (("ticket", line, "--organiser", key, "--count", "10001"), "--count"),
        (("ban", line, "--organiser", key), "nobody is named"),
        (("ban", line, PEER, "--organiser", str(tmp_path)), "organiser's key"),
    ]
    for arguments, words in cases:
        code, out, told = run(*arguments)
        assert (code, out) == (2, ""), (arguments, told)
        assert words in told and told.count("\n") == 1, told


def test_help_and_code_mean_the_same_numbers() -> None:
    """The command's limits, which stand apart so that help is fast, are those of tickets."""
    assert (COUNT_MAX, DAYS) == (tickets_of_wire.COUNT_MAX, tickets_of_wire.TICKET_DAYS)


def test_a_local_swarm_by_name_is_refused(tmp_path: Path, small_manifest: Manifest) -> None:
    """Its peers draw their names as they start, so that nobody could have a ticket."""
    by_name = dataclasses.replace(small_manifest, run=dataclasses.replace(small_manifest.run, access="list"))
    with pytest.raises(ConfigError, match=r"run\.access = list: the peers of a local swarm"):
        order_of(by_name, tmp_path / "out", peers=4, standbys=0, respawn=False, kills=(), run_arguments=(), peer_arguments=())

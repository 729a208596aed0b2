"""A ban list on its way: read what is there, sign a longer one, publish it, and wait until a peer
has taken it.

Two commands at once may sign lists of the same number, of which peers follow one: each then signs
the next one, which names whom both name, and which is the same to the byte.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import typer

from swarmfree.cli.run_access import open_directory
from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.wire.addresses import parse_address
from swarmfree.wire.ban_list import BanList, longer_ban_list, newest_ban_list
from swarmfree.wire.directory import DhtDirectory
from swarmfree.wire.identity import is_peer_id
from swarmfree.wire.invite import Invite
from swarmfree.wire.organiser import OrganiserKey

SUFFIX_LETTERS_MIN = 6
LOOK_AGAIN_S = 1.0


async def publish_bans(
    invite: Invite,
    organiser: OrganiserKey,
    peers: Sequence[str],
    tickets: Sequence[str],
    patience_s: float,
    *,
    is_sure: bool = False,
) -> int:
    """Publish a list with these besides, and say who has it; exit code 0.

    Raises:
        ConfigError: the key is not the run's, or somebody is named who is none, or, where this is
            not sure, by whom the invite leads.
        InviteError: nobody answers at the invite's addresses.
        SwarmfreeError: no peer has taken it.
    """
    async with open_directory(invite, patience_s) as (directory, manifest, _):
        timing = manifest.timing
        leading = frozenset(parse_address(point).peer_id for point in invite.entry_points)
        named = [await _resolved(directory, leading, text) for text in peers]
        led_by = leading.intersection(named)
        if led_by and not is_sure:
            raise ConfigError(
                f"{min(led_by)} is a node by which the invite leads, as the bootstrap node: it ends for good, and nobody comes by it; "
                "say --yes if that is meant"
            )

        async def publish() -> BanList:
            found = await directory.ban_lists()
            all_peers = {*named}.union(*(bans.peers for bans in found))
            all_tickets = {*tickets}.union(*(bans.tickets for bans in found))
            longer = longer_ban_list(organiser, manifest, newest_ban_list(found), peers=all_peers, tickets=all_tickets)
            if longer != directory.bans:
                await directory.publish_bans(longer, timing.papers_lease_s)
            return longer

        bans, keepers = await publish(), 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timing.lease_s):
                while True:
                    bans = await publish()  # another command may have published one at the same time
                    if keepers := await directory.keepers_of_bans(bans):
                        break
                    await asyncio.sleep(LOOK_AGAIN_S)
        if not keepers:
            raise SwarmfreeError(
                f"list {bans.number} is published for {timing.papers_lease_s:g} s, but no peer has taken it within {timing.lease_s:g} s: "
                "ban again when peers are there"
            )
        typer.echo(f"{_words(bans)}; {keepers} {'peers have' if keepers > 1 else 'peer has'} taken it so far")
        return 0


async def _resolved(directory: DhtDirectory, leading: frozenset[str], text: str) -> str:
    """A peer id from itself, or from its end, where one announced peer has that, or one node by
    which the invite leads.

    Raises:
        ConfigError: no peer, or several.
    """
    if is_peer_id(text):
        return text
    if len(text) < SUFFIX_LETTERS_MIN:
        raise ConfigError(f"{text!r}: a peer id, or its last {SUFFIX_LETTERS_MIN} letters or more, is expected")
    announced = {announcement.endpoint.member.peer_id for announcement in await directory.announcements()}
    found = sorted(peer_id for peer_id in announced | leading if peer_id.endswith(text))
    if len(found) != 1:
        known = (
            f"{len(found)} announced peers' ids end so" if found else "no announced peer's id ends so, nor one of the invite's"
        )
        raise ConfigError(f"{text!r}: {known}; a whole one is expected, as `swarmfree status INVITE --json` has it")
    return found[0]


def _words(bans: BanList) -> str:
    peers, tickets = len(bans.peers), len(bans.tickets)
    return f"ban list {bans.number} names {peers} peer{'s' * (peers != 1)} and {tickets} ticket{'s' * (tickets != 1)}"

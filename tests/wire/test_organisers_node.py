"""Whose node is the organiser's, by the ticket that it shows."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from swarmfree.protocol.manifest import Manifest, RunSection
from swarmfree.wire.admission import Admission
from swarmfree.wire.organiser import draw_organiser
from swarmfree.wire.ticket import make_ticket

NODE, OTHER = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG", "QmNode"


@pytest.mark.parametrize("access", ["ticket", "open"])
def test_the_organisers_node_shows_a_ticket_that_lets_it_name_founders(access: str) -> None:
    """In its own name, signed for this run; whoever shows another one, or none, is a stranger."""
    organiser, later_s = draw_organiser(), int(time.time()) + 3600
    manifest = replace(Manifest(run=RunSection(access=access)), organiser=organiser.peer_id)  # type: ignore[arg-type]
    run, admission = manifest.fingerprint(), Admission(manifest)
    own = make_ticket(organiser, run, later_s, holder=NODE, names_founders=True)
    guests = make_ticket(organiser, run, later_s, holder=NODE)
    forged = make_ticket(draw_organiser(), run, later_s, holder=NODE, names_founders=True)
    shown = [ticket.shown_by(NODE) for ticket in (own, guests, forged)]
    assert [admission.is_organisers(NODE, each) for each in (*shown, b"", b"x")] == [True, False, False, False, False]
    assert not admission.is_organisers(OTHER, shown[0])

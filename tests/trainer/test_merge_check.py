"""What a newcomer says of the weights that it is to merge with, by what the neighbours have
signed.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.actions import Merge, MergeMode
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.events import DirectoryNorms
from swarmfree.protocol.manifest import Manifest, RecoverySection
from swarmfree.protocol.messages import Build
from swarmfree.protocol.records import float32_bits
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.recovery.merge_check import check_weights
from tests.mutants.alone import OTHER_LINEAGE, A, D, at, record

RECORD = replace(record(), stages=record().stages[:1] * 4)
"""In which all squared norms are 1."""


class Directory:
    """Finds a little more every time it is looked into."""

    def __init__(self, *looks: dict[int, float]) -> None:
        """What each look finds: squared norms by stage."""
        self.looks = list(looks)

    async def announcements(self) -> list[Announcement]:
        """The next look; the last one again where there is none."""
        norms = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return [
            Announcement(of, PeerState.SERVING, stage, 1, RECORD.lineage(), norms[stage], 0.1, False, 1, 1e9)
            for stage, of in ((1, A), (3, D))
            if stage in norms
        ]


def check(directory: Directory, ordered: tuple[float, float], lineage: str = RECORD.lineage()) -> DirectoryNorms:
    """Stage 2 is to be merged from stages 1 and 3 with these weights; what the newcomer tells."""
    told: list[Any] = []
    manifest = Manifest(recovery=RecoverySection(merge=MergeMode.NORM2))
    context = cast("Any", SimpleNamespace(manifest=manifest, ports=SimpleNamespace(directory=directory), tell=told.append))
    weights = (float32_bits(weight) for weight in ordered)
    action = Merge(2, A, D, 1, 3, *weights, 1.0, 1.0, "both neighbours live")
    request = Build(at(2), action, 1, lineage, RECORD)
    run_virtual(lambda: check_weights(context, request, action))
    (said,) = told
    assert isinstance(said, DirectoryNorms)
    return said


def test_both_weights_are_compared() -> None:
    """Norms squared 9 and 1 give nine tenths and one; weights that are right on one side only are
    not what the norms give.
    """
    directory = Directory({1: 9.0, 3: 1.0})
    assert check(directory, (0.9, 0.1)).signed == 2
    for wrong in ((0.9, 0.2), (0.8, 0.1)):
        with pytest.raises(Refused, match=r"the norms that these have signed give 0\.9 and 0\.1") as refused:
            check(directory, wrong)
        assert refused.value.kind is RefusalKind.DISPUTED


def test_the_directory_is_looked_into_until_both_have_renewed_their_word() -> None:
    """One neighbour is later than the other: with its record's norm the weights would be others."""
    said = check(Directory({}, {1: 9.0}, {1: 9.0}, {1: 9.0, 3: 3.0}), (0.75, 0.25))
    assert (said.signed, said.found) == (2, [(1, 1, 9.0), (3, 1, 3.0)])


def test_whoever_never_renews_its_word_counts_by_the_record() -> None:
    """After two seconds; also where neither does."""
    assert check(Directory({1: 3.0}), (0.75, 0.25)).signed == 1
    assert check(Directory({}), (0.5, 0.5)).signed == 0


def test_a_merge_needs_the_record_that_it_stands_on() -> None:
    """The norms of another lineage say nothing about this one, equal weights or not."""
    with pytest.raises(Refused, match="not with the record of it") as refused:
        check(Directory({}), (0.5, 0.5), OTHER_LINEAGE)
    assert refused.value.kind is RefusalKind.DISPUTED

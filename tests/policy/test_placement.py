"""Places for newcomers."""

from __future__ import annotations

from swarmfree.policy.placement import choose_stage, missing_sentence
from swarmfree.protocol.manifest import Manifest, ModelSection, StagesSection
from swarmfree.protocol.names import ABSENT
from swarmfree.protocol.split import BlockSplit

MANIFEST = Manifest(stages=StagesSection(body=3, replicas_max=2, sources_max=1))


def test_an_empty_stage_comes_first_then_the_one_with_fewest_replicas() -> None:
    """Empty before half full, lower before higher, full ones never."""
    assert choose_stage([0, 0, 0, 0], MANIFEST, can_feed=True, standby=False).stage == 0
    assert choose_stage([1, 1, 0, 1], MANIFEST, can_feed=True, standby=False).stage == 2
    assert choose_stage([1, 2, 1, 1], MANIFEST, can_feed=True, standby=False).stage == 2
    assert choose_stage([1, 2, 2, 2], MANIFEST, can_feed=True, standby=False).stage == ABSENT


def test_only_a_peer_with_the_corpus_gets_stage_0() -> None:
    """A body peer never becomes a source."""
    assert choose_stage([0, 1, 1, 1], MANIFEST, can_feed=False, standby=False).stage == 1


def test_a_standby_waits_even_where_there_is_room() -> None:
    """Who asks to wait is not given a place at once."""
    assert choose_stage([1, 0, 0, 0], MANIFEST, can_feed=True, standby=True).stage == ABSENT


def test_what_is_missing_is_said_by_stage() -> None:
    """The sentence names every stage below its minimum, and is empty when none is."""
    assert missing_sentence([1, 0, 1, 0], MANIFEST) == "waiting for peers: stage 1 has 0 of 1, stage 3 has 0 of 1"
    assert missing_sentence([1, 1, 1, 1], MANIFEST) == ""


def test_stage_0_is_not_waited_for_beyond_its_own_maximum() -> None:
    """Two replicas of every stage are wanted, but stage 0 takes one source: one is enough there."""
    manifest = Manifest(stages=StagesSection(body=1, replicas_min=2, replicas_max=2, sources_max=1))
    assert missing_sentence([1, 1], manifest) == "waiting for peers: stage 1 has 1 of 2"
    assert missing_sentence([1, 2], manifest) == ""


def test_a_feeder_goes_to_stage_0_while_that_has_too_few() -> None:
    """Few can feed: where two sources are wanted, the second feeder is not spent on an empty body
    stage.
    """
    manifest = Manifest(stages=StagesSection(body=2, replicas_min=2, replicas_max=2, sources_max=2))
    assert choose_stage([1, 0, 0], manifest, can_feed=True, standby=False).stage == 0
    assert choose_stage([1, 0, 0], manifest, can_feed=False, standby=False).stage == 1
    assert choose_stage([2, 0, 0], manifest, can_feed=True, standby=False).stage == 1


def test_a_stage_that_hangs_on_one_peer_comes_before_another_ones_third() -> None:
    """Then the one with the least speed for its work: the first stage has two blocks."""
    manifest = Manifest(model=ModelSection(blocks=4), stages=StagesSection(body=3, replicas_max=4))
    assert choose_stage([1, 1, 1, 1], manifest, can_feed=False, standby=False).stage == 1
    assert choose_stage([1, 2, 1, 1], manifest, can_feed=False, standby=False).stage == 2
    assert choose_stage([1, 2, 2, 2], manifest, can_feed=False, standby=False).stage == 1


def test_a_stage_without_blocks_gets_one_replica() -> None:
    """A second one would have nothing to do: it goes where blocks are, or waits."""
    manifest, split = Manifest(model=ModelSection(blocks=6), stages=StagesSection(body=3, replicas_max=2)), BlockSplit((3, 0, 3))

    def place(counts: list[int]) -> int:
        return choose_stage(counts, manifest, can_feed=False, standby=False, split=split).stage

    assert [place(counts) for counts in ([1, 2, 1, 1], [1, 2, 1, 2], [1, 1, 0, 1])] == [3, ABSENT, 2]


def test_speed_decides_where_it_was_measured() -> None:
    """Of three stages with two replicas each, the slow pair gets the third one; an empty stage, and
    one that the run waits for, come before.
    """
    stages = StagesSection(body=3, replicas_min=2, replicas_max=4)
    manifest = Manifest(stages=stages)

    def place(counts: list[int], speeds: list[float]) -> int:
        return choose_stage(counts, manifest, can_feed=False, standby=False, speeds=speeds).stage

    assert place([1, 2, 2, 2], [1.0, 8.0, 8.0, 2.0]) == 3
    assert place([1, 2, 0, 2], [1.0, 8.0, 0.0, 2.0]) == 2
    assert place([1, 2, 1, 3], [1.0, 8.0, 8.0, 2.0]) == 2

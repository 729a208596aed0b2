"""Kill scripts: reading, refusing, when and whom."""

from __future__ import annotations

import pytest

from swarmfree.cockpit.fold import fold_all
from swarmfree.lab.kill_script import (
    FRACTION_MAX,
    FRACTION_MIN,
    Kill,
    Population,
    Target,
    check_kills,
    delay_s,
    parse_kill,
    victims,
)
from swarmfree.protocol.errors import ConfigError
from tests.cockpit.stories import beginning, iteration, wiped_out

REPLICAS_MAX = (1, 4, 4, 4)
MANY = Population(16, 4, REPLICAS_MAX, respawn=False)


@pytest.mark.parametrize(
    ("text", "kill"),
    [
        ("stage=2,iteration=60", Kill(60, 2)),
        ("iteration=60,stage=2,replicas=all", Kill(60, 2)),
        ("stage=1,iteration=5,replicas=one", Kill(5, 1, is_all=False)),
        ("stage=1, iteration=5, process=p2pd", Kill(5, 1, is_all=False, target=Target.P2PD)),
        ("process=bootstrap,iteration=9", Kill(9, -1, target=Target.BOOTSTRAP)),
    ],
)
def test_a_kill_is_read_and_written(text: str, kill: Kill) -> None:
    """A kill is read as it was meant, and written so that it can be read again."""
    assert parse_kill(text) == kill
    assert parse_kill(str(kill)) == kill


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not understood"),
        ("stage=2", "iteration is missing"),
        ("iteration=3", "stage is missing"),
        ("stage=two,iteration=3", "stage = two is not a number"),
        ("stage=-1,iteration=3", "stage = -1 is not a number"),
        ("stage=2,iteration=3,replicas=some", "none of all, one"),
        ("stage=2,iteration=3,process=me", "none of peer, p2pd, bootstrap"),
        ("stage=2,stage=2,iteration=3", "not understood"),
        ("stage=2,iteration=3,when=now", "when=now is not understood"),
        ("process=bootstrap,stage=1,iteration=3", "serves no stage"),
    ],
)
def test_a_bad_kill_is_refused_in_one_line(text: str, word: str) -> None:
    """A mistyped kill ends in one line that quotes it and says what is wrong."""
    with pytest.raises(ConfigError) as caught:
        parse_kill(text)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_kill_that_can_never_strike_is_refused() -> None:
    """A stage or iteration that the run does not have is an error before anything starts."""
    check_kills([Kill(99, 3), Kill(5, -1, target=Target.BOOTSTRAP)], MANY, iterations=100)
    with pytest.raises(ConfigError, match="stages 0 to 3"):
        check_kills([Kill(99, 4)], MANY, iterations=100)
    with pytest.raises(ConfigError, match="iterations 0 to 99"):
        check_kills([Kill(100, 3)], MANY, iterations=100)


def script(*kills: str) -> list[Kill]:
    """Kills as they are typed, in short: ``2@5`` is all of stage 2 in iteration 5, ``2-@5`` one of
    them.
    """
    return [Kill(int(text.split("@")[1]), int(text[0]), is_all="-" not in text) for text in kills]


@pytest.mark.parametrize(
    ("peers", "standbys", "kills", "why"),
    [
        (4, 0, ("0@5",), "iteration=5,replicas=all: nobody who can feed data would be left .* after iteration 5; add --standbys"),
        (7, 0, ("0@5",), "nobody who can feed data"),
        (4, 4, ("0@5", "1@5", "2@5", "3@5"), "nobody who holds a part of the model"),
        (7, 4, ("3@5", "0@5", "2@5", "1@5"), "nobody who holds a part of the model"),
    ],
)
def test_a_script_after_which_nobody_can_go_on_is_refused(peers: int, standbys: int, kills: tuple[str, ...], why: str) -> None:
    """Where too few peers, or none that can feed, would be left, the line says which kill, and what
    to add.
    """
    with pytest.raises(ConfigError, match=why):
        check_kills(script(*kills), Population(peers, standbys, REPLICAS_MAX, respawn=False), iterations=100)


@pytest.mark.parametrize(
    ("peers", "standbys", "kills"),
    [
        (7, 1, ("2@5",)),
        (4, 1, ("0@5",)),
        (7, 0, ("2@5",)),
        (7, 0, ("1-@5", "2-@6", "3-@7")),
        (7, 1, ("2@5", "0@9")),
        (4, 3, ("1@5", "2@5", "3@5")),
        (4, 0, ("2@5",)),
        (4, 0, ("3-@5",)),
        (4, 1, ("2@5", "2@9")),
        (4, 1, ("2@5", "1@5")),
        (5, 0, ("1@5", "2-@5")),
        (7, 0, ("1@5", "2@5")),
        (7, 1, ("1@5", "2@6", "3@7")),
    ],
)
def test_a_script_that_may_end_well_is_taken(peers: int, standbys: int, kills: tuple[str, ...]) -> None:
    """A standby takes the lost stage, or a replica of a stage that has two moves there, or another
    stage's peer takes in a guest.
    """
    check_kills(script(*kills), Population(peers, standbys, REPLICAS_MAX, respawn=False), iterations=100)


def test_a_peer_without_a_place_takes_a_lost_stage() -> None:
    """More peers than the run has places stand by, be they called standbys or not."""
    check_kills(script("1@5"), Population(3, 0, (1, 1), respawn=False), iterations=100)


def test_one_peer_serves_so_many_stages_and_no_more() -> None:
    """Its own and those of three guests; where more would be left to it, the script is refused."""
    kills = script("1@5", "2@5", "3@5", "4@5")
    check_kills(kills[:3], Population(4, 0, (1,) * 4, respawn=False), iterations=100)
    with pytest.raises(ConfigError, match="1 peer would be left for 5 stages"):
        check_kills(kills, Population(5, 0, (1,) * 5, respawn=False), iterations=100)


def test_whoever_comes_back_makes_a_script_possible() -> None:
    """With --respawn the same kill may strike again and again, unless it takes everybody who holds
    the model at once.
    """
    check_kills(script("2@5", "2@6", "0@7"), Population(4, 0, REPLICAS_MAX, respawn=True), iterations=100)
    with pytest.raises(ConfigError, match="nobody who holds"):
        check_kills(script("0@5", "1@5", "2@5", "3@5"), Population(4, 0, REPLICAS_MAX, respawn=True), iterations=100)


def test_the_moment_is_a_seeded_fraction_of_the_last_iteration() -> None:
    """The same seed strikes at the same fraction of the last iteration's duration; other seeds and
    entries elsewhere, within bounds.
    """
    state = fold_all([*beginning(), *iteration(0, 10)])
    delays = [delay_s(Kill(1, 2), index, seed, state) for seed in range(20) for index in range(5)]
    assert delays == [delay_s(Kill(1, 2), index, seed, state) for seed in range(20) for index in range(5)]
    assert len(set(delays)) == len(delays)
    assert all(FRACTION_MIN <= d <= FRACTION_MAX for d in delays)


def test_the_victims_serve_the_stage_now() -> None:
    """All replicas of a stage, or a seeded one of them, or the bootstrap node; after a rebuild the
    newcomer is the one.
    """
    state = fold_all([*beginning(), *iteration(0, 10)])
    assert victims(Kill(1, 2), 0, 0, state) == ("peer-3", "peer-6")
    ones = {victims(Kill(1, 2, is_all=False), index, 0, state) for index in range(20)}
    assert ones == {("peer-3",), ("peer-6",)}
    assert victims(Kill(1, -1, target=Target.BOOTSTRAP), 0, 0, state) == ("bootstrap",)
    after = fold_all([*beginning(), *iteration(2, 14), *wiped_out()])
    assert victims(Kill(4, 2), 0, 0, after) == ("standby-1",)


def test_nobody_is_struck_while_nobody_serves() -> None:
    """A kill of a stage that is just lost finds no victim."""
    lost = [h for h in wiped_out() if h.time_s < wiped_out()[3].time_s + 0.1]
    assert victims(Kill(3, 2), 0, 0, fold_all([*beginning(), *iteration(2, 14), *lost])) == ()

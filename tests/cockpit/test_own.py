"""What a volunteer sees: its place, its share, what it keeps, and the losses of a swarm that others
coordinate.
"""

from __future__ import annotations

import dataclasses
import io

import pytest

from swarmfree.cockpit.live import PlainView
from swarmfree.cockpit.peer_view import Means, OwnState, begin, hear, look, own_lines, stages_lost
from swarmfree.cockpit.screen import Window, picture
from swarmfree.cockpit.state import bits_per_byte
from swarmfree.protocol.actions import Copy, Fresh, Replay
from swarmfree.protocol.events import LOST_ENDS, LOST_ON_DISK, Ended, MemberLost, Note, Placed, StageLost, Started, Waiting
from swarmfree.protocol.manifest import BatchSection, Manifest, RunSection, StagesSection
from swarmfree.protocol.names import ABSENT, Endpoint, Position, Term
from swarmfree.protocol.peer_status import Glance, Made
from swarmfree.protocol.plan import Plan, Rebuilt, Replica, Share
from swarmfree.protocol.records import GENESIS_LINEAGE, Record, SetBatch, float32_bits, float64_bits
from tests.builders import make_entry, make_record
from tests.cockpit.drawing import GOLDEN, PICTURES, as_picture, drawn, require_kept
from tests.cockpit.stories import START_S, member_of

MANIFEST = Manifest(
    run=RunSection(name="evening", iterations=100), stages=StagesSection(body=3), batch=BatchSection(microbatches=4)
)
PLACES = (("lead",), ("me", "twin"), ("left", "right"), ("last",))
MEANS = Means("1 CPU thread", 512 * 10**6, 4096 * 10**6)


def endpoint(name: str) -> Endpoint:
    """Where a made-up member is."""
    return Endpoint(member_of(name), (f"/ip4/127.0.0.1/tcp/4001/p2p/{member_of(name).peer_id}",))


def record(iteration: int, loss: float, evaluation: float | None = None) -> Record:
    """A decided iteration."""
    entry = make_entry(squared_norm_bits=float64_bits(2.25), state_digest="bb", step_count=3, members=(member_of("me"),))
    bits = "" if evaluation is None else float64_bits(evaluation)
    return make_record(
        iteration=iteration,
        stages=(entry,) * 4,
        loss=loss,
        tokens=MANIFEST.tokens_per_iteration,
        evaluation_bits=bits,
        electorate=(member_of("lead"),),
    )


def plan(iteration: int, places: tuple[tuple[str, ...], ...] = PLACES, rebuilt: tuple[int, ...] = ()) -> Plan:
    """The plan of an iteration."""
    return Plan(
        Position(Term(1, member_of("lead")), iteration, 0, 0),
        "00" * 8,
        GENESIS_LINEAGE,
        tuple(tuple(Replica(endpoint(name)) for name in names) for names in places),
        (Share(member_of("lead"), tuple(range(4)), (), 4),),
        None,
        4,
        tuple(Rebuilt(stage, "cc" * 32, rate_scaled=False) for stage in rebuilt),
    )


def glance(iteration: int, *, contributions: int = 0, **known: object) -> Glance:
    """What the volunteer called "me" knows once `iteration` is open."""
    records = tuple(record(number, 5.0 - number / 100) for number in range(max(0, iteration - 3), iteration))
    found = Glance(
        here=member_of("me"),
        stage=1,
        coordinator=member_of("lead"),
        waiting_for="",
        plan=plan(iteration),
        records=records,
        contributions=contributions,
        kept_memory_bytes=31_000_000,
        made=None,
    )
    return dataclasses.replace(found, **known)  # type: ignore[arg-type]


def up() -> OwnState:
    """The volunteer is up."""
    me = member_of("me")
    own = begin(OwnState(means=MEANS), MANIFEST, START_S)
    return hear(own, Started(me.peer_id, me.incarnation, "/ip4/127.0.0.1/tcp/4001"), START_S + 1)


def trained(own: OwnState, iterations: int, *, start: int = 1, each_s: float = 1.0) -> OwnState:
    """So many iterations later, looked at after each."""
    for number in range(start, start + iterations):
        own = look(own, glance(number, contributions=2 * number), START_S + 10 + each_s * number, 12_000_000)
    return own


def text(own: OwnState, columns: int = 100, lines: int = 40) -> str:
    """The whole screen without colours."""
    now_s = own.swarm.now_s
    return "\n".join(line.plain for line in picture(own.swarm, now_s, Window(columns, lines), own_lines(own), own.name))


def name(who: str) -> str:
    """The name by which a volunteer's screen has somebody."""
    return str(member_of(who))


def test_a_member_that_does_not_coordinate_sees_loss_speed_and_time_left() -> None:
    """From its own books a member knows iteration, loss, speed and time left, and who serves
    what.
    """
    own = trained(up(), 30)
    swarm = own.swarm
    assert swarm.committed_count == 30
    assert swarm.pace_s == pytest.approx(1.0)
    assert swarm.remaining_s(swarm.now_s) == pytest.approx(70.0)
    assert swarm.tokens_per_s == pytest.approx(MANIFEST.tokens_per_iteration)
    assert [[p.name for p in swarm.replicas(stage)] for stage in range(4)] == [sorted(map(name, names)) for names in PLACES]
    shown = text(own)
    assert f"loss {bits_per_byte(5.0 - 0.29):.3f} bits/byte" in shown
    assert "30 / 100" in shown and "about 70 s left" in shown


def test_a_newcomer_says_nothing_of_the_pace_until_it_takes_part() -> None:
    """The records that it catches up with come as fast as it takes them."""
    others = plan(60, (("lead", "lead2"), ("other",), ("third", "third2"), ("last",)))
    own = look(up(), glance(60, plan=others), START_S + 20)
    assert own.swarm.remaining_s(own.swarm.now_s) is None
    for number in range(61, 70):
        own = look(own, glance(number, plan=others), START_S + 20 + 0.05 * (number - 60))
    for number in range(70, 75):
        own = look(own, glance(number), START_S + 21 + number - 70)
    assert own.swarm.pace_s == pytest.approx(1.0, rel=0.2)


def test_a_newcomer_that_reads_many_at_once_says_nothing_of_the_pace() -> None:
    """It catches up with what others did long ago."""
    others = plan(60, (("lead", "lead2"), ("other",), ("third", "third2"), ("last",)))
    own = look(up(), glance(60, plan=others), START_S + 20)
    for number, after_s in ((61, 20.05), (69, 20.5)):
        own = look(own, glance(number, plan=others), START_S + after_s)
        assert own.swarm.pace_s is None


def test_a_standby_knows_the_pace_that_it_sees() -> None:
    """It has no part in what it reads, and is not behind."""
    others = plan(60, (("lead", "lead2"), ("other",), ("third", "third2"), ("last",)))
    own = look(up(), glance(60, plan=others, stage=ABSENT), START_S + 20)
    assert own.swarm.remaining_s(own.swarm.now_s) is None, "one record says nothing"
    for number in range(61, 66):
        own = look(own, glance(number, plan=others, stage=ABSENT), START_S + 20 + 2 * (number - 60))
    assert own.swarm.pace_s == pytest.approx(2.0)


def test_a_volunteer_sees_its_place_and_its_share() -> None:
    """The screen says which stage this peer serves and with whom, which part of the work it does,
    and what it keeps of what it may keep.
    """
    own = trained(up(), 30)
    lines = [line.plain.strip() for line in own_lines(own)]
    assert lines == [
        f"you          stage 1 with 1 other, 50 % of its work ({name('me')})",
        f"60 microbatches, {60 * own.tokens / 1e3:.1f} k tokens, 1 CPU thread",
        "keeps 31 of 512 MB RAM, 12 of 4,096 MB disk",
    ]
    assert "● you" in text(own)


def test_the_share_counts_the_batches_that_were_set() -> None:
    """Half of the work is half of it also with three times as many microbatches."""
    own = trained(up(), 4)
    count = MANIFEST.batch.microbatches
    for number in range(5, 9):
        done = 2 * 4 + (number - 4) * 3 * count // 2
        seen = glance(number, contributions=done)
        batch = SetBatch(3 * count, count * (4 + 3 * (number - 4)), 4, float32_bits(1.0))
        own = look(
            own, dataclasses.replace(seen, records=(dataclasses.replace(seen.records[-1], batch=batch),)), START_S + 10 + number
        )
    assert own.share == pytest.approx(0.5)


def test_another_stage_begins_another_share() -> None:
    """What a peer did for a stage that it serves no longer is no part of its share of the next
    one.
    """
    own = look(trained(up(), 6), glance(7, contributions=700, stage=2), START_S + 20)
    assert own.share is None
    own = look(own, glance(9, contributions=704, stage=2), START_S + 22)
    assert own.share == 0.5


def test_which_stage_is_one_death_from_lost_is_said() -> None:
    """A stage with one replica says so, whoever looks."""
    shown = text(trained(up(), 5)).splitlines()
    assert next(line for line in shown if line.startswith(" stage 3")).endswith("only one")
    assert next(line for line in shown if line.startswith(" stage 2")).endswith("safe")


def test_a_loss_that_the_coordinator_waits_for_is_seen_by_all() -> None:
    """What the coordinator waits for says that a stage is lost; the next plan says who rebuilt it,
    and the next commit ends the story.
    """
    own = trained(up(), 5)
    own = look(own, glance(5, waiting_for=f"stage 2{LOST_ENDS}"), START_S + 16)
    assert "LOST" in next(line for line in text(own).splitlines() if line.startswith(" stage 2"))
    places = (*PLACES[:2], ("spare",), *PLACES[3:])
    own = look(own, glance(5, plan=plan(5, places, rebuilt=(2,))), START_S + 17)
    own = look(own, glance(6, plan=plan(6, places)), START_S + 18)
    (story,) = own.swarm.lost_stages
    assert (story.stage, story.builder, story.resumed_iteration) == (2, name("spare"), 5)
    assert story.victims == tuple(sorted((name("left"), name("right"))))
    assert f"last loss    0:16 stage 2 lost for 2.0 s: rebuilt by {name('spare')}" in text(own)
    assert any(news.text == f"{name('spare')} has rebuilt stage 2" for news in own.swarm.news)


def test_a_loss_that_was_over_before_the_next_look_is_told_too() -> None:
    """A stage whose members are all others in the next plan, and which that plan calls rebuilt, was
    lost in between.
    """
    places = (*PLACES[:2], ("spare",), *PLACES[3:])
    own = look(trained(up(), 5), glance(5, plan=plan(5, places, rebuilt=(2,))), START_S + 15.2)
    texts = [news.text for news in own.swarm.news]
    assert f"stage 2 is lost: {', '.join(sorted((name('left'), name('right'))))} served it" in texts
    assert f"{name('spare')} has rebuilt stage 2" in texts


def test_a_stage_that_only_this_peer_could_not_reach_was_not_lost() -> None:
    """Where an iteration is decided though a stage seemed lost from here, nothing was lost, and
    nothing stays on the screen.
    """
    own = look(trained(up(), 5), glance(5, lost=(2,)), START_S + 15.5)
    assert [story.stage for story in own.swarm.unfolding] == [2]
    own = look(own, glance(6), START_S + 16)
    assert own.swarm.lost_stages == ()


def test_whoever_leaves_and_comes_is_told() -> None:
    """A replica that is missing in the next plan, and one that is new in it, are news of one line
    each.
    """
    places = (*PLACES[:2], ("left", "fresh"), *PLACES[3:])
    own = look(trained(up(), 5), glance(6, plan=plan(6, places)), START_S + 16)
    texts = [news.text for news in own.swarm.news]
    assert f"{name('right')} of stage 2 is gone" in texts
    assert f"{name('fresh')} serves stage 2" in texts


def test_you_rebuilt_stays_in_bold() -> None:
    """A volunteer that rebuilt a lost stage reads so, in bold, for as long as its peer lives."""
    own = trained(up(), 20)
    action = Replay(2, 2, (endpoint("left"),), 10, (endpoint("me"),), (endpoint("last"),), "why")
    own = look(own, glance(20, stage=-1, making=action), START_S + 30.5)
    row = next(line for line in text(own).splitlines() if line.startswith(" stage 2"))
    assert "LOST" in row and "you replay 10 iterations" in row
    own = look(own, glance(20, stage=2, made=Made(action, 20, 0.1, 2_400_000, exact=True)), START_S + 31)
    own = look(own, glance(40, stage=2, made=own.made), START_S + 60)
    last = own_lines(own)[-1]
    assert last.plain.strip() == "you rebuilt stage 2 in 0.1 s: replayed 10 iterations, bit for bit"
    assert "bold" in str(last.style)


def test_a_copied_stage_is_no_rebuilt_one() -> None:
    """Who copied a replica reads that, and nothing was lost; who draws first weights reads which
    stage it serves.
    """
    copied = Made(Copy(1, (endpoint("twin"),), "why"), 4, 0.3, 1000, exact=False)
    own = look(trained(up(), 3), glance(4, made=copied), START_S + 14)
    assert any(n.text == "you hold stage 1: copied from a replica in 0.3 s" for n in own.swarm.news)
    assert own.swarm.lost_stages == () and own.rebuilt == ""
    drawn = look(up(), glance(0, records=(), made=Made(Fresh(1, 0, "why"), 0, 0.1, 0, exact=False)), START_S + 2)
    assert [n.text for n in drawn.swarm.news] == ["you serve stage 1"]


def test_a_standby_says_that_it_stands_by() -> None:
    """A peer without a stage says what it is there for, and sees the swarm by what the coordinator
    tells it.
    """
    own = look(up(), glance(3, stage=-1), START_S + 5)
    assert f"ready to rebuild a stage ({name('me')})" in own_lines(own)[0].plain
    assert own.swarm.committed_count == 3


def test_what_the_coordinator_tells_itself_is_not_told_twice() -> None:
    """On the coordinator's own screen a loss comes from its events alone."""
    own = trained(up(), 5)
    leads = {"coordinator": member_of("me"), "here": member_of("me")}
    left, right = member_of("left"), member_of("right")
    for gone in (left, right):
        own = hear(own, MemberLost(str(gone), gone.peer_id, 2, "connection broke"), START_S + 16)
    own = hear(own, StageLost(2, 5, str(right)), START_S + 16)
    places = (*PLACES[:2], ("spare",), *PLACES[3:])
    own = look(own, glance(5, plan=plan(5, places, rebuilt=(2,)), **leads), START_S + 17)
    assert len(own.swarm.lost_stages) == 1
    assert sum("is lost" in news.text for news in own.swarm.news) == 1


def test_a_loss_that_is_told_before_the_last_record_was_read_stays() -> None:
    """The coordinator hears of a loss in the iteration under way while its screen has not read the
    one before: the stage is lost all the same.
    """
    own = hear(trained(up(), 5), StageLost(2, 6, str(member_of("right"))), START_S + 16)
    own = look(own, glance(6, coordinator=member_of("me"), here=member_of("me")), START_S + 17)
    assert own.swarm.committed_count == 6
    assert [story.stage for story in own.swarm.unfolding] == [2]


def test_own_notes_have_no_name_before_them() -> None:
    """What this peer tells itself needs nobody's name; its place is seen on its books, and its end
    is told.
    """
    own = hear(up(), Note("a word"), START_S + 2)
    own = hear(own, Placed(member_of("me").peer_id, 1), START_S + 2)
    own = hear(own, Ended(0, "the run is over"), START_S + 3)
    assert [(n.who, n.text) for n in own.swarm.news] == [("", "a word"), ("", "ends: the run is over")]


def test_every_peer_tells_a_line_every_ten_seconds() -> None:
    """In a pipe a peer tells one line every ten seconds, whoever coordinates and however fast
    iterations are, and news as they come.
    """
    out = io.StringIO()
    view = PlainView(out, 10.0, by_clock=True)
    own = up()
    for number in range(1, 301):
        own = look(own, glance(number, contributions=2 * number), START_S + 10 + number / 4)
        view.show(own.swarm, own.swarm.now_s, own_lines(own))
    lines = out.getvalue().splitlines()
    assert len([line for line in lines if " iteration " in line]) == 7
    assert len(lines) <= 9
    assert "you stage 1 with 1 other, 50 % of its work" in lines[-1] and "keeps 31 of 512 MB RAM" in lines[-1]


def test_what_it_waits_for_is_on_the_screen() -> None:
    """Before the run begins the screen says what is waited for."""
    own = hear(up(), Waiting("waiting for peers: stage 3 has 0 of 1"), START_S + 3)
    assert "waiting for peers: stage 3 has 0 of 1" in text(own)


@pytest.mark.parametrize(
    ("says", "stages"),
    [("", ()), (f"stage 2{LOST_ENDS}", (2,)), (f"stage 1, stage 12{LOST_ON_DISK}", (1, 12)), ("stage 1 has 0", ())],
)
def test_lost_stages_are_read_off_what_is_waited_for(says: str, stages: tuple[int, ...]) -> None:
    """The coordinator's sentence about lost stages names them, and no other sentence does."""
    assert stages_lost(says) == stages


def test_who_stands_by_is_read_off_the_directory() -> None:
    """Nobody is said to stand by before the directory was read; then those are there whom it names,
    and nobody else.
    """
    own = trained(up(), 3)
    assert "standing by  not known yet" in text(own)
    spare, other = member_of("spare"), member_of("other")
    own = look(own, glance(4), START_S + 15, standbys=(spare, other))
    assert f"standing by  {other}, {spare}" in text(own) or f"standing by  {spare}, {other}" in text(own)
    own = look(own, glance(5), START_S + 16, standbys=(spare,))
    assert f"standing by  {spare}" in text(own) and str(other) not in text(own)
    own = look(own, glance(6), START_S + 17, standbys=())
    assert "standing by  nobody: the next loss waits for a newcomer" in text(own)


def moments() -> dict[str, OwnState]:
    """Before, while and after the volunteer, which stands by, rebuilds a stage that others
    served.
    """
    standby, places = {"stage": -1}, (PLACES[0], ("twin",), *PLACES[2:])
    spare = (member_of("other"),)
    own = up()
    for number in range(1, 41):
        own = look(own, glance(number, plan=plan(number, places), **standby), START_S + 10 + number, standbys=spare)
    action = Replay(2, 2, (endpoint("left"),), 30, (endpoint("twin"),), (endpoint("last"),), "why")
    during = look(own, glance(40, plan=plan(40, places), making=action, waiting_for="", **standby), START_S + 50.9)
    during = look(during, glance(40, plan=plan(40, places), making=action, **standby), START_S + 51.6)
    made = Made(action, 40, 0.8, 2_400_000, exact=True)
    after = (PLACES[0], ("twin",), ("me",), PLACES[3])
    later = during
    for number in range(40, 71):
        known = {"stage": 2, "plan": plan(number, after, rebuilt=(2,) if number == 40 else ()), "made": made}
        later = look(later, glance(number, contributions=4 * (number - 40), **known), START_S + 52.5 + number - 40, 40_000_000)
    return {"before": own, "during": during, "after": later}


def test_what_waited_for_a_stage_was_decided_after_that_was_there() -> None:
    """A loss that lasts eight seconds lies between two looks at the records: the first iteration
    after it is not told as one of before.
    """
    own, after = moments()["during"], (PLACES[0], ("twin",), ("me",), PLACES[3])
    made = Made(
        Replay(2, 2, (endpoint("left"),), 30, (endpoint("twin"),), (endpoint("last"),), "why"), 40, 0.8, 2_400_000, exact=True
    )
    for number, at_s in ((40, 59.0), (44, 61.0)):
        known = {"stage": 2, "plan": plan(number, after, rebuilt=(2,) if number == 40 else ()), "made": made}
        own = look(own, glance(number, contributions=4, **known), START_S + at_s, 40_000_000)
    (told,) = (news for news in own.swarm.news if news.text.startswith("training goes on: iteration"))
    assert START_S + 59 < told.time_s < START_S + 61


@pytest.mark.parametrize("size", [(60, 23), (80, 23), (120, 40)])
@pytest.mark.parametrize("name", ["before", "during", "after"])
def test_the_screen_of_a_volunteer_is_the_one_kept(request: pytest.FixtureRequest, name: str, size: tuple[int, int]) -> None:
    """Before, while and after it rebuilds a stage, a volunteer's screen is the one that was looked
    at, as text and as a picture.
    """
    own, window, write = moments()[name], Window(*size), request.config.getoption("--write-screens")
    lines = picture(own.swarm, own.swarm.now_s, window, own_lines(own), own.name)
    where = f"{name}-{size[0]}x{size[1]}"
    require_kept(GOLDEN / f"peer-{where}.txt", drawn(lines), write=write)
    image = as_picture(
        lines, window, f"swarmfree peer, {'while' if name == 'during' else name} it rebuilds a stage", has_colours=True
    )
    require_kept(PICTURES / f"peer-{where}.svg", image, write=write)
    assert max(line.cell_len for line in lines) <= size[0]
    assert len(lines) <= size[1]

"""What a person sees: live view, plain lines, status."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
from typing import Self

import pytest
from rich.console import Console, RenderableType

from swarmfree.cli import status_query
from swarmfree.cli.status import _look
from swarmfree.cockpit.fold import fold, fold_all
from swarmfree.cockpit.live import LiveView, PlainView, open_view, progress_line
from swarmfree.cockpit.state import SwarmState
from swarmfree.cockpit.status import RunStatus, invite_points, status_json, status_line, status_picture
from swarmfree.cockpit.text import span
from swarmfree.lab.summary import summarise
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.manifest import Manifest, RunSection
from swarmfree.protocol.names import Endpoint, Position, Term
from swarmfree.protocol.order import Halting
from swarmfree.protocol.plan import Plan, Replica, Share
from swarmfree.protocol.records import SetBatch, float32_bits, float64_bits
from swarmfree.wire.invite import Invite
from tests.builders import make_entry, make_record
from tests.cockpit.stories import START_S, beginning, iteration, member_of, whole_story, wiped_out


def _text(renderable: RenderableType, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_plain_lines_tell_news_and_progress() -> None:
    """Without a terminal each news is a line, and progress comes at most every so many seconds, the
    last one at the end.
    """
    out, state = io.StringIO(), SwarmState()
    view = PlainView(out, interval_s=5.0)
    for observed_event in whole_story():
        state = fold(state, observed_event)
        view.show(state)
    view.close(state)
    lines = out.getvalue().splitlines()
    assert sum("iteration" in line and "bits per byte" in line for line in lines) == 3
    assert any("standby-1 merges stage 2 from its neighbours, weights 0.750 before and 0.250 after" in line for line in lines)
    assert any("training goes on: iteration 3 committed 3.1 s after stage 2 was lost" in line for line in lines)
    assert lines[-1].endswith("iteration 6 of 6, loss 4.328 bits per byte, held out 2.800")


def test_the_last_plain_line_has_the_loss_held_out_last() -> None:
    """An evaluation that came after the last progress line is told at the end; nothing is told
    twice.
    """
    out, state = io.StringIO(), fold_all(whole_story())
    view = PlainView(out, interval_s=0.0)
    before = dataclasses.replace(state, evaluations=state.evaluations[:-1])
    view.show(before)
    view.show(dataclasses.replace(before, now_s=before.now_s + 1))
    assert "held out 2.800" not in out.getvalue()
    view.close(state)
    assert out.getvalue().splitlines()[-1].endswith("iteration 6 of 6, loss 4.328 bits per byte, held out 2.800")
    told = out.getvalue()
    view.close(state)
    assert out.getvalue() == told


def test_the_last_plain_line_names_no_time_that_is_left() -> None:
    """Whoever ends in a pause would promise that the run goes on."""
    out, state = io.StringIO(), fold_all([*beginning(), *iteration(0, 10), *iteration(1, 12)])
    view = PlainView(out, interval_s=0.0)
    view.show(fold_all([*beginning(), *iteration(0, 10)]))
    assert progress_line(state).endswith("left")
    view.close(state)
    assert out.getvalue().splitlines()[-1].endswith("tokens/s")


def test_plain_lines_never_fall_silent() -> None:
    """While nothing moves, a line every so many seconds says what is waited for."""
    out, state = io.StringIO(), fold_all(h for h in beginning() if h.time_s < START_S + 5)
    view = PlainView(out, wait_s=10.0)
    for second in range(35):
        view.show(state, START_S + 5 + second)
    assert out.getvalue().count("iteration 0 of 6: waits: 1 more replica of stage 3") == 3


def test_plain_lines_tell_all_news_that_came_at_once() -> None:
    """One event may bring several lines of news: none is left out, and none is told twice."""
    out, state = io.StringIO(), fold_all(whole_story())
    view = PlainView(out)
    view.show(state)
    view.show(state)
    assert [line[11:].strip() for line in out.getvalue().splitlines()] == [
        f"{n.who}: {n.text}" if n.who else n.text for n in state.news
    ]


def test_the_live_view_draws_in_place_and_gives_the_terminal_back() -> None:
    """On a terminal the picture is drawn over itself, and the cursor is shown again at the end."""
    out = io.StringIO()
    view = LiveView(Console(file=out, force_terminal=True, width=120), frame_s=0.0)
    state = fold_all([*beginning(), *iteration(0, 10)])
    view.show(state)
    view.show(state)
    view.close(state)
    view.close(state)
    assert out.getvalue().count("made-up") >= 3
    assert out.getvalue().rstrip().endswith("\x1b[?25h")


class _Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_a_pipe_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no terminal gets lines, and so does one that cannot be drawn on."""
    assert isinstance(open_view(io.StringIO()), PlainView)
    assert isinstance(open_view(_Terminal()), LiveView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_view(_Terminal()), PlainView)


def test_spans_have_the_right_units() -> None:
    """Durations are told in the unit a person would choose."""
    assert [span(s) for s in (0.2, 8, 185, 7800)] == ["0 s", "8 s", "3 min 05 s", "2 h 10 min"]


def test_progress_before_the_first_commit_says_what_is_missing() -> None:
    """Before the first commit the progress line says what the run waits for."""
    state = fold_all(h for h in beginning() if h.time_s < START_S + 5)
    assert progress_line(state) == "iteration 0 of 6: waits: 1 more replica of stage 3"
    assert progress_line(SwarmState()) == "starting: loading torch"


def test_a_rebuild_has_neither_speed_nor_time_left() -> None:
    """While a stage is lost, the progress line says so in place of tokens per second and time
    left.
    """
    until_built = [h for h in wiped_out() if h.time_s <= START_S + 20.5]
    state = fold_all([*beginning(), *iteration(2, 14), *until_built])
    assert progress_line(state) == "iteration 3 of 6, loss 6.492 bits per byte, stage 2 is being rebuilt"


def _status(*, answered: bool) -> RunStatus:
    manifest = Manifest()
    names = ("peer-1", "peer-2", "peer-3", "peer-4")
    endpoints = [Endpoint(member_of(n), (f"/ip4/127.0.0.1/tcp/4001/p2p/{member_of(n).peer_id}",)) for n in names]
    announcements = tuple(
        Announcement(e, PeerState.SERVING, stage, 3, "ab" * 32, 2.0, 0.125, stage == 0, 1, START_S + 12)
        for stage, e in enumerate(endpoints)
    )
    term = Term(1, endpoints[0].member)
    first = endpoints[0].member
    entry = make_entry(squared_norm_bits=float64_bits(2.25), step_count=3, members=(first,))
    record = make_record(
        iteration=2, term=term, stages=(entry,) * 4, loss=4.0, tokens=8192, evaluation_bits=float64_bits(3.5), electorate=(first,)
    )
    plan = Plan(
        Position(term, 3, 1, 0),
        "00" * 8,
        record.lineage(),
        tuple((Replica(e),) for e in endpoints),
        (Share(endpoints[0].member, tuple(range(8)), (), 4),),
        record,
        8,
    )
    if not answered:
        return RunStatus(manifest, "QmFounder", announcements, "", None, None, "", START_S)
    return RunStatus(manifest, "QmFounder", announcements, str(term.member), plan, record, "", START_S)


def test_status_says_where_the_run_is() -> None:
    """Status shows the iteration, the losses, speed and time left, and for each stage its members
    and the risk.
    """
    status = dataclasses.replace(_status(answered=True), iteration_s=0.5)
    text = _text(status_picture(status))
    for part in (
        "3 of 100 iterations",
        "iteration 3 is open, attempt 1",
        "loss 5.771 bits per byte, held out 5.049",
        "tokens/s, about 50 s left",
        "only one",
        "serving",
        "0.125",
    ):
        assert part in text


def test_status_says_why_members_do_not_answer_who_looks() -> None:
    """Whoever has no leave is not told that nobody is there; of a run that is over it is."""
    for announced in (_status(answered=False), dataclasses.replace(_status(answered=False), announcements=())):
        assert "without leave (ticket expired)" in _text(status_picture(dataclasses.replace(announced, refusal="ticket expired")))
        over = dataclasses.replace(announced, refusal="ticket expired", seen=announced.manifest.run.iterations)
        assert "without leave" not in _text(status_picture(over)) and "is over" in over.presence
        assert "ordered a pause" in dataclasses.replace(announced, refusal="ticket expired", halt=Halting.PAUSE).presence


def test_status_counts_the_batch_that_was_set() -> None:
    """Speed is that of the last iteration's tokens, whatever batch the run began with; how many
    microbatches come next is told once they are others.
    """
    status = dataclasses.replace(_status(answered=True), iteration_s=0.5)
    usual = status.manifest.batch.microbatches
    assert status.record is not None
    assert (status.microbatches, status.tokens_per_s) == (usual, status.record.tokens / 0.5)
    assert "microbatches" not in status_line(status)
    batch = SetBatch(3 * usual, 5 * usual, 3, float32_bits(1.0))
    record = dataclasses.replace(status.record, tokens=4 * status.manifest.tokens_per_iteration, batch=batch)
    later = dataclasses.replace(status, record=record)
    assert later.tokens_per_s == 4 * status.manifest.tokens_per_iteration / 0.5
    assert f"{3 * usual} microbatches in an iteration, as its organiser has set" in status_line(later)
    assert (status_json(later)["microbatches"], status_json(status)["microbatches"]) == (3 * usual, usual)


def test_status_says_who_was_moved_last() -> None:
    """In the words of the coordinator, in text and JSON; nothing where nobody was."""
    told = "4f2a1b moves from stage 1 to stage 2: why"
    status = dataclasses.replace(_status(answered=True), last_move=told)
    assert f"last move: {told}" in _text(status_picture(status))
    assert status_json(status)["last_move"] == told
    assert "last move" not in _text(status_picture(_status(answered=True)))


def test_status_says_what_holds_up_a_pause() -> None:
    """The organiser's command has ended by then."""
    told = "cannot pause yet, and goes on until each stage lies on a disk: stage 2: 4f2a1b: no snapshot is written"
    status = dataclasses.replace(_status(answered=True), held_up=told)
    assert told in " ".join(_text(status_picture(status)).split())
    assert (status_json(status)["held_up"], status_json(_status(answered=True))["held_up"]) == (told, "")


def test_status_says_whose_guest_a_peer_is() -> None:
    """By its host's name in both tables, and by peer id in JSON; a host that nobody knows is named
    by its peer id. Of others nothing is said.
    """
    guest, host = str(member_of("peer-3")), member_of("peer-2")
    status = dataclasses.replace(_status(answered=True), hosts={guest: host.peer_id})
    rows = _text(status_picture(status)).splitlines()
    assert f"{guest} (guest of {host})" in next(row for row in rows if row.startswith("2 body"))
    assert f"serving, guest of {host}" in next(row for row in rows if row.startswith(guest))
    assert sum("guest of" in row for row in rows) == 2
    assert [peer["guest_of"] for peer in status_json(status)["peers"]] == [None, None, host.peer_id, None]
    assert dataclasses.replace(status, hosts={guest: "QmElsewhere"}).guest_words(guest) == "guest of QmElsewhere"


def test_status_names_no_dead_members() -> None:
    """Who does not answer serves no stage, whatever plan and directory still say; a stage without
    anybody is lost.
    """
    dead = str(member_of("peer-3"))
    status = dataclasses.replace(
        _status(answered=True), gone=frozenset({dead}), waiting_for="stage 2 lost, waiting for a standby", iteration_s=0.5
    )
    text = _text(status_picture(status))
    row = next(line for line in text.splitlines() if line.startswith("2 body"))
    assert "nobody" in row and "LOST" in row and dead not in row
    assert next(line for line in text.splitlines() if line.startswith(dead)).split()[1] == "gone"
    assert status_json(status)["stages"][2]["members"] == []
    assert "tokens/s" not in text and " left" not in text
    assert status_json(status)["remaining_s"] is None


def test_status_says_that_a_silent_stage_holds_the_run_up() -> None:
    """While the only peer of a stage is called for, no member says that the run waits; status does,
    and promises no time. Once the run is over nothing waits.
    """
    status = dataclasses.replace(_status(answered=True), iteration_s=0.5)
    assert status.held_up_by == "" and "tokens/s" in status_line(status)
    silent = dataclasses.replace(status, gone=frozenset({str(member_of("peer-3"))}))
    assert "waits: no peer of stage 2 answers; they are called before it is rebuilt" in status_line(silent)
    assert "tokens/s" not in status_line(silent) and silent.remaining_s is None
    assert status_json(silent)["waiting_for"] == silent.held_up_by
    assert dataclasses.replace(silent, seen=100, record=None).held_up_by == ""


def test_status_tells_no_invite_that_is_the_one_at_hand() -> None:
    """An invite of the bootstrap node's own address, or of the very addresses at hand, is none that
    would serve without it.
    """
    announced = _status(answered=False).announcements
    node, visitor = "/ip4/127.0.0.1/tcp/1/p2p/QmNode", "/ip4/127.0.0.1/tcp/2/p2p/QmVisitor"
    mine = f"/ip4/127.0.0.1/tcp/3/p2p/{member_of('peer-1').peer_id}"
    assert invite_points([node, visitor], announced, [node]) == ()
    assert invite_points([mine, node], announced, [node]) == (mine,)
    assert invite_points([mine], announced, [mine, node]) == ()
    assert invite_points([mine, node], announced, [mine]) == ()


def test_status_without_a_measured_iteration_claims_no_time() -> None:
    """Where nobody could tell how long an iteration takes, neither speed nor time left is told."""
    line = status_line(_status(answered=True))
    assert "tokens/s" not in line and "left" not in line


def test_status_without_an_answer_is_the_directorys_word() -> None:
    """Where no member answers, status shows what the directory says and that this is all."""
    status = _status(answered=False)
    assert "no member answered" in _text(status_picture(status))
    told = status_json(status)
    assert told["stages"][1]["announced"] == [str(member_of("peer-2"))]
    assert told["loss"] is None
    json.dumps(told)


async def test_a_watch_ends_with_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`status --watch` looks again until all iterations are decided, and ends with 0."""
    going = _status(answered=True)
    iterations = [going.manifest.run.iterations, 4, 3]
    looks = [
        dataclasses.replace(going, manifest=dataclasses.replace(going.manifest, run=RunSection("made-up", iterations=n)))
        for n in iterations
    ]

    class Lookout:
        def __init__(self, *_: object) -> None:
            """Nobody is asked."""

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            """Nothing is open."""

        async def look(self) -> RunStatus:
            return looks.pop(0)

    monkeypatch.setattr(status_query, "Lookout", Lookout)
    async with asyncio.timeout(10):
        assert await _look(Invite("ab" * 32, ()), 1.0, 0.1, as_json=False) == 0
    assert not looks
    assert capsys.readouterr().out.count("made-up: 3 of ") == 3


def test_status_where_nobody_answers_still_says_how_far_the_run_was() -> None:
    """Iterations that the directory or an earlier look told are not forgotten when no member
    answers, and no stage is called lost.
    """
    gone = frozenset(str(member_of(f"peer-{number}")) for number in range(1, 5))
    text = _text(status_picture(dataclasses.replace(_status(answered=False), gone=gone)))
    assert "3 of 100 iterations" in text and "not seen" in text and "LOST" not in text
    left = dataclasses.replace(_status(answered=False), announcements=(), seen=54)
    text = _text(status_picture(left))
    assert "54 of 100 iterations" in text and "nobody is there any more" in text and "yet" not in text


@pytest.mark.parametrize("halt", [Halting.NOT, Halting.STOP])
@pytest.mark.parametrize("announcements", [(), None], ids=["nobody", "some"])
def test_status_believes_the_organiser_that_a_run_is_over(halt: Halting, announcements: tuple[Announcement, ...] | None) -> None:
    """Once members' words have lapsed nobody can say how many iterations were done; whoever watches
    is through. Where a member answers, it goes by that.
    """
    left = dataclasses.replace(_status(answered=False), said_over=True, halt=halt)
    over = left if announcements is None else dataclasses.replace(left, announcements=announcements)
    text = _text(status_picture(over))
    assert over.is_over and status_json(over)["over"] is True
    assert f"the run {'was stopped by its organiser' if halt is Halting.STOP else 'is over'}, and everybody has left" in text
    assert "yet" not in text and "LOST" not in text and "or was lost" not in text
    assert ("over; nobody can say how many of 100" in text) == (halt is Halting.STOP or announcements is not None)
    assert not dataclasses.replace(_status(answered=True), said_over=True).is_over


def test_status_of_a_run_that_everybody_left_claims_nothing() -> None:
    """Where a founder was named and nobody is left, status says neither that no iteration is done
    nor that nobody came yet.
    """
    text = _text(status_picture(dataclasses.replace(_status(answered=False), announcements=())))
    assert "nobody can say how many of 100 iterations are done" in text
    assert "the run is over, or was lost" in text and "yet" not in text and " 0 of" not in text


def test_status_before_anybody_came_says_so() -> None:
    """Where no founder is named, no iteration is done and nobody is announced yet."""
    text = _text(status_picture(dataclasses.replace(_status(answered=False), announcements=(), founder=None)))
    assert "0 of 100 iterations" in text and "nobody is announced yet" in text


def test_status_of_a_run_that_is_over_says_so() -> None:
    """Where all iterations are decided and nobody answers, the run is over, and no stage is
    lost.
    """
    over = dataclasses.replace(_status(answered=False), announcements=(), seen=100)
    text = _text(status_picture(over))
    assert over.is_over and "100 of 100 iterations" in text and "the run is over" in text
    assert "LOST" not in text and "yet" not in text


def test_status_of_a_paused_run_says_how_it_goes_on() -> None:
    """Where everybody left by the organiser's order, no status calls the run over or lost."""
    for announcements in ((), _status(answered=False).announcements):  # some hold until they expire
        left = dataclasses.replace(_status(answered=False), announcements=announcements, halt=Halting.PAUSE)
        text = _text(status_picture(left))
        assert "ordered a pause" in text and "in the same folders go on" in text and "lost" not in text


def test_status_of_a_stopped_run_does_not_claim_all_its_iterations() -> None:
    """Peers that left a stopped run say that it is through; how far it came, they do not say."""
    left = dataclasses.replace(_status(answered=False), seen=100, halt=Halting.STOP)
    text = _text(status_picture(left))
    assert "was stopped by its organiser" in text and "100 of 100" not in text


def test_a_run_that_goes_on_shows_neither_the_time_away_nor_old_news() -> None:
    """Two days lie between its processes: clock and time left do not count them, nothing says that
    training has waited for so long, and what was news before is not told again.
    """
    away_s = 2 * 86400.0
    first = [*beginning(), *iteration(0, 10), *iteration(1, 11), *wiped_out()[:8]]
    before = fold_all(first)
    assert before.news
    began_s = before.now_s + away_s
    again = fold(before, dataclasses.replace(beginning()[0], time_s=began_s))
    assert again.news == ()
    assert again.remaining_s(began_s + 1) is None
    assert progress_line(again, began_s + 1).endswith("going on: 0 of 7 peers are up")
    moved = [dataclasses.replace(each, time_s=each.time_s - START_S + began_s) for each in [*beginning(), *iteration(2, 9)]]
    up = fold_all(moved[1:-1], again)
    at_s = up.now_s + 1
    assert up.clock_s(at_s) == pytest.approx(at_s - START_S - away_s)
    assert 0 < up.since_commit_s(at_s) < 100
    assert "d" not in span(up.clock_s(at_s))
    out = io.StringIO()
    view = PlainView(out, interval_s=0.0, wait_s=0.0)
    view.show(up, at_s)
    assert f"{up.clock_s(at_s):7.1f} s" in out.getvalue().splitlines()[-1]
    going_on = fold_all(moved[1:], again)
    left_s = going_on.remaining_s(going_on.now_s)
    assert left_s is not None and left_s < 60
    assert summarise(going_on, 0, "")["seconds"] == pytest.approx(going_on.clock_s(going_on.now_s))
    assert going_on.clock_s(going_on.now_s) < 1000

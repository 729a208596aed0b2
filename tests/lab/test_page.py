"""The page of a report and the comparison of several: whole in one file, true to the run, and
nothing of a run runs in it.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from runs_made_up import THEIR_WORDS, THREE, Loss, RunMadeUp

from swarmfree.cockpit.fold import fold_all
from swarmfree.cockpit.state import Joined
from swarmfree.lab.comparison import Compared, curves_of, finding, lines_of, read_reports, write_comparison
from swarmfree.lab.outcome import headline
from swarmfree.lab.page import ROWS_MAX, timeline_of, write_page
from swarmfree.lab.report import CONFIG_FILE, SAMPLES_FILE, write_summary
from swarmfree.lab.summary import summarise
from swarmfree.protocol.errors import ConfigError

VOID = {"meta", "link", "br", "img", "path", "use", "rect", "line"}


class Page(HTMLParser):
    """What a page is made of: tags that are open at its end, words, and every address in it."""

    def __init__(self, text: str) -> None:
        """Read it."""
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag opens."""
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href", "action", "data"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag opens and closes."""
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}]

    def handle_endtag(self, tag: str) -> None:
        """A tag closes, the last one that is open."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Words between tags."""
        self.words.append(data)


def report(folder: Path, run: RunMadeUp, config: str = "") -> Path:
    """A report as `local` leaves it."""
    write_summary(folder, summarise(run.write(folder), 0, ""))
    if config:
        (folder / CONFIG_FILE).write_text(config)
    return folder


@pytest.fixture(scope="module", params=[(), (Loss(30, 1),), THREE], ids=["no loss", "one", "three"])
def made_up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The page of a run with so many losses, and its outcome; drawn once for all who look at it."""
    folder = tmp_path_factory.mktemp("page")
    summary = write_page(report(folder, RunMadeUp(request.param), '[run]\nname = "made-up"\n'), folder)
    return (folder / "report.html").read_text(), summary["outcome"]


def test_a_page_is_whole_in_one_file(made_up: tuple[str, str]) -> None:
    """Every tag is closed, nothing is fetched, nothing runs; the outcome is its first line, and the
    figure is in it for two widths.
    """
    text, outcome = made_up
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert all(address.startswith(("#", "data:")) for address in page.addresses), page.addresses
    assert not re.findall(r"""url\(['"]?(?!#)""", text)
    assert "@import" not in text
    assert text.count("<svg") == 2
    words = [word.strip() for word in page.words if word.strip()]
    heading = words[next(index for index, word in enumerate(words) if word == outcome)]
    assert heading == outcome
    assert 'name = "made-up"' in text.replace("&#34;", '"')
    assert "UNAVAILABLE" not in text


def test_what_a_run_says_is_no_html(tmp_path: Path) -> None:
    """A name, a sample and a config with angle brackets are shown as they are."""
    folder = report(tmp_path, RunMadeUp((Loss(30, 1),), name="<b>x</b>"), "# <script>alert(1)</script>")
    sample = {"when": "at the end", "prompt": "<i>", "text": "</pre><script>"}
    (folder / SAMPLES_FILE).write_text(json.dumps([sample]))
    write_page(folder, folder)
    page = Page((folder / "report.html").read_text())
    assert page.open == []
    assert not {"script", "i"} & page.tags
    assert "</pre><script>" in "".join(page.words)


def test_two_figures_of_a_page_share_no_names(made_up: tuple[str, str]) -> None:
    """Each name is given once, and each reference finds one."""
    text, _ = made_up
    given = re.findall(r'\bid="([^"]+)"', text)
    assert len(given) == len(set(given))
    asked = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    assert asked
    assert asked <= set(given)


@pytest.mark.parametrize("made_up", [THREE], indirect=True)
def test_the_figure_follows_a_dark_page(made_up: tuple[str, str]) -> None:
    """Every colour of the figure is one of the page's variables, and each has a value for light and
    for dark.
    """
    text, _ = made_up
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    asked = set(re.findall(r"var\(--([\w-]+)\)", drawn))
    assert {"ink", "strong", "loss", "bar"} <= asked
    assert not re.findall(r"#[0-9a-f]{6}\b", drawn)
    light, dark = text.split("@media (prefers-color-scheme: dark)")[:2]
    for name in asked:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark


def test_the_timeline_tells_each_loss_in_order() -> None:
    """Killed, missed, decided, back, by time; without the words of a network library; a very long
    one is cut.
    """
    from swarmfree.cockpit.fold import fold_all

    rows = timeline_of(fold_all(RunMadeUp((Loss(30, 1),)).observed_events))
    texts = [row.text for row in rows]
    assert [row.time_s for row in rows] == sorted(row.time_s for row in rows)
    assert texts[0].startswith("training begins")
    assert "peer-2 is killed; it served stage 1" in texts
    assert "stage 1 has nobody left" in texts
    assert "standby-1 holds stage 1, bit for bit" in texts
    assert texts[-1] == "iteration 59 is the last one that is committed"
    assert THEIR_WORDS not in " ".join(texts)
    many = tuple(Loss(1 + k, 1 + k % 3) for k in range(58))
    assert len(timeline_of(fold_all(RunMadeUp(many).observed_events))) <= ROWS_MAX


def test_a_long_timeline_keeps_its_end() -> None:
    """Where there are more lines than anybody reads, the last one stays, and how many are left out
    is said; who joins as the run begins is none.
    """
    state = fold_all(RunMadeUp(THREE).observed_events)
    joins = tuple(Joined(state.first_opened_s, f"early-{number}", 1) for number in range(3))
    rows = timeline_of(replace(state, joins=joins))
    assert rows == timeline_of(state)
    later = tuple(Joined(state.commits[1].time_s, f"late-{number}", 1) for number in range(ROWS_MAX))
    long = timeline_of(replace(state, joins=later))
    assert len(long) == ROWS_MAX
    assert long[-1] == rows[-1]
    assert long[-2].text.startswith(f"{len(rows) + 1:,} more lines")


def test_what_is_not_known_is_no_part_of_a_sum(tmp_path: Path) -> None:
    """Where the held-out loss after one of several rebuilds is not known, neither the table nor the
    finding has a cost of all of them.
    """
    state = fold_all(RunMadeUp(THREE).observed_events)
    stories = (replace(state.lost_stages[0], loss_after=None), *state.lost_stages[1:])
    known, unknown = (Compared("a", tmp_path, each, "") for each in (state, replace(state, lost_stages=stories)))
    told = f"{lines_of([known])[0].cost_bits_per_byte:.2f} bits"
    assert headline(known.state, 0, "").endswith(f"together they raised the held-out loss by {told}"), "one number in both places"
    assert lines_of([unknown])[0].cost_bits_per_byte is None
    assert "raised the held-out loss" in headline(known.state, 0, "")
    assert "raised the held-out loss" not in headline(unknown.state, 0, "")


def test_runs_that_differ_in_their_seed_alone_are_trials(tmp_path: Path) -> None:
    """They make one curve with a band; another run makes another; a report without its config
    stands alone.
    """
    for seed in range(3):
        report(
            tmp_path / f"seed-{seed}", RunMadeUp((Loss(50, 2, "Merge", 0.8 + seed / 5),), seed=seed), f"[run]\nseed = {seed}\n"
        )
    report(tmp_path / "calm", RunMadeUp(), "[run]\nseed = 0\n")
    report(tmp_path / "old", RunMadeUp())
    reports = read_reports([tmp_path / name for name in ("seed-0", "calm", "seed-1", "seed-2", "old")])
    curves = curves_of(reports)
    assert [(curve.name, curve.trials) for curve in curves] == [("seed-0\nand 2 more", 3), ("calm", 1), ("old", 1)]
    assert max(curves[0].spreads) > 0.05
    at_loss = [value for at, value in curves[0].points if 49 < at <= 50]
    assert len(at_loss) == 2, "it jumps at the loss"
    assert at_loss[1] > at_loss[0]
    assert "ends lowest" in finding(reports) or "all end at" in finding(reports)


def test_a_finding_says_where_runs_did_not_train_equally_long(tmp_path: Path) -> None:
    """Of runs of different lengths the sentence says how many iterations they trained; of equally
    long ones it does not.
    """
    paths = [report(tmp_path / f"of-{count}", RunMadeUp(iterations=count)) for count in (30, 60)]
    paths.append(report(tmp_path / "other", RunMadeUp(seed=2)))
    assert finding(read_reports(paths[:2])).endswith("(they trained 30 to 60 iterations)")
    assert "trained" not in finding(read_reports(paths[1:]))


def test_a_comparison_is_a_figure_and_a_table(tmp_path: Path) -> None:
    """Each report is a line of the CSV, under a name that no other has; what is no report is
    refused in one line.
    """
    one = report(tmp_path / "a" / "run", RunMadeUp(THREE))
    other = report(tmp_path / "b" / "run", RunMadeUp())
    reports = read_reports([one, other])
    assert [r.name for r in reports] == ["a/run", "b/run"]
    (tmp_path / "out").mkdir()
    paths = write_comparison(reports, tmp_path / "out")
    assert [path.name for path in paths] == ["comparison.png", "comparison.csv"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(paths[1].read_text().splitlines()))
    assert [(row["name"], row["stages_lost"]) for row in rows] == [("a/run", "3"), ("b/run", "0")]
    assert float(rows[0]["cost_bits_per_byte"]) == pytest.approx(lines_of(reports)[0].cost_bits_per_byte or 0, rel=1e-4)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_reports([one, tmp_path / "nothing"])

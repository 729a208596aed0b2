"""The code base itself: rooms and who knows whom, sizes, banned calls, docstrings, and that the
project speaks of itself alone.

Every failure names file and line. What is looked for, and the table of rooms, stands in `tidy`.
"""

from __future__ import annotations

import gc
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from swarmfree.cli.early_checks import LAB_PACKAGES
from tests import tidy
from tests.tidy import PACKAGE, Found

CODE = (PACKAGE, "benchmarks", "scripts", "examples")


@pytest.fixture(scope="module", autouse=True)
def _resting_collector() -> Iterator[None]:
    """Millions of nodes are kept from one check to the next, and the collector would look at all of
    them again and again: a quarter of the time.
    """
    gc.disable()
    yield
    for kept in (tidy.nodes_of, tidy.tree_of):
        kept.cache_clear()
    gc.enable()


def none_found(check: Callable[[Path], Found], files: Iterable[Path]) -> None:
    """Fail with everything that a check finds, one a line."""
    files = list(files)
    assert files, "there are files to look at"
    lines = [line for path in files for line in check(path)]
    if lines:
        pytest.fail(f"{len(lines)} found\n" + "\n".join(lines), pytrace=False)


def test_rooms_know_only_whom_they_may() -> None:
    """Imports go the way the architecture says: nouns know nothing, rooms know nouns, the commands
    know all.
    """
    none_found(tidy.wrong_imports, tidy.python_files(PACKAGE))


def test_no_room_and_no_module_knows_itself_through_others() -> None:
    """The import graph has no circle, between rooms or between modules."""
    assert list(tidy.room_circles({room: rooms for room, (rooms, _) in tidy.ROOMS.items()})) == []
    assert list(tidy.import_circles(tidy.python_files(PACKAGE))) == []


def test_no_arrow_goes_up_inside_a_room() -> None:
    """In a room with folders, what is built on knows nothing of what is built on it."""
    none_found(tidy.arrows_up, tidy.python_files(PACKAGE))


def test_whoever_works_for_a_coordinator_changes_itself_alone() -> None:
    """In the coordinator's room no object writes the fields of another one, and none is given a
    callback to hold.
    """
    none_found(tidy.tied_objects, tidy.python_files(f"{PACKAGE}/trainer/coordinator"))


def test_every_room_with_folders_has_layers() -> None:
    """The table of layers names each file and folder of the rooms that have folders, once, and
    nothing else.
    """
    for room in tidy.ROOMS:
        inside = sorted((tidy.ROOT / PACKAGE / room).iterdir())
        if not any(path.is_dir() and path.name != "v1" and (path / "__init__.py").is_file() for path in inside):
            continue
        there = {path.stem for path in inside if path.suffix == ".py" or (path / "__init__.py").is_file()}
        named = [name for layer in tidy.LAYERS[room] for name in layer]
        assert sorted(named) == sorted(there - {"__init__"}), room


def test_what_is_installed_is_what_is_imported() -> None:
    """A peer's commands import all that the package requires and nothing else; the other commands
    add the extra `lab` and nothing else.
    """
    assert "\n".join(tidy.wrong_requirements(tidy.python_files(PACKAGE))) == ""
    project = tomllib.loads((tidy.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tuple(line.partition(">")[0] for line in project["optional-dependencies"]["lab"]) == LAB_PACKAGES


def test_a_class_name_is_defined_once() -> None:
    """No two classes of the package have the same name, and a leading underscore makes no
    difference.
    """
    assert "\n".join(tidy.defined_twice(tidy.python_files(PACKAGE))) == ""


def test_modules_are_named_by_nouns() -> None:
    """No file or folder is named by a participle, but for the few that the field uses as nouns."""
    none_found(tidy.participle_name, tidy.python_files(PACKAGE))


def test_the_books_are_written_by_the_member_alone() -> None:
    """Everybody else tells them what happened, by a method of theirs."""
    none_found(tidy.written_books, tidy.python_files(f"{PACKAGE}/trainer"))


def test_absence_has_one_name() -> None:
    """What stands for no stage, no iteration or no count is `ABSENT` and nothing else."""
    none_found(tidy.bare_absences, tidy.python_files(PACKAGE))


def test_the_glossary_has_every_public_class() -> None:
    """Each public class of the core rooms has a line under its file, and each line a class."""
    none_found(tidy.unlisted_classes, tidy.python_files(PACKAGE))
    files = {path.relative_to(tidy.ROOT / PACKAGE).as_posix() for path in tidy.python_files(PACKAGE)}
    assert tidy.glossary_classes().keys() <= files


def test_the_architecture_draws_every_file() -> None:
    """Each file of the package has a line in the tree, each line a file, and whatever code the
    architecture names is there.
    """
    other = [path for path in (tidy.ROOT / PACKAGE).rglob("*.*") if path.suffix in {".toml", ".html"}]
    files = [*tidy.python_files(PACKAGE), *other]
    assert "\n".join(tidy.undrawn_files(files)) == ""
    text = (tidy.ROOT / tidy.ARCHITECTURE).read_text(encoding="utf-8")
    names = [f"/{tidy.relative(path)}" for path in [*files, *tidy.python_files("tests")]]
    assert [n for n in re.findall(r"\b[\w/]+\.py\b", text) if not any(name.endswith(f"/{n}") for name in names)] == []


def test_the_glossary_and_the_code_agree() -> None:
    """No module and no public class has a name with a forbidden word, and no word of the glossary
    is one.
    """
    rows = tidy.glossary_rows()
    assert len(rows) > 100
    assert all(len(row) == 4 for row in rows)
    words = {word for row in rows for word in re.findall(r"\*\*([^*]+)\*\*", row[0] + row[1])}
    assert {word.lower() for word in words} & set(tidy.forbidden_words()) == set()
    none_found(tidy.forbidden_names, tidy.python_files(PACKAGE))


def test_words_that_were_given_up_do_not_come_back() -> None:
    """No public name has one of the words that the field's own took the place of, but for a key of
    run files.
    """
    none_found(tidy.given_up_names, tidy.python_files(PACKAGE, "benchmarks", "examples"))


def test_every_room_says_what_it_is_for() -> None:
    """Each room is a package whose first line says in one word what it does."""
    for room in tidy.ROOMS:
        opening = tidy.ROOT / PACKAGE / room / "__init__.py"
        assert opening.is_file(), f"{PACKAGE}/{room}/__init__.py:1: missing"
        assert re.match(r'"""[A-Z]+: ', opening.read_text(encoding="utf-8")), f"{PACKAGE}/{room}/__init__.py:1: WORD: sentence"


def test_functions_are_small() -> None:
    """A function has at most 70 lines and 8 parameters."""
    none_found(tidy.oversized, tidy.python_files(*CODE, "tests"))


def test_nothing_banned_is_used() -> None:
    """No task without owner, nothing that runs a stranger's bytes, no fork, no blocking sleep, no
    mock.
    """
    none_found(tidy.banned, tidy.python_files(*CODE, "tests"))


def test_three_handlers_in_all_catch_everything() -> None:
    """Operating failures have types; only the device that runs other people's work, the virtual
    loop, and a rehearsal that plays somebody's script, may catch whatever that raises.
    """
    found = [line for path in tidy.python_files(PACKAGE) for line in tidy.blind_handlers(path)]
    assert len(found) <= 3, "\n".join(found)


def test_no_handler_of_a_group_waits() -> None:
    """A task that is cancelled ends as cancelled, on each Python that we name."""
    none_found(tidy.waiting_handlers, tidy.python_files(*CODE))


def test_everything_public_is_documented() -> None:
    """Each public module, class, function and method says what it is."""
    none_found(tidy.undocumented, tidy.python_files(*CODE))


def test_every_test_says_what_is_true() -> None:
    """Each test has a sentence that is true where it passes."""
    none_found(tidy.untold_tests, tidy.python_files("tests"))


def test_every_proto_field_has_a_comment() -> None:
    """A field says its unit and what its zero means, an RPC what it asks."""
    none_found(tidy.uncommented_fields, sorted((tidy.ROOT / "proto").rglob("*.proto")))


def test_nothing_points_into_one_machine() -> None:
    """No file names a place that exists on its author's machine only."""
    none_found(tidy.machine_paths, tidy.text_files())


def test_nothing_is_left_to_do() -> None:
    """Work that is not done stands in an issue, not in the code."""
    none_found(tidy.left_to_do, tidy.text_files())


@pytest.mark.parametrize("has_git", [True, False])
def test_what_a_user_brings_is_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_git: bool) -> None:
    """Whoever follows README has texts and datasets of their own in the clone, under any name; a
    copy without git is looked at whole.
    """
    for name in ("pyproject.toml", "tests/a.py", "books/novel.md", "DIR/index.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    if has_git:
        for command in (["init", "-q"], ["add", "pyproject.toml", "tests"]):
            subprocess.run(["git", "-C", str(tmp_path), *command], check=True)  # noqa: S607
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    found = {path.relative_to(tmp_path).as_posix() for path in tidy.text_files()}
    assert found == {"pyproject.toml", "tests/a.py"} | (set() if has_git else {"books/novel.md", "DIR/index.md"})


# ---- the checks themselves -----------------------------------------------------------------------

PLANTED: list[tuple[Callable[[Path], Found], str, str, str]] = [
    (tidy.wrong_imports, "protocol/x.py", "import numpy", ":1: protocol may not import numpy"),
    (tidy.wrong_imports, "policy/x.py", "from swarmfree.model import layers", ":1: policy may not know model"),
    (tidy.wrong_imports, "trainer/x.py", "def f():\n    from swarmfree import wire", ":2: trainer may not know wire"),
    (tidy.wrong_imports, "model/x.py", "from ..wire import codec", ":1: model may not know wire"),
    (tidy.wrong_imports, "wire/x.py", "import torch.nn", ":1: wire may not import torch"),
    (tidy.wrong_imports, "sim/x.py", "from swarmfree.model.engine import Engine", ":1: sim may not know model"),
    (tidy.wrong_imports, "sim/torch_x.py", "import swarmfree.wire.codec", ":1: sim may not know wire"),
    (tidy.wrong_imports, "attic/x.py", "", ":1: there is no room attic"),
    (tidy.oversized, "protocol/x.py", "def f():\n" + "    x = 1\n" * 70, ":1: f has 71 lines; at most 70"),
    (tidy.oversized, "protocol/x.py", "def f(self, a, b, c, d, e, *, g, h, i, j): ...", ":1: f has 9 parameters; at most 8"),
    (
        tidy.oversized,
        "protocol/x.py",
        "def f(a, b, c, d, e, *, g, h, i, j): ...  # noqa: PLR0913",
        ":1: f has 9 parameters; at most 8",
    ),
    (tidy.banned, "trainer/x.py", "import asyncio\nasyncio.create_task(f())", ":2: asyncio.create_task: "),
    (tidy.banned, "trainer/x.py", "from asyncio import gather", ":1: import of asyncio.gather: "),
    (tidy.banned, "wire/x.py", "import pickle", ":1: import of pickle: "),
    (tidy.banned, "trainer/x.py", "import time\n\ntime.sleep(1)", ":3: time.sleep: "),
    (tidy.banned, "wire/x.py", "import os\nos.environ['A']", ":2: os.environ: only the commands"),
    (tidy.banned, "wire/x.py", "def f(server):\n    server.add_insecure_port('')", ":2: add_insecure_port: peers speak TLS"),
    (tidy.blind_handlers, "protocol/x.py", "try:\n    f()\nexcept Exception:\n    g()", ":3: except Exception"),
    (
        tidy.blind_handlers,
        "protocol/x.py",
        "try:\n    f()\nexcept (OSError, Exception):\n    g()",
        ":3: except OSError, Exception",
    ),
    (tidy.blind_handlers, "protocol/x.py", "try:\n    f()\nexcept:\n    raise", ":3: except"),
    (tidy.blind_handlers, "protocol/x.py", "try:\n    f()\nexcept BaseException:\n    g()", ":3: except BaseException"),
    (
        tidy.waiting_handlers,
        "protocol/x.py",
        "async def f():\n    try: ...\n    except* OSError:\n        await g()",
        ":4: a wait within",
    ),
    (tidy.undocumented, "protocol/x.py", "'''M.'''\nclass A:\n    '''A.'''\n    def f(self): ...", ":4: A.f has no docstring"),
    (tidy.undocumented, "protocol/x.py", "x = 1", ":1: module has no docstring"),
    (tidy.untold_tests, "protocol/x.py", "def test_x():\n    '''No stop'''", ":1: test_x has no sentence"),
    (
        tidy.uncommented_fields,
        "protocol/x.proto",
        "message A {\n  // Here.\n  int64 a = 1;\n  repeated B b = 2;\n}",
        ":4: repeated B b",
    ),
    (tidy.uncommented_fields, "protocol/x.proto", "service A {\n  rpc Go(B) returns (C);\n}", ":2: rpc Go"),
    (
        tidy.arrows_up,
        "trainer/device.py",
        "import swarmfree.trainer.member.member",
        ":1: trainer/device may not know trainer/member",
    ),
    (
        tidy.arrows_up,
        "trainer/coordinator/x.py",
        "def f():\n    from swarmfree.trainer import member",
        ":2: trainer/coordinator may not know trainer/member",
    ),
    (tidy.arrows_up, "lab/swarm.py", "from ..lab.chaos.plan import Strike", ":1: lab/swarm may not know lab/chaos"),
    (tidy.arrows_up, "trainer/attic.py", "", ":1: attic has no layer in trainer"),
    (tidy.tied_objects, "trainer/coordinator/x.py", "def f(a):\n    a.built, b = 1, 2", ":2: built of another object changes"),
    (tidy.tied_objects, "trainer/coordinator/x.py", "for self.a.b in c: ...", ":1: b of another object changes"),
    (
        tidy.tied_objects,
        "trainer/coordinator/x.py",
        "class A:\n    def __init__(self, f: Callable[[], int]): ...",
        ":2: a callback is held",
    ),
    (tidy.bare_absences, "policy/x.py", "NONE = -1", ":1: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "def f(a, b: int = -1): ...", ":1: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "def f(a):\n    return -1, -1", ":2: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "a = 1 if b == -1 else 2", ":1: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "a = f(1 if b else -1)", ":1: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "f(a=-1)", ":1: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "f(-1)", ":1: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "a = b.get(c, -1)", ":1: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "a, b = -1, -1", ":1: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "a = {b: -1}", ":1: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "f(lambda: -1)", ":1: -1 bears no name; ABSENT expected"),
    (tidy.bare_absences, "policy/x.py", "ABSENT = -1", ":1: -1 bears no name; ABSENT expected"),
    (tidy.participle_name, "policy/stage_dealing.py", "", ":1: stage_dealing is no noun"),
    (tidy.participle_name, "policy/kept.py", "", ":1: kept is no noun"),
    (tidy.written_books, "trainer/x.py", "def f(m):\n    m._replica_state.stage = 1", ":2: m._replica_state.stage is written"),
    (
        tidy.written_books,
        "trainer/x.py",
        "def f(replica_state):\n    replica_state.stage += 1",
        ":2: replica_state.stage is written",
    ),
    (tidy.participle_name, "trainer/preparing/x.py", "", ":1: preparing is no noun"),
    (
        tidy.unlisted_classes,
        "policy/x.py",
        "\nclass Listed: ...\nclass Other: ...",
        ":3: docs/glossary.md has no line for class Other",
    ),
    (tidy.unlisted_classes, "policy/x.py", "", ":1: docs/glossary.md has a line for class Listed, which is not here"),
    (tidy.forbidden_names, "lab/load_oracle.py", "", ":1: load_oracle: docs/glossary.md forbids oracle"),
    (tidy.given_up_names, "lab/x.py", "def grow(stem: str): ...", ":1: stem: docs/glossary.md has another word for stem"),
    (
        tidy.given_up_names,
        "lab/x.py",
        "class A:\n    kept_borders: int",
        ":2: kept_borders: docs/glossary.md has another word for border",
    ),
    (tidy.forbidden_names, "lab/x.py", "\nclass HTTPStressTest: ...", ":2: HTTPStressTest: docs/glossary.md forbids stress test"),
    (tidy.machine_paths, "protocol/x.py", "\nx = '/" + "home/somebody'", ":2: "),
    (tidy.left_to_do, "protocol/x.py", "# TO" + "DO: later", ":1: "),
]


PLANTED_GLOSSARY = """\
| **judge** | says what is right | test | oracle, Stress test |

## Classes

`policy/x.py`

- `Listed`: It is there.
"""


PLANTED_TREE = """\
a.py  before the tree

swarmfree/
  wire/    CARRIES
    a.py   the first
    v2/    a folder
      b.py the second
    c.py
"""


def planted(monkeypatch: pytest.MonkeyPatch, root: Path, name: str, code: str) -> Path:
    """A file in a tree of its own, which the checks take for the project."""
    monkeypatch.setattr(tidy, "ROOT", root)
    path = root / PACKAGE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    (root / "docs").mkdir(exist_ok=True)
    (root / tidy.GLOSSARY).write_text(PLANTED_GLOSSARY)
    (root / tidy.ARCHITECTURE).write_text(PLANTED_TREE)
    return path


@pytest.mark.parametrize(
    ("check", "name", "code", "expected"), PLANTED, ids=[f"{check.__name__}{line}" for check, *_, line in PLANTED]
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check: Callable[[Path], Found], name: str, code: str, expected: str
) -> None:
    """Each check finds what it is for, and says where."""
    found = list(check(planted(monkeypatch, tmp_path, name, code)))
    assert any(line.startswith(f"{PACKAGE}/{name}{expected}") for line in found), found


RIGHT: list[tuple[Callable[[Path], Found], str, str]] = [
    (
        tidy.wrong_imports,
        "policy/x.py",
        "import math\nfrom swarmfree.protocol.plan import Plan\nfrom swarmfree.policy import quorum",
    ),
    (tidy.wrong_imports, "sim/torch_x.py", "import torch\nfrom swarmfree.model import engine"),
    (tidy.oversized, "protocol/x.py", "def f(self, a, b, c, d, *, e, g, h, i):\n" + "    x = 1\n" * 69),
    (tidy.oversized, "cli/x.py", "def f(  # noqa: PLR0913 - one per option\n    a, b, c, d, e, *, g, h, i, j): ..."),
    (tidy.banned, "lab/x.py", "import time\ntime.sleep(1)"),
    (tidy.banned, "cli/x.py", "import os\nos.environ['A']"),
    (tidy.blind_handlers, "protocol/x.py", "try:\n    f()\nexcept OSError:\n    g()\nexcept BaseException:\n    g()\n    raise"),
    (
        tidy.waiting_handlers,
        "protocol/x.py",
        "async def f():\n    try:\n        await g()\n    except OSError:\n        await g()",
    ),
    (tidy.undocumented, "protocol/x.py", "'''M.'''\nclass _A: ...\ndef _f(): ..."),
    (
        tidy.arrows_up,
        "trainer/recovery/x.py",
        "from swarmfree.trainer.device import Device\nfrom swarmfree.trainer.recovery import y",
    ),
    (tidy.arrows_up, "model/x.py", "from swarmfree.model import y"),
    (
        tidy.tied_objects,
        "trainer/coordinator/x.py",
        "def f(self, g: Callable[[], int]):\n    self.a, b = g(), 2\n    self.c[b] = 3",
    ),
    (tidy.tied_objects, "trainer/member/x.py", "a.b = 1"),
    (tidy.bare_absences, "protocol/names.py", "ABSENT = -1"),
    (tidy.bare_absences, "model/x.py", "a = b[-1]\nfor c in range(3, -1, -1):\n    d = e.reshape(4, -1)"),
    (tidy.participle_name, "model/log_packing.py", ""),
    (tidy.participle_name, "sim/seed_pool.py", ""),
    (tidy.unlisted_classes, "policy/x.py", "class Listed: ...\nclass _Private: ..."),
    (tidy.unlisted_classes, "lab/x.py", "class Other: ..."),
    (tidy.forbidden_names, "lab/x.py", "class Coracle: ...\nclass _Oracle: ...\nclass Stress: ..."),
    (tidy.given_up_names, "lab/x.py", "def system(border_dtype: str): ...\nX = file.stem"),
    (tidy.machine_paths, "protocol/x.py", "x = '/var/lib/x, ../home/x, a/home/b'"),
]


@pytest.mark.parametrize(("check", "name", "code"), RIGHT, ids=[check.__name__ for check, *_ in RIGHT])
def test_what_is_right_is_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check: Callable[[Path], Found], name: str, code: str
) -> None:
    """No check cries without need."""
    assert list(check(planted(monkeypatch, tmp_path, name, code))) == []


MANY: list[tuple[Callable[[Iterable[Path]], Found], dict[str, str], list[str]]] = [
    (
        tidy.import_circles,
        {
            "sim/a.py": "from swarmfree.sim.b import B",
            "sim/b.py": "def f():\n    from swarmfree.sim import c",
            "sim/c.py": "import swarmfree.sim.a",
        },
        ["sim/a.py:1: circle of imports: swarmfree.sim.a -> swarmfree.sim.b -> swarmfree.sim.c -> swarmfree.sim.a"],
    ),
    (tidy.import_circles, {"sim/a.py": "from swarmfree.sim import b", "sim/b.py": "", "sim/c.py": "from . import a, b"}, []),
    (
        tidy.defined_twice,
        {"sim/a.py": "class Part: ...", "wire/a.py": "class Other:\n    class _Part: ..."},
        ["wire/a.py:2: _Part is the name of a class at swarmfree/sim/a.py:1 already"],
    ),
    (tidy.defined_twice, {"sim/a.py": "class Part: ...", "wire/a.py": "class Parts: ..."}, []),
    (tidy.undrawn_files, {"wire/a.py": "", "wire/v2/b.py": "", "wire/__init__.py": ""}, []),
]


@pytest.mark.parametrize(("check", "files", "expected"), MANY, ids=[f"{check.__name__}-{len(e)}" for check, _, e in MANY])
def test_what_is_wrong_between_files_is_found(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    check: Callable[[Iterable[Path]], Found],
    files: dict[str, str],
    expected: list[str],
) -> None:
    """A check of many files finds what it is for, says where, and does not cry without need."""
    paths = [planted(monkeypatch, tmp_path, name, code) for name, code in files.items()]
    assert list(check(paths)) == [f"{PACKAGE}/{line}" for line in expected]


def test_a_file_that_is_not_drawn_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file without a line, and a line without a file or with nothing said."""
    paths = [planted(monkeypatch, tmp_path, name, "") for name in ("wire/b.py", "wire/c.py", "a.py")]
    assert list(tidy.undrawn_files(paths)) == [
        "swarmfree/a.py:1: stands in no line of docs/architecture.md",
        "swarmfree/wire/b.py:1: stands in no line of docs/architecture.md",
        "swarmfree/wire/c.py:1: stands in no line of docs/architecture.md",
        "docs/architecture.md:5: there is no swarmfree/wire/a.py",
        "docs/architecture.md:7: there is no swarmfree/wire/v2/b.py",
    ]


def test_a_circle_of_rooms_is_found() -> None:
    """Rooms that know each other through a third are a circle."""
    assert list(tidy.room_circles({"a": {"b"}, "b": set()})) == []
    assert [line[:16] for line in tidy.room_circles({"a": {"b"}, "b": {"c"}, "c": {"a"}})] == ["circle of rooms:"]


def test_a_wrong_requirement_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Required and not imported, imported and not required, and required of all where the lab alone
    imports it.
    """
    code = {
        "cli/peer.py": "def f():\n    from swarmfree.wire import a",
        "wire/a.py": "import grpc\nimport google.protobuf\nimport zstandard\nimport os",
        "cli/local.py": "import swarmfree.lab.b, numpy",
        "lab/b.py": "import psutil\nimport zstandard\nimport matplotlib",
    }
    paths = [planted(monkeypatch, tmp_path, name, text) for name, text in code.items()]
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["grpcio>=1", "protobuf", "scipy>=1", "numpy<3"]\n'
        '[project.optional-dependencies]\nlab = ["psutil>=6", "jinja2"]'
    )
    assert list(tidy.wrong_requirements(paths)) == [
        "pyproject.toml: dependencies: numpy is required and not imported",
        "pyproject.toml: dependencies: scipy is required and not imported",
        "pyproject.toml: dependencies: zstandard is imported and not required",
        "pyproject.toml: the extra lab: jinja2 is required and not imported",
        "pyproject.toml: the extra lab: matplotlib is imported and not required",
        "pyproject.toml: the extra lab: numpy is imported and not required",
    ]

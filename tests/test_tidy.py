"""The code base itself: rooms and who knows whom, sizes, banned calls, docstrings, and that the project speaks of itself alone.

Every failure names file and line. What is looked for, and the table of rooms, stands in `tidy`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests import tidy
from tests.tidy import PACKAGE, Found

CODE = (PACKAGE, "benchmarks", "scripts", "examples")


def none_found(check: Callable[[Path], Found], files: Iterable[Path]) -> None:
    """Fail with everything that a check finds, one a line."""
    files = list(files)
    assert files, "there are files to look at"
    lines = [line for path in files for line in check(path)]
    if lines:
        pytest.fail(f"{len(lines)} found\n" + "\n".join(lines), pytrace=False)


def test_rooms_know_only_whom_they_may() -> None:
    """Imports go the way the architecture says: nouns know nothing, rooms know nouns, the commands know all."""
    none_found(tidy.wrong_imports, tidy.python_files(PACKAGE))


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
    """No task without owner, nothing that runs a stranger's bytes, no fork, no blocking sleep, no mock."""
    none_found(tidy.banned, tidy.python_files(*CODE, "tests"))


def test_two_handlers_in_all_catch_everything() -> None:
    """Operating failures have types; only the device that runs other people's work, and the virtual loop, may catch whatever that raises."""
    found = [line for path in tidy.python_files(PACKAGE) for line in tidy.blind_handlers(path)]
    assert len(found) <= 2, "\n".join(found)


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


# ---- the checks themselves -----------------------------------------------------------------------------------------

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
    (tidy.blind_handlers, "protocol/x.py", "try:\n    f()\nexcept Exception:\n    g()", ":3: except Exception"),
    (
        tidy.blind_handlers,
        "protocol/x.py",
        "try:\n    f()\nexcept (OSError, Exception):\n    g()",
        ":3: except OSError, Exception",
    ),
    (tidy.blind_handlers, "protocol/x.py", "try:\n    f()\nexcept:\n    raise", ":3: except"),
    (tidy.blind_handlers, "protocol/x.py", "try:\n    f()\nexcept BaseException:\n    g()", ":3: except BaseException"),
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
    (tidy.machine_paths, "protocol/x.py", "\nx = '/" + "home/somebody'", ":2: "),
    (tidy.left_to_do, "protocol/x.py", "# TO" + "DO: later", ":1: "),
]


def planted(monkeypatch: pytest.MonkeyPatch, root: Path, name: str, code: str) -> Path:
    """A file in a tree of its own, which the checks take for the project."""
    monkeypatch.setattr(tidy, "ROOT", root)
    path = root / PACKAGE / name
    path.parent.mkdir(parents=True)
    path.write_text(code)
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
        "import math\nimport numpy as np\nfrom swarmfree.protocol.plan import Plan\nfrom swarmfree.policy import roll",
    ),
    (tidy.wrong_imports, "sim/torch_x.py", "import torch\nfrom swarmfree.model import engine"),
    (tidy.oversized, "protocol/x.py", "def f(self, a, b, c, d, *, e, g, h, i):\n" + "    x = 1\n" * 69),
    (tidy.oversized, "cli/x.py", "def f(  # noqa: PLR0913 - one per option\n    a, b, c, d, e, *, g, h, i, j): ..."),
    (tidy.banned, "lab/x.py", "import time\ntime.sleep(1)"),
    (tidy.banned, "cli/x.py", "import os\nos.environ['A']"),
    (tidy.blind_handlers, "protocol/x.py", "try:\n    f()\nexcept OSError:\n    g()\nexcept BaseException:\n    g()\n    raise"),
    (tidy.undocumented, "protocol/x.py", "'''M.'''\nclass _A: ...\ndef _f(): ..."),
    (tidy.machine_paths, "protocol/x.py", "x = '/var/lib/x, ../home/x, a/home/b'"),
]


@pytest.mark.parametrize(("check", "name", "code"), RIGHT, ids=[check.__name__ for check, *_ in RIGHT])
def test_what_is_right_is_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check: Callable[[Path], Found], name: str, code: str
) -> None:
    """No check cries without need."""
    assert list(check(planted(monkeypatch, tmp_path, name, code))) == []

"""What `test_tidy` looks for: each function here finds one kind of fault in one file and yields
`file:line: what`.

The table of rooms stands in docs/architecture.md too; a change here is a change there.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "swarmfree"

# Room -> the other rooms it may import, and what is not Python's own.
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "protocol": (set(), set()),
    "policy": ({"protocol"}, {"networkx", "scipy"}),
    "model": ({"protocol"}, {"torch", "numpy", "blake3", "safetensors"}),
    "wire": ({"protocol"}, {"grpc", "google", "hivemind", "cryptography", "msgpack", "zstandard"}),
    "storage": ({"protocol"}, {"blake3", "datasets", "numpy", "obstore", "pyarrow", "safetensors", "tokenizers", "zstandard"}),
    "trainer": ({"protocol", "policy"}, set()),
    "sim": ({"protocol", "policy", "trainer"}, {"numpy"}),
    "cockpit": ({"protocol"}, {"rich"}),
    "lab": (
        {"protocol", "policy", "model", "storage", "sim", "cockpit"},
        {"jinja2", "markupsafe", "matplotlib", "numpy", "psutil", "rich", "torch"},
    ),
    "cli": (
        {"protocol", "policy", "model", "wire", "storage", "trainer", "sim", "cockpit", "lab"},
        {"typer", "rich", "torch"},
    ),
}
# One file in the room of rehearsals runs them on torch; everything else there stays free of it.
TORCH_REHEARSAL = re.compile(r"swarmfree/sim/torch_\w+\.py")

# What a room with folders is made of, from the bottom to the top: a file or folder may import those
# in lower layers only. Rooms that are not named here are flat, and need no table: no circle is
# enough.
LAYERS: dict[str, tuple[set[str], ...]] = {
    "policy": (
        {"answer_checks", "audit", "batch", "data_order", "deadline", "election", "fault_attribution", "fork_choice", "founder"}
        | {
            "block_split",
            "halt",
            "patience",
            "permissions",
            "placement",
            "promises",
            "quorum",
            "reduction",
            "repair",
            "resume",
            "retention",
            "router",
        }
        | {"schedule", "takeover"},
        {"build_time", "evidence", "part_batches", "record", "recovery", "snapshot_store"},
        {"planner"},
    ),
    "trainer": (
        {"tasks", "device", "engine_probe", "incarnations", "other_lives"},
        {"context", "guest_room"},
        {"calls", "replica_state"},
        {"recovery"},
        {"pipeline"},
        {"member", "coordinator"},
        {"pause_watch"},
        {"election", "founder_watch", "access_control", "snapshot_keeper", "snapshot_uploader"},
        {"resume_watch", "end_watch", "run_end", "snapshot_fetcher"},
        {"membership"},
        {"peer"},
        {"guest", "peer_status"},
    ),
    "lab": (
        {"estimate", "fleet_file", "kept_weights", "kill_script", "last_words", "parent_death", "plot_style", "processes", "runs"}
        | {"reference_training", "stage_spells", "study_findings"},
        {"fork_server", "outcome"},
        {"starter", "summary"},
        {"report", "swarm"},
        {"chaos", "comparison", "figure", "local_order"},
        {"local", "page", "study"},
    ),
}

# Modules are named by nouns. A participle stands only where it is the noun that the field has for
# the thing.
PARTICIPLE = re.compile(r"\w{2,}ing|\w+[^e]ed|kept|told|sent|lost|gone|made|held|seen|known|done|taken|given|found|begun")
GERUNDS = {
    "averaging": "what replicas of a stage do with their gradients",
    "packing": "making messages and logs smaller",
    "sampling": "drawing text from a model",
    "training": "what it is all for",
}
"""Word -> what it names."""

# Commands that need no more than a peer does; all others take the extra `lab`.
PEER_COMMANDS = ("bootstrap", "config", "data", "doctor", "new", "peer", "rehearse", "sample", "status")
# What only some text, or a bucket, needs: imported inside functions, which say how to install it.
OPTIONAL = {"data": {"pyarrow", "tokenizers"}, "datasets": {"datasets"}, "s3": {"obstore"}}
"""Extra -> what it brings."""
# What is imported under another name than it is installed by.
DISTRIBUTIONS = {"google": "protobuf", "grpc": "grpcio"}

ARCHITECTURE = "docs/architecture.md"
GLOSSARY = "docs/glossary.md"
CORE_ROOMS = ("protocol", "policy", "model", "storage", "wire", "trainer")
"""Rooms whose public classes stand in the glossary: those that a peer is made of."""

GIVEN_UP_WORDS = re.compile(r"(?:^|_)(border|rung|slab|stem)s?(?=_|$)", re.IGNORECASE)
"""Words that the glossary has replaced, and that no public name of any kind has any more."""
KEPT_KEYS = {"border_dtype": "a key of run files, which a run's fingerprint hashes"}
"""Name -> why it stays."""

GENERATED = re.compile(r"swarmfree/wire/v1/")
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 8
# A function that takes more says why in its first line, to the linter as well.
REASON_BESIDE = re.compile(r"# noqa: [A-Z0-9, ]*PLR0913[A-Z0-9, ]* - \w+")

BANNED_CALLS = {
    "asyncio.create_task": "a task has an owner: asyncio.TaskGroup",
    "asyncio.ensure_future": "a task has an owner: asyncio.TaskGroup",
    "asyncio.gather": "a task has an owner: asyncio.TaskGroup",
    "eval": "runs what a stranger sent",
    "exec": "runs what a stranger sent",
    "os.fork": "no fork after start",
    "os.system": "a process is started with its arguments as a list",
    "torch.load": "reads pickles",
    "hivemind.DHT": "forks, and dies on large commands",
    "time.sleep": "blocks the event loop; wait for the thing itself",
}
BANNED_IMPORTS = {
    "pickle": "runs what a stranger sent",
    "dill": "runs what a stranger sent",
    "cloudpickle": "runs what a stranger sent",
    "shelve": "runs what a stranger sent",
    "marshal": "runs what a stranger sent",
    "multiprocessing": "forks, or starts what nobody owns",
    "unittest": "memory ports or the real thing, no mocks",
    "mock": "memory ports or the real thing, no mocks",
}
# Rooms in which a call is right: a local swarm waits for real processes, and its fork server forks
# them before anything has started in it; what `tests/killed` forks dies as it writes a file.
CALL_ALLOWED = {
    ("lab", "time.sleep"),
    ("cli", "time.sleep"),
    ("paced_fork_server.py", "time.sleep"),  # a device that takes longer, in its own thread
    ("lab", "os.fork"),
    ("killed", "os.fork"),
}

TEXT_SUFFIXES = {
    ".py",
    ".pyi",
    ".toml",
    ".txt",
    ".md",
    ".proto",
    ".cfg",
    ".ini",
    ".yaml",
    ".yml",
    ".json",
    ".service",
    ".env",
    ".sh",
    ".in",
    "",
}
NOT_OURS = {".git", ".venv", ".interop", "venv", "reports", "dist", "build", "node_modules"}
# Places on one person's machine, put together so that this file does not hold them itself.
MACHINE_PATHS = re.compile(
    "|".join(rf"(?<![\w.~]){re.escape('/' + place + '/')}\w" for place in ("work", "home", "Users", "root", "farm", "tmp"))
)

UNDONE = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + r")\b")

Found = Iterator[str]


def python_files(*folders: str) -> list[Path]:
    """Python files below these folders, generated ones left out, sorted."""
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not GENERATED.match(relative(path)) and path.relative_to(ROOT).parts[0] not in NOT_OURS
    )


def relative(path: Path) -> str:
    """A file's name as failures say it."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The parsed file, which several checks look at."""
    return ast.parse(path.read_text(encoding="utf-8"), relative(path))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All that stands in a file, outermost first: to walk takes as long as to parse."""
    return tuple(ast.walk(tree_of(path)))


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a file imports, also inside functions; names imported from
    a package are added to its name.
    """
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                source = ".".join([*path.relative_to(ROOT).parts[: -node.level], *filter(None, [source])])
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a file, nested ones too."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute access, "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def wrong_imports(path: Path) -> Found:
    """Imports of a file that its room may not have."""
    parts = path.relative_to(ROOT / PACKAGE).parts
    if parts == ("__main__.py",):
        rooms, packages = {"cli"}, set[str]()
    elif len(parts) == 1:
        rooms, packages = set(ROOMS), set[str]()  # the public face
    elif parts[0] not in ROOMS:
        yield f"{relative(path)}:1: there is no room {parts[0]}"
        return
    else:
        rooms, packages = ROOMS[parts[0]]
        rooms = rooms | {parts[0]}
    if TORCH_REHEARSAL.fullmatch(relative(path)):
        rooms, packages = rooms | {"model"}, packages | {"torch"}
    for line, name in imports_of(path):
        top, _, rest = name.partition(".")
        if top == PACKAGE:
            room = rest.partition(".")[0]
            if room in ROOMS and room not in rooms:
                yield f"{relative(path)}:{line}: {parts[0]} may not know {room} ({name})"
        elif top not in sys.stdlib_module_names and top not in packages:
            yield f"{relative(path)}:{line}: {parts[0]} may not import {top}"


def module_of(path: Path) -> str:
    """Dotted name of a file of the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def arrows_up(path: Path) -> Found:
    """Imports of a file from its own layer or from a layer above, in rooms with layers."""
    room, *rest = module_of(path).split(".")[1:] or [""]
    if room not in LAYERS or not rest:
        return
    height = {name: number for number, layer in enumerate(LAYERS[room]) for name in layer}
    if rest[0] not in height:
        yield f"{relative(path)}:1: {rest[0]} has no layer in {room}"
        return
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[:2] != [PACKAGE, room] or len(parts) < 3 or parts[2] == rest[0]:
            continue
        if height.get(parts[2], -1) >= height[rest[0]]:
            yield f"{relative(path)}:{line}: {room}/{rest[0]} may not know {room}/{parts[2]}, which is not below it"


def tied_objects(path: Path) -> Found:
    """In the coordinator's room: fields that another object assigns, and callbacks that an object
    is given to hold.
    """
    if not module_of(path).startswith(f"{PACKAGE}.trainer.coordinator."):
        return
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and dotted(node.value) != "self":
            yield f"{relative(path)}:{node.lineno}: {node.attr} of another object changes: it does by its own methods only"
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for name in (inner for inner in ast.walk(node) if isinstance(inner, ast.Name) and inner.id == "Callable"):
                yield f"{relative(path)}:{name.lineno}: a callback is held: give the value that it asks, or call whom it belongs to"


def import_circles(files: Iterable[Path]) -> Found:
    """Circles of modules that import each other, also inside functions and for types alone; one
    line for each.
    """
    places = {module_of(path): path for path in files}
    knows: dict[str, set[str]] = {}
    for module, path in places.items():
        names = {name if name in places else name.rpartition(".")[0] for _, name in imports_of(path)}
        knows[module] = (names & places.keys()) - {module}
    done: set[str] = set()

    def follow(module: str, way: list[str]) -> Found:
        if module in way:
            circle = way[way.index(module) :]
            yield f"{relative(places[min(circle)])}:1: circle of imports: {' -> '.join([*circle, module])}"
        elif module not in done:
            for known in sorted(knows[module]):
                yield from follow(known, [*way, module])
            done.add(module)

    for module in sorted(places):
        yield from follow(module, [])


def reached_from(modules: Iterable[str], files: Mapping[str, Path]) -> set[str]:
    """These modules, and all that they import, directly or through others, also inside functions;
    packages above them but the first.
    """
    reached: set[str] = set()
    ahead = list(modules)
    while ahead:
        module = ahead.pop()
        if module in reached:
            continue
        reached.add(module)
        names = [module.rpartition(".")[0], *(name for _, name in imports_of(files[module]))]
        ahead += [place for name in names for place in (name, name.rpartition(".")[0]) if place in files and place != PACKAGE]
    return reached


def wrong_requirements(files: Iterable[Path]) -> Found:
    """What `pyproject.toml` has a peer install and no peer imports, the other way round, and the
    same of the extra `lab`.
    """
    places = {module_of(path): path for path in files}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def imported_by(modules: Iterable[str]) -> set[str]:
        tops = {name.partition(".")[0] for module in modules for _, name in imports_of(places[module])}
        return {DISTRIBUTIONS.get(top, top) for top in tops - {PACKAGE} - sys.stdlib_module_names}

    commands = [command for name in PEER_COMMANDS if (command := f"{PACKAGE}.cli.{name}") in places]
    extras = project["optional-dependencies"]
    optional = {re.split(r"[^\w-]", line)[0] for extra in OPTIONAL for line in extras.get(extra, [])}
    by_all = imported_by(places)
    by_peer = imported_by(reached_from(commands, places)) - optional
    by_lab = imported_by(places) - by_peer - optional
    for what, required, imported in (
        ("dependencies", project["dependencies"], by_peer),
        ("the extra lab", extras["lab"], by_lab),
        *((f"the extra {extra}", extras.get(extra, []), by_all & brought) for extra, brought in OPTIONAL.items()),
    ):
        named = {re.split(r"[^\w-]", line)[0] for line in required}
        yield from (f"pyproject.toml: {what}: {name} is required and not imported" for name in sorted(named - imported))
        yield from (f"pyproject.toml: {what}: {name} is imported and not required" for name in sorted(imported - named))


def room_circles(rooms: Mapping[str, set[str]]) -> Found:
    """Rooms that may know each other, directly or through others: no order puts each after those
    that it knows.
    """
    try:
        graphlib.TopologicalSorter(rooms).prepare()
    except graphlib.CycleError as error:
        yield f"circle of rooms: {' -> '.join(error.args[1])}"


def classes_of(path: Path) -> Iterator[ast.ClassDef]:
    """All classes, nested ones too."""
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef):
            yield node


def defined_twice(files: Iterable[Path]) -> Found:
    """Classes of the same name, whether private or not."""
    first: dict[str, str] = {}
    for path in files:
        for node in classes_of(path):
            name, place = node.name.lstrip("_"), f"{relative(path)}:{node.lineno}"
            if name in first:
                yield f"{place}: {node.name} is the name of a class at {first[name]} already"
            first.setdefault(name, place)


def participle_name(path: Path) -> Found:
    """A module or folder whose noun is a participle."""
    for name in (path.stem, path.parent.name):
        noun = name.rpartition("_")[2]
        if PARTICIPLE.fullmatch(noun) and noun not in GERUNDS:
            yield f"{relative(path)}:1: {name} is no noun"


NOT_ABSENT = {"range", "reshape", "view", "mean", "waitpid", "mmap", "set_wakeup_fd"}
"""To these calls -1 says something else: downwards, all the rest, any child, no file."""


def bare_absences(path: Path) -> Found:
    """A -1 without its name, ABSENT; but not that of a place from the end, of an axis, of the
    maximum of nothing, or among other numbers.
    """

    def is_other(parent: ast.AST) -> bool:
        match parent:
            case ast.Subscript() | ast.Slice() | ast.BinOp():
                return True
            case ast.Assign(targets=[ast.Name(id="ABSENT")]):
                return path.name == "names.py"
            case ast.keyword(arg=name):
                return name in {"dim", "axis", "default"}
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return name in NOT_ABSENT
            case ast.Tuple(elts=elements):
                return any(ast.unparse(each) != "-1" for each in elements)
        return False

    in_model = path.is_relative_to(ROOT / PACKAGE / "model")
    for parent in nodes_of(path):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-1" and not in_model and not is_other(parent):
                yield f"{relative(path)}:{node.lineno}: -1 bears no name; ABSENT expected"


def written_books(path: Path) -> Found:
    """Fields of the peer's books that another than their own file and the member writes."""
    if path.name in {"replica_state.py", "member.py"}:
        return
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            books = dotted(node.value).rpartition(".")[2].lstrip("_")
            if books == "replica_state":
                yield f"{relative(path)}:{node.lineno}: {dotted(node)} is written by the member alone; tell it by a method"


def glossary_classes() -> dict[str, set[str]]:
    """File below the package -> the classes that the glossary names under it."""
    found: dict[str, set[str]] = {}
    file = ""
    for line in _glossary().partition("\n## Classes\n")[2].splitlines():
        if heading := re.fullmatch(r"`([\w/]+\.py)`", line):
            file = heading[1]
        elif row := re.match(r"- `(\w+)`: \w", line):
            found.setdefault(file, set()).add(row[1])
    return found


def drawn_files() -> dict[str, int]:
    """File of the package, as the tree of the architecture draws it -> the line that it stands in;
    each has something said of it.
    """
    found: dict[str, int] = {}
    folders: list[str] = []
    path = ROOT / ARCHITECTURE
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.is_file() else (), start=1):
        if line == f"{PACKAGE}/":
            folders = [PACKAGE]
        elif folders and (row := re.fullmatch(r"((?:  )+)([\w.-]+)(/?) +\w.*", line)):
            folders = [*folders[: len(row[1]) // 2], row[2]]
            if not row[3]:
                found["/".join(folders)] = number
    return found


def undrawn_files(files: Iterable[Path]) -> Found:
    """Files that the tree of the architecture does not draw, and what it draws that is not there;
    openings of folders are not drawn.
    """
    there = {relative(path) for path in files if path.name != "__init__.py"}
    drawn = drawn_files()
    yield from (f"{name}:1: stands in no line of {ARCHITECTURE}" for name in sorted(there - drawn.keys()))
    yield from (f"{ARCHITECTURE}:{drawn[name]}: there is no {name}" for name in sorted(drawn.keys() - there))


def unlisted_classes(path: Path) -> Found:
    """Public classes of the core rooms that the glossary does not name under their file, and names
    there that no class has.
    """
    file = path.relative_to(ROOT / PACKAGE).as_posix()
    if file.partition("/")[0] not in CORE_ROOMS:
        return
    public = [node for node in tree_of(path).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    listed = glossary_classes().get(file, set())
    for node in public:
        if node.name not in listed:
            yield f"{relative(path)}:{node.lineno}: {GLOSSARY} has no line for class {node.name} under `{file}`"
    for name in sorted(listed - {node.name for node in public}):
        yield f"{relative(path)}:1: {GLOSSARY} has a line for class {name}, which is not here"


def glossary_rows() -> list[list[str]]:
    """The cells of each row of the glossary: word, meaning, what the field says, what we do not
    say.
    """
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in _glossary().splitlines() if line.startswith("| **")]


def forbidden_words() -> list[str]:
    """The words that the glossary forbids."""
    return [word for row in glossary_rows() for word in row[3].lower().split(", ") if word]


def forbidden_names(path: Path) -> Found:
    """Modules and public classes with a word in their name that the glossary forbids."""
    forbidden, names = forbidden_words(), [(1, module_of(path).rpartition(".")[2])]
    names += [(node.lineno, node.name) for node in classes_of(path) if not node.name.startswith("_")]
    for line, name in names:
        words = f" {' '.join(re.findall(r'[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+', name)).lower()} "
        for word in forbidden:
            if f" {word} " in words:
                yield f"{relative(path)}:{line}: {name}: {GLOSSARY} forbids {word}"


def given_up_names(path: Path) -> Found:
    """Public functions, arguments, fields and constants with a word in their name that the glossary
    has replaced.
    """
    for node in nodes_of(path):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if not name.startswith("_") and name not in KEPT_KEYS and (found := GIVEN_UP_WORDS.search(name)):
            yield f"{relative(path)}:{node.lineno}: {name}: {GLOSSARY} has another word for {found[1].lower()}"


def _glossary() -> str:
    path = ROOT / GLOSSARY
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def oversized(path: Path) -> Found:
    """Functions of a file that are too long or take too much. A file is one concept, however
    long.
    """
    name, text = relative(path), path.read_text(encoding="utf-8")
    for function in functions_of(path):
        assert function.end_lineno is not None
        length = function.end_lineno - function.lineno + 1
        if length > FUNCTION_LINES_MAX:
            yield f"{name}:{function.lineno}: {function.name} has {length} lines; at most {FUNCTION_LINES_MAX}"
        arguments = function.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        count = len([argument for argument in names if argument not in {"self", "cls"}])
        if count > PARAMETERS_MAX and not REASON_BESIDE.search(text.splitlines()[function.lineno - 1]):
            yield f"{name}:{function.lineno}: {function.name} has {count} parameters; at most {PARAMETERS_MAX}"


def banned(path: Path) -> Found:
    """Calls and imports that are banned, with the reason."""
    room = path.relative_to(ROOT).parts[1]
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute | ast.Name):
            name = dotted(node)
            if name in BANNED_CALLS and (room, name) not in CALL_ALLOWED:
                yield f"{relative(path)}:{node.lineno}: {name}: {BANNED_CALLS[name]}"
            if name in {"os.environ", "os.getenv"} and path.is_relative_to(ROOT / PACKAGE) and room != "cli":
                yield f"{relative(path)}:{node.lineno}: {name}: only the commands look at the environment"
            if isinstance(node, ast.Attribute) and "insecure" in node.attr and path.is_relative_to(ROOT / PACKAGE):
                yield f"{relative(path)}:{node.lineno}: {node.attr}: peers speak TLS, there is no plain text"
    for line, name in imports_of(path):
        if reason := BANNED_IMPORTS.get(name.partition(".")[0]):
            yield f"{relative(path)}:{line}: import of {name}: {reason}"
        if reason := BANNED_CALLS.get(name):
            yield f"{relative(path)}:{line}: import of {name}: {reason}"


def blind_handlers(path: Path) -> Found:
    """Handlers that catch everything; one that catches `BaseException`, cleans up and raises it
    again is none.
    """
    for node in nodes_of(path):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type] if node.type else []
        caught = [dotted(kind) for kind in kinds]
        again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        if not caught or "Exception" in caught or ("BaseException" in caught and not again):
            yield f"{relative(path)}:{node.lineno}: except {', '.join(caught)}"


def waiting_handlers(path: Path) -> Found:
    """Handlers of groups that wait: before Python 3.11.4 a cancellation that meets one there comes
    out of it within a group, so that the task has failed, and has not been cancelled.
    """
    for node in nodes_of(path):
        for handler in node.handlers if isinstance(node, ast.TryStar) else ():
            for inner in ast.walk(handler):
                if isinstance(inner, ast.Await | ast.AsyncFor | ast.AsyncWith):
                    yield f"{relative(path)}:{inner.lineno}: a wait within except*"


def undocumented(path: Path) -> Found:
    """Public modules, classes, functions and methods without a docstring."""

    def look(node: ast.Module | ast.ClassDef, within: str) -> Found:
        for child in node.body:
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or child.name.startswith("_"):
                continue
            decorators = {dotted(decorator) for decorator in child.decorator_list}
            if not ast.get_docstring(child) and not decorators & {"overload", "typing.overload", "override", "typing.override"}:
                yield f"{relative(path)}:{child.lineno}: {within}{child.name} has no docstring"
            if isinstance(child, ast.ClassDef):
                yield from look(child, f"{within}{child.name}.")

    tree = tree_of(path)
    if not ast.get_docstring(tree):
        yield f"{relative(path)}:1: module has no docstring"
    yield from look(tree, "")


def uncommented_fields(path: Path) -> Found:
    """Fields, RPCs and enum values of a proto file without a comment above them or behind them."""
    before = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        code, slashes, _ = line.partition("//")
        is_field = re.match(r"\s+(?:(?:repeated|optional|map<[^>]+>)\s*)?[\w.]*\s*\w+\s*=\s*\d+\s*[;\[]", code)
        if (is_field or re.match(r"\s+rpc\s", code)) and not slashes and not before.lstrip().startswith("//"):
            yield f"{relative(path)}:{number}: {code.strip()} has no comment"
        before = line


def text_files() -> Iterator[Path]:
    """Text files of the project: what git keeps, so that nothing counts that a user has brought; in
    a copy without git all but what tools and runs leave.
    """
    paths: list[Path] = []
    if git := shutil.which("git"):
        listed = subprocess.run([git, "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
        paths = [ROOT / name for name in listed.stdout.split("\0")]
    if ROOT / "pyproject.toml" in paths:
        return (path for path in paths if path.suffix in TEXT_SUFFIXES and path.is_file() and not path.is_symlink())

    def walk(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if (
                path.is_symlink()
                or path.name in NOT_OURS
                or path.name.endswith(("_cache", "__pycache__", ".egg-info", ".hypothesis"))
            ):
                continue
            if path.is_dir():
                yield from walk(path)
            elif path.suffix in TEXT_SUFFIXES:
                yield path

    return walk(ROOT)


def untold_tests(path: Path) -> Found:
    """Tests without a sentence."""
    for function in functions_of(path):
        if function.name.startswith("test_"):
            sentence = (ast.get_docstring(function) or "").strip()
            if not sentence.endswith((".", "!", "?", ")")):
                yield f"{relative(path)}:{function.lineno}: {function.name} has no sentence"


def machine_paths(path: Path) -> Found:
    """Places that exist on one person's machine only."""
    yield from _matching(path, MACHINE_PATHS)


def left_to_do(path: Path) -> Found:
    """Marks of work that is not done."""
    yield from _matching(path, UNDONE)


def _matching(path: Path, pattern: re.Pattern[str]) -> Found:
    for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), start=1):
        if found := pattern.search(line):
            yield f"{relative(path)}:{number}: {found[0]}"

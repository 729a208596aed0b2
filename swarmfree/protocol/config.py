"""Configuration from what people write: TOML files, `section.key=value` overrides, and the
manifest's bytes from the wire.

Everything a person may have mistyped ends in one `ConfigError` of one line: file, line, key, value,
rule and, where one is near, the key that was meant. What the values mean and which go together is
said by `manifest` and `local_config`; this module invents no default.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmfree.protocol.canonical_json import bounded_json
from swarmfree.protocol.config_values import (
    ConfigSource,
    assigned,
    checked,
    first_key,
    is_url,
    read_text,
    split_override,
    toml_value,
    typed,
    types_of,
    unknown,
    unknown_section,
    written_key,
)
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import SECTIONS, Manifest
from swarmfree.protocol.names import PROTOCOL_REVISION
from swarmfree.protocol.peer_limits import PeerLimits

MANIFEST_SIZE_BYTES_MAX = 1 << 16
_DATA_PATH, _INIT_FROM = "data.path", "model.init_from"
_ORGANISER = "organiser"
_REVISION = "revision"
_LIMITS = "limits."
_LOCAL_PATHS = frozenset({"folder", "data_path", "init_from", "weights_folder"})
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A run config as a person wrote it.

    Args:
        manifest: what all peers will agree on.
        data_path: file or folder of text on this machine, a dataset there or behind a URL, or the
            file of a mixture of these; empty = the default corpus. A machine's choice, so it is not
            in the manifest. Where the run file says it, it is relative to the
            folder of that file; in an override, to the working folder.
        init_from: folder of a LLaMA on this machine that the run begins with, empty = first weights
            are drawn; as `data_path`.
    """

    manifest: Manifest
    data_path: str = ""
    init_from: str = ""


def load_run(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run config from a TOML file.

    Args:
        path: the file.
        overrides: ``section.key=value`` each; they win over the file, the last one over those
            before it.

    Raises:
        ConfigError: one line that names file, key, value and rule.
    """
    file = Path(path)
    config = read_run(read_text(file), str(file), overrides)
    chosen_here = {override.partition("=")[0].strip() for override in overrides}

    def placed(path: str, key: str) -> str:
        return str(file.parent / Path(path).expanduser()) if path and key not in chosen_here and not is_url(path) else path

    return dataclasses.replace(
        config, data_path=placed(config.data_path, _DATA_PATH), init_from=placed(config.init_from, _INIT_FROM)
    )


def read_run(text: str, origin: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run config from TOML text; `origin` names it in errors. See `load_run`.

    Raises:
        ConfigError: as for `load_run`.
    """
    source = ConfigSource(text, origin)
    types = _run_types()
    known = tuple(types)
    values: dict[str, Any] = {}
    for name, entry in source.parse().items():
        if name == _ORGANISER:
            values[name] = checked(str, entry, name, source)
        elif name not in SECTIONS:
            shown = f"[{written_key(name)}]" if isinstance(entry, dict) else assigned(written_key(name), entry)
            source.fail(name, f"{shown}: {unknown_section(name, SECTIONS, known)}")
        elif not isinstance(entry, dict):
            source.fail(name, f"{assigned(name, entry)}: must be a section, written [{name}]")
        else:
            for key, value in entry.items():
                path = f"{name}.{written_key(key)}"
                if path not in types:
                    source.fail(path, f"{assigned(path, value)}: {unknown(path, known)}")
                values[path] = checked(types[path], value, path, source)
    changed = {path: f"--set {path}" for path in (override.partition("=")[0].strip() for override in overrides)}
    source = ConfigSource(text, origin, changed)
    for override in overrides:
        path, value_text = split_override(override, known, "--set", "section.key=value")
        if path == _ORGANISER:
            raise ConfigError(
                f"--set {_ORGANISER} = {value_text}: cannot be changed; a run's organiser is who has the key that `swarmfree bootstrap` "
                "draws, or that --organiser names"
            )
        values[path] = typed(types[path], value_text, path, source)
    data_path, init_from, organiser = (values.pop(key, "") for key in (_DATA_PATH, _INIT_FROM, _ORGANISER))
    return RunConfig(_build(values, organiser, source), data_path, init_from)


def run_keys() -> tuple[str, ...]:
    """Every key of a run config, with its section."""
    return tuple(_run_types())


def key_like(word: str) -> str:
    """Find the config key that a person probably means by `word`; "" if none is near.

    `word` is compared with the last part of each key; the answer includes the section.
    """
    keys = run_keys()
    named = {key.rpartition(".")[2]: key for key in reversed(keys)}
    return next((named[name] for name in difflib.get_close_matches(word.lower(), named, n=1, cutoff=0.8)), "")


def manifest_from_bytes(content: bytes) -> Manifest:
    """Parse the canonical bytes of a manifest that another peer sent: the strict inverse of
    `canonical`.

    Raises:
        ConfigError: anything else, in one line.
    """
    source = ConfigSource("", "manifest")
    if len(content) > MANIFEST_SIZE_BYTES_MAX:
        source.fail("", f"{len(content):,} bytes; at most {MANIFEST_SIZE_BYTES_MAX:,} expected")
    try:
        fields = bounded_json(content, MANIFEST_SIZE_BYTES_MAX)
    except ValueError:
        source.fail("", "not JSON; the canonical bytes of a manifest expected")
    revision = fields.pop(_REVISION, None) if isinstance(fields, dict) else None
    if isinstance(fields, dict) and revision != PROTOCOL_REVISION:
        found = f"{revision!r:.12}" if revision is not None else "before 11"
        source.fail("", f"of protocol revision {found}; this swarmfree speaks {PROTOCOL_REVISION}: update the older of the two")
    if not isinstance(fields, dict) or set(fields) != {*SECTIONS, _ORGANISER}:
        source.fail("", f"must have exactly the sections {', '.join((*SECTIONS, _ORGANISER))}")
    values: dict[str, Any] = {}
    for name, record in SECTIONS.items():
        types = types_of(record)
        if not isinstance(fields[name], dict) or set(fields[name]) != set(types):
            source.fail(name, f"{name}: must have exactly the keys {', '.join(types)}")
        for key, value in fields[name].items():
            values[f"{name}.{key}"] = checked(types[key], value, f"{name}.{key}", source)
    manifest = _build(values, checked(str, fields[_ORGANISER], _ORGANISER, source), source)
    if manifest.canonical() != content:
        source.fail("", "not in canonical form; sorted keys, no spaces and each number as its type expected")
    return manifest


def differences(kept: Manifest, asked: Manifest) -> list[str]:
    """Where two run configs differ, in words; what data is found to be does not count."""
    held, wanted = dataclasses.asdict(kept), dataclasses.asdict(asked)
    return [
        f"{name}.{key} ({held[name][key]} kept, {wanted[name][key]} asked for)"
        for name in SECTIONS
        for key in held[name]
        if held[name][key] != wanted[name][key] and (name != "data" or key == "held_out_percent")
    ]


def to_toml(manifest: Manifest, data_path: str = "", init_from: str = "") -> str:
    """Write a manifest as a run file with a comment for each key; `read_run` reads the same
    back.
    """
    lines = [f"# Run {manifest.run.name}. What all peers agree on; every key that is left out has its default."]
    if manifest.organiser:
        lines += ["", "# Peer id of who made the manifest.", f"{_ORGANISER} = {toml_value(manifest.organiser)}"]
    for name, kind in SECTIONS.items():
        record = getattr(manifest, name)
        lines += ["", f"# {_summary(kind)}", f"[{name}]"]
        if name == "data" and data_path:
            lines += ["# This machine's text, dataset or mixture; not part of the manifest.", f"path = {toml_value(data_path)}"]
        if name == "model" and init_from:
            lines += [
                "# This machine's folder of the LLaMA that the run begins with; not part of the manifest. Its config says the shapes.",
                f"init_from = {toml_value(init_from)}",
            ]
        lines += _entries(record, {field.name: field.default for field in dataclasses.fields(kind)})
    return "\n".join(lines) + "\n"


def load_local(path: str | Path | None, flags: Mapping[str, object], options: Mapping[str, str] | None = None) -> LocalConfig:
    """Load one machine's choices from a TOML file with flat keys, if given, and from flags, which
    win.

    Args:
        path: the file; None = flags alone. Paths in it are relative to its folder.
        flags: values by key, each of its type or as text; None = not given.
        options: key -> option that sets it, for messages, where it is not called after the key.

    Raises:
        ConfigError: one line that names file, key, value and rule.
    """
    types = _local_types()
    given = {key: value for key, value in flags.items() if value is not None}
    text = read_text(Path(path)) if path else ""
    source = ConfigSource(text, str(path or "flags"))
    values: dict[str, Any] = {}
    for key, value in _flat(source.parse()).items():
        if key not in types:
            shown = key if key.startswith(_LIMITS) else written_key(key)
            source.fail(key, f"{assigned(shown, value)}: {unknown(key, types)}")
        values[key] = checked(types[key], value, key, source)
        if path and key in _LOCAL_PATHS and values[key] and not is_url(values[key]):
            values[key] = str(Path(path).parent / Path(values[key]).expanduser())
    source = ConfigSource(text, source.origin, {key: (options or {}).get(key, _option_of(key)) for key in given})
    for key, value in given.items():
        assert key in types, f"no such key in LocalConfig: {key}"
        values[key] = typed(types[key], value, key, source) if isinstance(value, str) else checked(types[key], value, key, source)
    if not values.get("folder"):
        source.fail("folder", "folder: missing; a peer keeps its identity, state and logs there")
    chosen = {key.removeprefix(_LIMITS): values.pop(key) for key in tuple(values) if key.startswith(_LIMITS)}
    try:
        limits = PeerLimits(**chosen)
    except ConfigError as error:
        source.fail(f"{_LIMITS}{first_key(str(error))}", f"{_LIMITS}{error}")
    try:
        return LocalConfig(**values, limits=limits)
    except ConfigError as error:
        source.fail(first_key(str(error)), str(error))


def limits_to_toml(limits: PeerLimits) -> list[str]:
    """Lines of the section that says what other peers may use of this one."""
    defaults = {field.name: field.default for field in dataclasses.fields(PeerLimits)}
    return [f"# {_summary(PeerLimits)}", f"[{_LIMITS[:-1]}]", *_entries(limits, defaults)]


def limits_of(changes: Sequence[str]) -> dict[str, str]:
    """Flags for `load_local` from ``key=value`` each, as they stand on a command line.

    Raises:
        ConfigError: one of them is not of that form, or nobody knows the key.
    """
    known = tuple(types_of(PeerLimits))
    pairs = (split_override(change, known, "--limit", "key=value") for change in changes)
    return {f"{_LIMITS}{key}": text for key, text in pairs}


def _option_of(key: str) -> str:
    """How a key of one machine's choices is typed, where its option is called after it."""
    return f"--limit {key.removeprefix(_LIMITS)}" if key.startswith(_LIMITS) else f"--{key.replace('_', '-')}"


def _local_types() -> dict[str, Any]:
    """Type of every key of one machine's choices, by path."""
    flat = {key: kind for key, kind in types_of(LocalConfig).items() if kind is not PeerLimits}
    return flat | {f"{_LIMITS}{key}": kind for key, kind in types_of(PeerLimits).items()}


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """With the section of limits by path."""
    section = values.get(_LIMITS[:-1])
    if not isinstance(section, dict):
        return dict(values)
    limits = {f"{_LIMITS}{written_key(key)}": value for key, value in section.items()}
    return {key: value for key, value in values.items() if value is not section} | limits


def _run_types() -> dict[str, Any]:
    """Type of every key of a run config, by path."""
    types = {f"{section}.{key}": kind for section, record in SECTIONS.items() for key, kind in types_of(record).items()}
    return types | {_DATA_PATH: str, _INIT_FROM: str, _ORGANISER: str}


def _build(values: Mapping[str, Any], organiser: str, source: ConfigSource) -> Manifest:
    """The manifest of values by path; a broken relation between keys is told with the place of the
    key it is about.
    """
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for path, value in values.items():
        name, _, key = path.partition(".")
        sections[name][key] = value
    try:
        manifest = Manifest(**{name: SECTIONS[name](**section) for name, section in sections.items()}, organiser=organiser)
    except ConfigError as error:
        source.fail(first_key(str(error)), str(error))
    if not _RUN_NAME.fullmatch(manifest.run.name):
        rule = "must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit, because folders are named after it"
        source.fail("run.name", f"{assigned('run.name', manifest.run.name)}: {rule}")
    return manifest


def _summary(kind: type[Any]) -> str:
    return " ".join((kind.__doc__ or kind.__name__).strip().partition("\n\n")[0].split())


def _entries(record: Any, defaults: Mapping[str, object]) -> list[str]:
    """`key = value` of each field under its line of the record's docstring; a value that is not the
    default says the default.
    """
    notes = _argument_notes(inspect.cleandoc(type(record).__doc__ or ""))
    lines: list[str] = []
    for key, default in defaults.items():
        value = getattr(record, key)
        if key in notes:
            lines.append(f"# {notes[key]}")
        other = default is not dataclasses.MISSING and value != default
        lines.append(f"{key} = {toml_value(value)}" + (f"  # default {toml_value(default)}" if other else ""))
    return lines


def _argument_notes(docstring: str) -> dict[str, str]:
    """What the `Args:` of a Google docstring without its indentation, as Python 3.13 keeps it, say
    about each name, on one line.
    """
    notes: dict[str, str] = {}
    names: list[str] = []
    for line in docstring.partition("Args:\n")[2].splitlines():
        if found := re.match(r" {4}([a-z_0-9]+(?:, [a-z_0-9]+)*): (.*)", line):
            names = found[1].split(", ")
            notes.update(dict.fromkeys(names, found[2]))
        elif line.startswith(" " * 8):
            notes.update({name: f"{notes[name]} {line.strip()}" for name in names})
        elif line.strip():
            break
    return notes

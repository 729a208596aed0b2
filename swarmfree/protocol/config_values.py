"""The grammar of a config: what one written value must be, and where it was written, so that an
error can say so in one line.

Nothing here knows which keys there are; `config` does.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from swarmfree.protocol.errors import ConfigError

_FILE_SIZE_BYTES_MAX = 1 << 20
_TEXT_LENGTH_MAX = 4096
_SHOWN_LENGTH_MAX = 60
_INTEGER_MAX = 2**63 - 1
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_RULES: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A TOML text, its name in messages, and the overrides that win over it.

    Args:
        text: the TOML.
        origin: the file's name, or what the text is.
        overrides: path of each key that an override sets -> how the person typed that, such as
            ``--set model.width``.
    """

    text: str
    origin: str
    overrides: Mapping[str, str] = field(default_factory=dict)

    def parse(self) -> dict[str, Any]:
        """Parse the TOML text into plain values.

        Raises:
            ConfigError: a syntax error, with its line.
        """
        try:
            return tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
            if str(error).startswith(("Cannot overwrite", "Cannot declare")):
                line = found[2] if found else len(self.text.splitlines())
                why = "this sets or opens again what stands further up; keep one of the two"
                raise ConfigError(one_line(f"{self.origin}:{line}: {why}")) from None
            place = f":{found[2]}: column {found[3]}: {found[1]}" if found else f": {error}"
            raise ConfigError(one_line(f"{self.origin}{place}; this is not TOML")) from None
        except (RecursionError, ValueError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise ConfigError(one_line(f"{self.origin}: not TOML: {why}")) from None

    def fail(self, path: str, why: str) -> NoReturn:
        """Raise the one-line error about the value at `path` ("" = the whole), with file and line,
        or with the option that set it; `why` begins with the path.
        """
        if path in self.overrides:
            raise ConfigError(one_line(self.overrides[path] + why.removeprefix(path)))
        line = self._line_of(path) if path else 0
        raise ConfigError(one_line(f"{self.origin}:{line}: {why}" if line else f"{self.origin}: {why}"))

    def _line_of(self, path: str) -> int:
        """Number of the line that sets the key or opens the section; 0 where it is written in some
        other way.
        """
        wanted_section, _, wanted_key = path.rpartition(".")
        section = ""
        for number, line in enumerate(self.text.splitlines(), start=1):
            if header := re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]", line):
                section = header[1]
                if section == path:
                    return number
            elif (key := re.match(r"\s*\"?([^\s=\"]+)\"?\s*=", line)) and (section, key[1]) == (wanted_section, wanted_key):
                return number
        return 0


def is_url(text: str) -> bool:
    """Whether a place is named by a URL, and is no path."""
    return _URL.match(text) is not None


def read_text(file: Path) -> str:
    """The text of a config file.

    Raises:
        ConfigError: it is missing, unreadable, too large or not UTF-8.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(_FILE_SIZE_BYTES_MAX + 1)
        if len(content) > _FILE_SIZE_BYTES_MAX:
            raise ConfigError(one_line(f"{file}: more than {_FILE_SIZE_BYTES_MAX:,} bytes; a config is shorter"))
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(one_line(f"{file}: byte {error.start} is not UTF-8; a config is text in UTF-8")) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a path"
        raise ConfigError(one_line(f"{file}: cannot be read: {why}")) from None


def types_of(kind: type[Any]) -> dict[str, Any]:
    """Key -> type of each field of a config record."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def checked(expected: Any, value: object, path: str, source: ConfigSource) -> Any:
    """Check that `value` has the type of its key; only a whole number given for a float is
    converted.

    Raises:
        ConfigError: it is not of that type, not one of its choices, not finite, too large or not
            printable.
    """
    choices = _choices(expected)
    if choices:
        if not isinstance(value, str) or value not in choices:
            near = nearest(str(value), choices)
            hint = f"; did you mean {near}?" if near else ""
            source.fail(path, f"{assigned(path, value)}: must be one of {', '.join(choices)}{hint}")
        return expected(value) if isinstance(expected, type) else value
    fits = isinstance(value, int | float if expected is float else expected) and (expected is bool) == isinstance(value, bool)
    if not fits:
        source.fail(path, f"{assigned(path, value)}{_kind_of(value)}: must be {_RULES[expected]}")
    if isinstance(value, int) and abs(value) > _INTEGER_MAX:
        source.fail(path, f"{assigned(path, value)}: must fit 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        source.fail(path, f"{assigned(path, value)}: must be finite")
    if isinstance(value, str) and not (value.isprintable() and len(value) <= _TEXT_LENGTH_MAX):
        source.fail(path, f"{assigned(path, value)}: must be at most {_TEXT_LENGTH_MAX} printable characters on one line")
    return expected(value)


def typed(expected: Any, text: str, path: str, source: ConfigSource) -> Any:
    """Parse the text of an override or flag; a text value needs no quotes.

    Raises:
        ConfigError: as for `checked`.
    """
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    value: object = text[1:-1] if quoted else text
    try:
        if expected is int:
            value = int(text, 0)
        elif expected is float:
            value = float(text)
        elif expected is bool:
            value = {"true": True, "false": False}.get(text, text)
    except ValueError:
        value = text
    return checked(expected, value, path, source)


def split_override(override: str, known: Sequence[str], option: str, form: str) -> tuple[str, str]:
    """Split ``section.key=value`` into path and text.

    Args:
        override: as it was typed.
        known: paths of all keys.
        option: behind which it was typed, for messages.
        form: that is expected, for messages.

    Raises:
        ConfigError: it is not of that form, or nobody knows the key.
    """
    path, equals, text = override.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError(one_line(f"{option} {toml_value(override)}: must be written {form}"))
    if path not in known:
        raise ConfigError(one_line(f"{option} {path} = {text.strip()}: {unknown(path, known)}"))
    return path, text.strip()


def unknown(path: str, known: Iterable[str]) -> str:
    """Say that a key is unknown, and which one was probably meant.

    The same in other letters is meant, else the key of another section by that very name, else the
    nearest in its own section, else the nearest anywhere; else the keys of its section are listed,
    or all where it has none.
    """
    section, _, key = path.rpartition(".")
    paths = tuple(known)
    keys: dict[str, list[str]] = {}
    for other in paths:
        keys.setdefault(other.rpartition(".")[2], []).append(other)
    here = [other for other in paths if other.rpartition(".")[0] == section]
    same = next((other for other in paths if other.lower() == path.lower()), "")
    near = (key if key in keys else "") or nearest(key, [other.rpartition(".")[2] for other in here]) or nearest(key, keys)
    if same or near:
        return f"unknown key; did you mean {same or next((other for other in keys[near] if other in here), keys[near][0])}?"
    return f"unknown key; known: {', '.join(here or by_section(paths))}"


def by_section(paths: Iterable[str]) -> list[str]:
    """List keys for a person, those of one section together behind its name."""
    sections: dict[str, list[str]] = {}
    for path in paths:
        section, _, key = path.rpartition(".")
        sections.setdefault(section, []).append(key)
    alone = sections.pop("", [])
    return [*(f"{section}.({', '.join(keys)})" for section, keys in sections.items()), *alone]


def unknown_section(name: str, sections: Iterable[str], known: Sequence[str]) -> str:
    """Say that a section is unknown, and which section or key was probably meant."""
    near = nearest(name, sections)
    if not near and any(path.rpartition(".")[2] == name for path in known):
        return unknown(name, known)
    return "unknown section; " + (f"did you mean [{near}]?" if near else f"known: {', '.join(sections)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Which known word is most like this one; "" where none is like it."""
    return next(iter(difflib.get_close_matches(word, tuple(known), n=1, cutoff=0.6)), "")


def first_key(message: str) -> str:
    """Return the path at the beginning of a message about a value."""
    found = re.match(r"[a-z_0-9.]+", message)
    return found[0] if found else ""


def written_key(key: str) -> str:
    """Write a key as TOML wants it, quoted where it must be."""
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key)


def assigned(path: str, value: object) -> str:
    """Format `path = value`, shortened, for messages."""
    if isinstance(value, dict | list):
        return f"{path} = {'{...}' if isinstance(value, dict) else '[...]'}"
    shown = toml_value(value) if isinstance(value, str | bool) else str(value)
    return f"{path} = {shown if len(shown) <= _SHOWN_LENGTH_MAX else shown[: _SHOWN_LENGTH_MAX - 3] + '...'}"


def one_line(message: str) -> str:
    """Replace line breaks in `message` by spaces."""
    return " ".join(message.split())


def toml_value(value: object) -> str:
    """Format a text, truth value or number as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _choices(expected: object) -> tuple[str, ...]:
    """What may be written where the type is a closed set; () for every other type."""
    if typing.get_origin(expected) is typing.Literal:
        return typing.get_args(expected)
    if isinstance(expected, type) and issubclass(expected, enum.StrEnum):
        return tuple(member.value for member in expected)
    return ()


def _kind_of(value: object) -> str:
    names: Mapping[type, str] = {**_RULES, list: "a list", dict: "a section"}
    return f" ({names.get(type(value), 'a date or time')})"

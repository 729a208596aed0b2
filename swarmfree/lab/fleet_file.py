"""A fleet that is described in a TOML file, by whoever thinks of renting or borrowing it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmfree.policy.planner.fleet import Fleet, Link, PeerProfile
from swarmfree.policy.planner.model_size import block_flops
from swarmfree.protocol.config_values import ConfigSource, assigned, checked, nearest, read_text, types_of, unknown, written_key
from swarmfree.protocol.manifest import Manifest

BITS_PER_BYTE, MBIT, TERA, GIGA, MILLI = 8, 1e6, 1e12, 1e9, 1e-3
PEERS_MAX = 10_000
NAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class DescribedPeers:
    """Equal machines, a section ``[[peers]]`` of the file.

    Args:
        name: of the machine; with a count, of each with its number behind it.
        tflops: TFLOP/s that one reaches in training, not the figure of its data sheet.
        memory_gb: that training may take.
        mbit_per_s: up or down, the less of both.
        count: how many.
        latency_ms: to the middle of the network; a message takes both ends' latencies.
        failures_per_hour: how often one dies.
        price_per_hour: of one.
        can_feed: it has the text.
    """

    name: str
    tflops: float
    memory_gb: float
    mbit_per_s: float
    count: int = 1
    latency_ms: float = 0.0
    failures_per_hour: float = 0.0
    price_per_hour: float = 0.0
    can_feed: bool = False


@dataclass(frozen=True, slots=True)
class DescribedLink:
    """A link that is better or worse than its two ends say, a section ``[[links]]``.

    Args:
        one: name of a machine.
        other: name of another.
        mbit_per_s: between them.
        latency_ms: of a message.
    """

    one: str
    other: str
    mbit_per_s: float
    latency_ms: float = 0.0


LARGEST = 1e9
"""Of any number, in its unit; its inverse is the smallest one."""
KINDS: dict[str, type[Any]] = {"peers": DescribedPeers, "links": DescribedLink}


def load_fleet(path: Path, manifest: Manifest) -> Fleet:
    """Read a described fleet.

    Args:
        path: the file.
        manifest: of the run, whose blocks are what the peers compute.

    Raises:
        ConfigError: one line that names file, line, key, value and rule.
    """
    return read_fleet(read_text(path), str(path), manifest)


def read_fleet(text: str, origin: str, manifest: Manifest) -> Fleet:
    """Read a described fleet from TOML text; `origin` names it in errors. See `load_fleet`.

    Raises:
        ConfigError: as for `load_fleet`.
    """
    source = ConfigSource(text, origin)
    content = source.parse()
    for name, value in content.items():
        if name not in KINDS:
            source.fail(
                name, f"{assigned(written_key(name), value)}: {unknown(name, KINDS)}; a fleet has [[peers]] and [[links]]"
            )
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            source.fail(name, f"{name}: must be written [[{name}]], once for each kind of machine or each link")
    if not content.get("peers"):
        source.fail("", "no [[peers]]: a fleet has one at least, with name, tflops, memory_gb and mbit_per_s")
    peers: dict[str, PeerProfile] = {}
    for described, place in _entries(content, "peers", source):
        _require(described, place, ("tflops", "memory_gb", "mbit_per_s", "count"))
        if not described.name.strip():
            place.fail("name", f"{assigned('name', described.name)}: a machine needs a name, which plans and links give")
        if len(peers) + described.count > PEERS_MAX:
            place.fail("count", f"{assigned('count', described.count)}: a fleet has at most {PEERS_MAX:,} peers")
        for profile in _profiles(described, manifest):
            if profile.name in peers:
                place.fail("name", f"{assigned('name', described.name)}: {profile.name} is the name of a machine above, too")
            peers[profile.name] = profile
    links: dict[tuple[str, str], Link] = {}
    for described, place in _entries(content, "links", source):
        _require(described, place, ("mbit_per_s",))
        for key in ("one", "other"):
            if (name := getattr(described, key)) not in peers:
                place.fail(key, f"{assigned(key, name)}: {unknown_peer(name, list(peers))}")
        pair = described.one, described.other
        if pair in links or pair[::-1] in links or pair[0] == pair[1]:
            place.fail("other", f"{assigned('other', described.other)}: a link joins two peers, and each two have one")
        links[pair] = Link(described.latency_ms * MILLI, described.mbit_per_s * MBIT / BITS_PER_BYTE)
    return Fleet(tuple(peers.values()), links)


def unknown_peer(name: str, peers: Sequence[str]) -> str:
    """Say that no machine has that name, and which one was probably meant: by the name of a section
    with a count, its first.
    """
    first = f"{name}-1"
    if near := first if first in peers else nearest(name, peers):
        return f"unknown peer; did you mean {near}?"
    more = f" and {len(peers) - NAMES_SHOWN:,} more" if len(peers) > NAMES_SHOWN else ""
    return f"unknown peer; known: {', '.join(peers[:NAMES_SHOWN])}{more}"


def _profiles(described: DescribedPeers, manifest: Manifest) -> Iterator[PeerProfile]:
    """Each machine of a section, as the planner knows it."""
    forward_s = block_flops(manifest) / (described.tflops * TERA)
    for number in range(1, described.count + 1):
        yield PeerProfile(
            name=described.name if described.count == 1 else f"{described.name}-{number}",
            forward_s=forward_s,
            backward_s=2 * forward_s,
            memory_bytes=round(described.memory_gb * GIGA),
            bytes_per_s=described.mbit_per_s * MBIT / BITS_PER_BYTE,
            latency_s=described.latency_ms * MILLI,
            failures_per_hour=described.failures_per_hour,
            price_per_hour=described.price_per_hour,
            can_feed=described.can_feed,
        )


def _entries(content: Mapping[str, Any], kind: str, source: ConfigSource) -> Iterator[tuple[Any, ConfigSource]]:
    """Each section of a kind, checked, and the text in which its keys are found by line."""
    types = types_of(KINDS[kind])
    needed = [field.name for field in dataclasses.fields(KINDS[kind]) if field.default is dataclasses.MISSING]
    entries, heads = content.get(kind, []), _heads(source.text, kind)
    for number, entry in enumerate(entries):
        line, stop = heads[number] if len(heads) == len(entries) else (0, 0)
        place = ConfigSource("\n" * line + "\n".join(source.text.splitlines()[line:stop]), source.origin)
        for key, value in entry.items():
            if key not in types:
                place.fail(key, f"{assigned(written_key(key), value)}: {unknown(key, types)}")
        if missing := [key for key in needed if key not in entry]:
            whole = ConfigSource("", f"{source.origin}:{line}" if line else source.origin)
            whole.fail("", f"[[{kind}]]: {missing[0]} is missing; needed: {', '.join(needed)}")
        yield KINDS[kind](**{key: checked(types[key], value, key, place) for key, value in entry.items()}), place


def _heads(text: str, kind: str) -> list[tuple[int, int]]:
    """Of each section of a kind the line that opens it, from 1, and the last line that belongs to
    it.
    """
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines, start=1) if line.lstrip().startswith("[")]
    ends = [*(head - 1 for head in heads[1:]), len(lines)]
    return [(head, end) for head, end in zip(heads, ends, strict=True) if re.match(rf"\s*\[\[\s*{kind}\s*\]\]", lines[head - 1])]


def _require(described: Any, place: ConfigSource, above_zero: tuple[str, ...]) -> None:
    """Numbers that have to be above 0, and all others at least 0; none as large or as small as no
    machine has it.
    """
    for key, kind in types_of(type(described)).items():
        value = getattr(described, key)
        if kind not in {int, float}:
            continue
        if value < 0 or (key in above_zero and not value):
            place.fail(key, f"{assigned(key, value)}: must be {'above 0' if key in above_zero else '0 or more'}")
        if value > LARGEST or 0 < value < 1 / LARGEST:
            place.fail(key, f"{assigned(key, value)}: must be from {1 / LARGEST:g} to {LARGEST:g}")

"""What an observer of a whole swarm hears: events told by peers, and what happens to their processes.

A happening is an event with the name of who told it, or a fact about a process that no peer can tell itself (it was started,
killed, it ended). One happening is one line of `events.jsonl`; reading the lines again gives the same happenings. Decides
nothing.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, get_args

from swarmfree.protocol.events import KINDS, Event, event_from_json, event_to_json
from swarmfree.protocol.json_values import finite


@dataclass(frozen=True, slots=True)
class RunDescribed:
    """The run that the following happenings are about; the first line of a report.

    Args:
        time_s: Unix time.
        name: of the run, for people.
        iterations: optimizer steps to do.
        stage_count: stages, the ends included.
        tokens_per_iteration: predicted tokens of one iteration.
    """

    time_s: float
    name: str
    iterations: int
    stage_count: int
    tokens_per_iteration: int


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A process of the swarm was started: role is ``bootstrap``, ``peer`` or ``standby``."""

    time_s: float
    name: str
    role: str
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessKilled:
    """SIGKILL was sent on purpose to a process, or (target ``p2pd``) to its libp2p daemon; or somebody else ended it, and `why` is the signal."""

    time_s: float
    name: str
    target: str
    why: str
    from_outside: bool = False


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A process is gone: exit code (negative = signal), whether that was expected, and its last word."""

    time_s: float
    name: str
    code: int
    expected: bool
    line: str


@dataclass(frozen=True, slots=True)
class PeerEvent:
    """A process told an event."""

    time_s: float
    name: str
    event: Event


@dataclass(frozen=True, slots=True)
class InviteKept:
    """The invite lies in a file, for whoever wants to join or look."""

    time_s: float
    path: str


ObservedEvent = RunDescribed | InviteKept | ProcessStarted | ProcessKilled | ProcessEnded | PeerEvent
OWN_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(ObservedEvent) if kind is not PeerEvent}


def told_from_line(name: str, line: str) -> PeerEvent | None:
    """The event that a process told as one line of JSON; None where it is none."""
    try:
        time_s, event = event_from_json(json.loads(line))
    except (KeyError, TypeError, ValueError):
        return None
    return PeerEvent(time_s, name, event)


def happening_to_json(happening: ObservedEvent, stage: int | None = None) -> dict[str, Any]:
    """The happening as JSON values.

    Args:
        happening: what happened.
        stage: the stage that its peer serves now, kept as ``peer_stage``; None if it serves none.

    Returns:
        An event as `event_to_json` writes it, with ``peer`` (the name) and ``peer_stage``; or kind and fields.
    """
    if isinstance(happening, PeerEvent):
        return {**event_to_json(happening.event, happening.time_s), "peer": happening.name, "peer_stage": stage}
    content: dict[str, Any] = finite({"kind": type(happening).__name__, **dataclasses.asdict(happening)})
    return content


def happening_from_json(content: dict[str, Any]) -> ObservedEvent:
    """Read what `happening_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: not a happening.
    """
    fields = dict(content)
    kind = str(fields["kind"])
    if kind in KINDS:
        name = str(fields.pop("peer"))
        fields.pop("peer_stage", None)
        time_s, event = event_from_json(fields)
        return PeerEvent(time_s, name, event)
    del fields["kind"]
    happening: ObservedEvent = OWN_KINDS[kind](**fields)
    return happening

"""What an observer of a whole swarm hears: events told by peers, and what happens to their
processes.

A event is an event with the name of who told it, or a fact about a process that no peer can tell
itself (it was started, killed, it ended). One event is one line of `events.jsonl`; reading the
lines again gives the same events. Decides nothing.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, get_args

from swarmfree.protocol.events import KINDS, Event, event_from_json, event_to_json
from swarmfree.protocol.json_values import finite
from swarmfree.protocol.manifest import Manifest


@dataclass(frozen=True, slots=True)
class RunDescribed:
    """The run that the following events are about; the first line of a report.

    Args:
        time_s: Unix time.
        name: of the run, for people.
        iterations: optimizer steps to do.
        stage_count: stages, the ends included.
        tokens_per_iteration: predicted tokens of one iteration.
        bytes_per_token: mean bytes of text for each token.
        vocabulary: symbols of the tokenizer.
    """

    time_s: float
    name: str
    iterations: int
    stage_count: int
    tokens_per_iteration: int
    bytes_per_token: float = 1.0
    vocabulary: int = 256

    @classmethod
    def of(cls, time_s: float, manifest: Manifest) -> RunDescribed:
        """What the manifest says, at `time_s`."""
        run, data = manifest.run, manifest.data
        return cls(
            time_s,
            run.name,
            run.iterations,
            manifest.stage_count,
            manifest.tokens_per_iteration,
            data.bytes_per_token,
            data.vocabulary,
        )


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A process of the swarm was started: role is ``bootstrap``, ``peer`` or ``standby``."""

    time_s: float
    name: str
    role: str
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessKilled:
    """SIGKILL was sent on purpose to a process, or (target ``p2pd``) to its libp2p daemon; or
    somebody else ended it, and `why` is the signal.
    """

    time_s: float
    name: str
    target: str
    why: str
    from_outside: bool = False


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A process is gone: exit code (negative = signal), whether that was expected, and its last
    word.
    """

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


def observed_event_to_json(observed_event: ObservedEvent, stage: int | None = None) -> dict[str, Any]:
    """The event as JSON values.

    Args:
        observed_event: what happened.
        stage: the stage that its peer serves now, kept as ``peer_stage``; None if it serves none.

    Returns:
        An event as `event_to_json` writes it, with ``peer`` (the name) and ``peer_stage``; or kind
        and fields.
    """
    if isinstance(observed_event, PeerEvent):
        return {**event_to_json(observed_event.event, observed_event.time_s), "peer": observed_event.name, "peer_stage": stage}
    content: dict[str, Any] = finite({"kind": type(observed_event).__name__, **dataclasses.asdict(observed_event)})
    return content


def observed_event_from_json(content: dict[str, Any]) -> ObservedEvent:
    """Read what `observed_event_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: not a event.
    """
    fields = dict(content)
    kind = str(fields["kind"])
    if kind in KINDS:
        name = str(fields.pop("peer"))
        fields.pop("peer_stage", None)
        time_s, event = event_from_json(fields)
        return PeerEvent(time_s, name, event)
    del fields["kind"]
    observed_event: ObservedEvent = OWN_KINDS[kind](**fields)
    return observed_event

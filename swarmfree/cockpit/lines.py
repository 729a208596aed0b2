"""Events in words: one line per event, for text logs, the plain view and the list of last events.
Numbers with their units.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import assert_never

from swarmfree.cockpit.state import bits_per_byte
from swarmfree.protocol.events import (
    AdoptionAsked,
    DirectoryNorms,
    DirectoryReplaced,
    Ended,
    EndsDrawnAnew,
    EngineHolds,
    EngineStepped,
    Evaluated,
    Event,
    IterationCommitted,
    LineageDropped,
    MemberLeft,
    MemberLost,
    ModelCut,
    MoveDecided,
    MoveFailed,
    MoveMeasured,
    Note,
    Opened,
    PeerExcluded,
    PeersBanned,
    PeersSuspected,
    Placed,
    RecoveryDecided,
    Repaired,
    RoundRetried,
    StageAdopted,
    StageBuilt,
    StageLost,
    Started,
    Stepped,
    TookOver,
    Waiting,
    WeightsWritten,
)

TEXT_MAX, READ_MAX = 400, 4000
"""Letters of a line, and of what it is made from: peers' own words are among them, and to look for
patterns in megabytes takes hours.
"""
PEER_ID = re.compile(r"\b(?:Qm[1-9A-HJ-NP-Za-km-z]{44}|12D3Koo[1-9A-HJ-NP-Za-km-z]{45})\b")
"""A libp2p peer id in base58: of an RSA key, or of an Ed25519 one."""
UNREACHED = re.compile(r"(?:\w+: )?peer \S+ cannot be reached: .*")
"""What a failed call says, to its end: whom it called, and then gRPC's words."""


def as_it_is(member: str) -> str:
    """The name a member has by itself."""
    return member


def waiting_words(waiting_for: str) -> str:
    """Describe as a clause what the run waits for; "goes on" if it waits for nothing."""
    if not waiting_for:
        return "goes on"
    return waiting_for if waiting_for.startswith("wait") else f"waits: {waiting_for}"


def killed_words(signal_name: str) -> str:
    """Describe a process that was killed from outside."""
    return f"was killed from outside ({signal_name})"


def action_words(action: str) -> str:
    """A recovery action as words: ``CopyNeighbour`` is "copy neighbour"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", action).lower()


def as_you_do(words: str) -> str:
    """Turn a third-person phrase into the infinitive: ``replays it`` becomes ``replay it``."""
    verb, _, rest = words.partition(" ")
    return f"{verb.replace('ies', 'y') if verb.endswith('ies') else verb.removesuffix('s')} {rest}"


def as_it_was_done(words: str) -> str:
    """Turn a third-person phrase into the past tense: ``replays it`` becomes ``replayed it``."""
    verb, _, rest = words.partition(" ")
    done = {"replays": "replayed", "copies": "copied", "takes": "took", "keeps": "kept", "draws": "drew"}
    return f"{done.get(verb, verb.removesuffix('s') + 'd')} {rest}".strip()


def is_news(event: Event) -> bool:
    """Whether a person watching a whole swarm wants a line about it: iterations, evaluations and
    the good end have their own places.
    """
    match event:
        case Opened() | Stepped() | EngineHolds() | EngineStepped() | IterationCommitted() | DirectoryNorms():
            return False
        case Started() | Evaluated() | WeightsWritten():
            return False
        case RecoveryDecided(action=action, iteration=iteration):
            return action != "Copy" and iteration > 0
        case StageBuilt(iteration=iteration):
            return iteration > 0
        case Ended(code=code, why=why):
            return code != 0 or why == "left"
    return True


PLAIN_REASONS = (
    ("Connection refused", "its process is gone"),
    ("Connection reset", "its connection broke"),
    ("Broken pipe", "its connection broke"),
    ("Socket closed", "its connection broke"),
    ("No route to host", "no way leads to its machine"),
    ("Network is unreachable", "no way leads to its machine"),
    ("Deadline Exceeded", "it is silent"),
    ("silent", "it is silent"),
    ("cannot be reached", "it cannot be reached"),
    ("UNAVAILABLE", "it cannot be reached"),
)
"""What stands in the texts of calls that failed -> what a person wants to know. The whole text is
in the events.
"""


def plain_reason(why: str) -> str:
    """Why somebody is given up, in a few words and without a word of gRPC's."""
    found = next((words for part, words in PLAIN_REASONS if part in why), None)
    return found if found is not None else why.partition(";")[0].strip()


def rebuild_words(action: str, stage: int, iterations: int | None = None) -> str:
    """What a builder does, as a sentence without its subject.

    Args:
        action: its kind, as events name it.
        stage: that is built.
        iterations: between the older state that is taken and the present one, None where none is.
    """
    since = "" if iterations is None else f"{iterations} iteration{'s' * (iterations != 1)}"
    match action:
        case "Replay":
            return f"replays {since or 'what was logged'} of stage {stage}"
        case "Restore":
            return f"restores stage {stage} from a shadow" + (f" {since} old" if iterations else "")
        case "CopyKept":
            return (
                f"takes the copy of the ends that was kept, {since} old"
                if iterations
                else "takes the copy of the ends that was kept"
            )
        case "Stay":
            return f"keeps its own state of stage {stage}" + (f", {since} old" if iterations else "")
        case "Merge":
            return f"merges stage {stage} from its neighbours"
        case "CopyNeighbour":
            return f"copies a neighbour of stage {stage}"
        case "Copy":
            return f"copies stage {stage} from a replica"
        case "Fresh":
            return f"draws stage {stage} anew"
    return f"builds stage {stage} by {action_words(action)}"


def describe(event: Event, name_of: Callable[[str], str] = as_it_is, bytes_per_token: float = 1.0) -> str:
    """One line about an event.

    Args:
        event: what happened.
        name_of: turns a member into the name a person knows it by.
        bytes_per_token: of the text that is learned.

    Returns:
        At most `TEXT_MAX` characters, all printable: what a stranger wrote draws nothing on a
        terminal.
    """
    told = " ".join(_words(event, name_of, bytes_per_token)[:READ_MAX].split())
    printable = "".join(letter if letter.isprintable() else "\N{MIDDLE DOT}" for letter in told)
    words = UNREACHED.sub(lambda found: plain_reason(found[0]), printable)
    words = PEER_ID.sub(lambda found: _short(found[0], name_of), words)
    return words[:TEXT_MAX]


def _short(peer_id: str, name_of: Callable[[str], str]) -> str:
    """A peer id as the other ids that a person reads: its last six letters, where it has no
    name.
    """
    name = name_of(peer_id)
    return name if name != peer_id else peer_id[-6:]


def _words(event: Event, name_of: Callable[[str], str], bytes_per_token: float) -> str:
    match event:
        case Started():
            return f"up as {event.peer_id[-6:]}.{event.incarnation[:3]} at {event.address}"
        case Placed():
            return f"has a place in stage {event.stage}" if event.stage >= 0 else "stands by"
        case Waiting():
            return waiting_words(event.waiting_for)
        case Opened():
            return f"opened iteration {event.iteration}" + (f", attempt {event.attempt}" if event.attempt else "")
        case IterationCommitted():
            return _committed(event, bytes_per_token)
        case Stepped():
            return f"ready for iteration {event.iteration}"
        case TookOver():
            forced = ", without a majority" if event.forced else ""
            return f"coordinates from iteration {event.iteration} on, term {event.term}, followed by {event.followers}{forced}"
        case LineageDropped():
            mine, others = f"{event.iterations} iterations, {event.forced} forced", f"{event.by_iterations} iterations"
            return f"this lineage ({mine}) gives way to another one of {others}"
        case EngineHolds():
            return f"its engine holds stage {event.stage}, state {event.state_digest[:8]}"
        case EngineStepped():
            return f"its engine stepped stage {event.stage} from {event.before[:8]} to {event.after[:8]} by {event.average[:8]}"
        case MemberLost():
            where = f" of stage {event.stage}" if event.stage >= 0 else ""
            return f"lost {name_of(event.member)}{where}: {plain_reason(event.why)}"
        case MemberLeft():
            where = f" of stage {event.stage}" if event.stage >= 0 else ""
            return f"{name_of(event.member)}{where} has left"
        case StageLost():
            last = name_of(event.last_member)
            return f"stage {event.stage} is lost in iteration {event.iteration}: {last} was its last replica"
        case AdoptionAsked() | StageAdopted():
            return _adopted(event, name_of)
        case RecoveryDecided() | MoveDecided() | MoveMeasured() | MoveFailed() | ModelCut():
            return _decided(event, name_of)
        case StageBuilt():
            return _built(event, name_of)
        case EndsDrawnAnew():
            return f"what embedding and head had learned by iteration {event.iteration} is lost: {event.reason}"
        case Evaluated():
            after = f", stages {event.after_rebuild} just rebuilt" if event.after_rebuild else ""
            return f"held-out before iteration {event.iteration}: {bits_per_byte(event.loss / bytes_per_token):.3f} bits per byte{after}"
        case DirectoryNorms():
            found = ", ".join(f"stage {stage}: {norm:.4g} (iteration {iteration})" for stage, iteration, norm in event.found)
            return f"squared norms in the directory beside stage {event.stage}: {found or 'none'}"
        case Repaired():
            parts = ", ".join(f"{len(offsets)} at stage {stage}" for stage, offsets in event.redone)
            return f"redid microbatches of iteration {event.iteration} that died with a peer: {parts}"
        case RoundRetried():
            return f"averages stage {event.stage} of iteration {event.iteration} again: {event.why}"
        case DirectoryReplaced():
            return f"the libp2p daemon died; a new one took its place in {event.seconds:.2f} s"
        case PeersBanned():
            return _banned(event)
        case PeerExcluded():
            what = f": {event.evidence[0]}" if event.evidence else ""
            return f"excludes {event.peer_id} of stage {event.stage}, by iteration {event.iteration}'s audit{what}"
        case PeersSuspected():
            return f"of {' and '.join(event.members)} one is wrong in iteration {event.iteration} at stage {event.stage}, and none is excluded"
        case WeightsWritten():
            return f"weights of stage {event.stage} lie in {event.path}"
        case Ended():
            return f"ends: {event.why}" if event.code == 0 else f"ends with exit code {event.code}: {event.why}"
        case Note():
            return event.text
        case _:
            assert_never(event)


def _adopted(event: AdoptionAsked | StageAdopted, name_of: Callable[[str], str]) -> str:
    if isinstance(event, AdoptionAsked):
        return f"nobody comes for stage {event.stage}: {name_of(event.host)} is asked to take in a guest for it"
    took = f", {event.seconds:.1f} s after it was lost" if event.seconds else ""
    return f"stage {event.stage} is adopted by {name_of(event.host)}{took}"


def _banned(event: PeersBanned) -> str:
    who = [f"peer {peer_id}" for peer_id in event.peers] + [f"ticket {ticket_id}" for ticket_id in event.tickets]
    return f"the organiser bans {', '.join(who) or 'nobody else'} (list {event.number})"


def _built(event: StageBuilt, name_of: Callable[[str], str]) -> str:
    received = f"{event.received_bytes / 1e6:.1f} MB in {event.seconds:.2f} s"
    exact = ", bit for bit" if event.exact else ""
    return f"{name_of(event.member)} holds stage {event.stage} by {action_words(event.action)}: {received}{exact}"


def _committed(event: IterationCommitted, bytes_per_token: float) -> str:
    bits = f"loss {event.loss:.4f} nats, {bits_per_byte(event.loss / bytes_per_token):.3f} bits per byte"
    speed = f"{event.tokens / event.seconds:,.0f} tokens/s" if event.seconds > 0 else f"{event.tokens} tokens"
    again = f", attempt {event.attempt}" if event.attempt else ""
    redone = f", {event.redone} microbatches redone" if event.redone else ""
    forced = f", {event.forced} forced" if event.forced else ""
    return f"iteration {event.iteration}: {bits}, {event.seconds:.2f} s, {speed}{again}{redone}{forced}"


def _decided(event: RecoveryDecided | MoveDecided | MoveMeasured | MoveFailed | ModelCut, name_of: Callable[[str], str]) -> str:
    if isinstance(event, ModelCut):
        return event.words
    if not isinstance(event, RecoveryDecided):
        return f"{name_of(event.member)} {event.words}"
    weights = ""
    if event.weight_before is not None and event.weight_after is not None:
        weights = f", weights {event.weight_before:.3f} before and {event.weight_after:.3f} after"
    iterations = None if event.taken_from is None else event.iteration - event.taken_from
    return f"{name_of(event.builder) or 'a builder'} {rebuild_words(event.action, event.stage, iterations)}{weights}"

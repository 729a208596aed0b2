"""Times, lengths and short forms as people read them."""

from __future__ import annotations

PAUSE_ORDERED = "its organiser ordered a pause: the same commands in the same folders go on"


def span(seconds: float) -> str:
    """A duration for people: ``8 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def left_words(seconds: float) -> str:
    """What is left, as roughly as it is known: ``about 5 min left``."""
    if seconds < 8:
        return "a few seconds left"
    if seconds < 90:
        return f"about {5 * round(seconds / 5)} s left"
    if seconds < 5400:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3600:.1f} h left"


def seconds_words(seconds: float) -> str:
    """Format a short duration: with tenths below ten seconds."""
    return f"{max(0.0, seconds):.1f} s" if seconds < 9.95 else span(seconds)


def clock(seconds: float) -> str:
    """Time since a start: ``2:27``, ``1:02:27``."""
    whole = max(0, int(seconds))
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def cut(text: str, columns: int) -> str:
    """The text, or its beginning and two dots where it is longer."""
    return text if len(text) <= columns else text[: max(0, columns - 2)] + ".."


def megabytes(size_bytes: int) -> str:
    """A size in MB: one decimal below ten."""
    return f"{size_bytes / 1e6:,.1f}" if size_bytes < 10e6 else f"{size_bytes / 1e6:,.0f}"


def count_words(count: int) -> str:
    """A count that may be large: ``840``, ``12.3 k``, ``2.5 M``."""
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if count >= limit:
            return f"{count / (10**3 if unit == 'k' else limit):.1f} {unit}"
    return f"{count:,}"

"""Text that another peer wrote, made fit to be shown: the one function through which it comes in,
whatever it is written into afterwards.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

LETTERS_MAX = 200
_END = 56
"""Letters that are kept of the end of a long text, where its remedy stands."""


def shown(text: str) -> str:
    """The text on one line, at most `LETTERS_MAX` letters of it, with a dot for each letter that is
    none: it draws nothing on a terminal.
    """
    plain = (" " if letter.isspace() else letter for letter in text[: 4 * LETTERS_MAX])
    printable = "".join(letter if letter.isprintable() else "\N{MIDDLE DOT}" for letter in plain)
    return printable if len(printable) <= LETTERS_MAX else f"{printable[: LETTERS_MAX - _END - 2]}..{printable[-_END:]}"


RemoteText: TypeAlias = Annotated[str, shown]
"""A field of a message that is for people: what comes over the wire is made fit as it is read."""

"""What is said about a command line that cannot be: what was given, what is expected, and what was
perhaps meant.

Typer, click and pydantic each have words of their own for it, which differ between their releases;
a person hears ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

EXPECTED: Mapping[str, str] = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "finite_number": "a finite number",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
}
"""Kind of a pydantic error -> what the value must be."""
OWN_OPTION_LIKENESS = 0.85
"""As difflib counts it: `--organizer` is `--organiser`, but `--seed` is not `--feed`."""
EXTRA_INVITE = "; one invite is expected, so paste it once, and where it has blanks or line breaks in it, between quotes"


def complaint(error: Any) -> str:
    """What to say about an error of a command line, without a full stop."""
    if option := getattr(error, "option_name", ""):
        return _about_option(error, str(option))
    found = getattr(error.__cause__, "errors", None)
    if found is None or getattr(error, "param", None) is None:
        told = str(error.format_message()).rstrip(".")
        takes_invite = error.ctx is not None and any(each.name == "invite" for each in error.ctx.command.params)
        return told + EXTRA_INVITE * (takes_invite and told.startswith("Got unexpected extra argument"))
    first = found()[0]
    given, context = first.get("input"), first.get("ctx", {})
    rule = EXPECTED.get(str(first.get("type")), "")
    told = f"must be {rule.format(**context)}" if rule else str(first.get("msg")).removeprefix("Value error, ")
    told = told.replace(f"{given!r} is not one of", "must be one of")
    return f"{error.param.opts[0]} {given}: {told}".rstrip(".")


def _about_option(error: Any, option: str) -> str:
    """An option that a command has not, or has not been given whole: perhaps a key of the run
    config is meant, which `--set` changes.
    """
    from swarmfree.protocol.config import key_like  # noqa: PLC0415 - help is fast

    told = str(error.format_message()).rstrip(".")
    own = [name for each in error.ctx.command.params for name in each.opts] if error.ctx is not None else []
    if meant := difflib.get_close_matches(option, own, n=1, cutoff=OWN_OPTION_LIKENESS):
        return f"{error.message}; perhaps {meant[0]} is meant" if type(error).__name__ == "NoSuchOption" else told
    key = key_like(option.lstrip("-").replace("-", "_")) if type(error).__name__ == "NoSuchOption" else ""
    if not key or error.ctx is None:
        return told
    if any("--set" in each.opts for each in error.ctx.command.params):
        return f"{error.message}; {key} is a key of the run config: --set {key}=VALUE"
    return f"{error.message}; {key} is set by whoever makes the run: swarmfree bootstrap --set {key}=VALUE"

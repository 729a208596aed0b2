"""The datasets of a run that learns from several, as one value of the manifest: of each the hash,
its size and its weight, in the order of their hashes.

How many sequences an epoch has of each is said here; `policy.data_order` draws them, and
`storage.mixture` finds the datasets on a machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from swarmfree.protocol.errors import ConfigError

DATASETS_MAX = 48
"""As many as one value of a manifest has room for."""
DATASET_DIGITS = 32
"""128 bits of a dataset's hash; the corpus hash covers all of it."""
WEIGHT_MAX = 1e9
AS_LARGE = 0.0
"""The weight of all datasets where nobody has given one: each is drawn as often as it is large."""
_PART = re.compile(rf"([0-9a-f]{{{DATASET_DIGITS}}}):([0-9]{{1,15}}):([0-9.e+-]{{1,24}})")


@dataclass(frozen=True, slots=True)
class MixturePart:
    """One dataset of a mixture.

    Args:
        dataset: first 32 hex digits of its hash.
        train_tokens: in its training half, 1 or more.
        weight: how often it is drawn, beside the others'; above 0, at most 1e9, or of all datasets
            `AS_LARGE`.
    """

    dataset: str
    train_tokens: int
    weight: float


def mixture_text(parts: Sequence[MixturePart]) -> str:
    """The manifest's value; `mixture_parts` reads it back."""
    return ",".join(f"{part.dataset}:{part.train_tokens}:{part.weight!r}" for part in parts)


def mixture_parts(text: str) -> tuple[MixturePart, ...]:
    """The datasets that a manifest names; none where the run learns from one.

    Raises:
        ConfigError: it is no such value.
    """
    if not text:
        return ()
    found = [_PART.fullmatch(part) for part in text.split(",")]
    parts = [MixturePart(match[1], int(match[2]), _number(match[3])) for match in found if match is not None]
    names = [part.dataset for part in parts]
    is_whole = len(parts) == len(found) and 2 <= len(parts) <= DATASETS_MAX and names == sorted(set(names))
    is_weighted = any(part.weight for part in parts)
    is_sound = all(
        part.train_tokens > 0 and 0 <= part.weight <= WEIGHT_MAX and bool(part.weight) == is_weighted for part in parts
    )
    if not is_whole or not is_sound or mixture_text(parts) != text:
        raise ConfigError(
            f"data.mixture = {text!r:.60}: 2 to {DATASETS_MAX} datasets expected, HASH:TOKENS:WEIGHT each, in the order of their "
            "hashes, as `swarmfree bootstrap --data` fills them in"
        )
    return tuple(parts)


def sequence_count(tokens: int, tokens_per_row: int) -> int:
    """How many sequences a corpus gives: each has T inputs and T targets, so it is T + 1 long and
    shares one token with the one after.

    Args:
        tokens: size of the training text, tokens.
        tokens_per_row: T, 1 or more.
    """
    return max(0, (tokens - 1) // tokens_per_row)


def epoch_shares(counts: Sequence[int], weights: Sequence[float]) -> tuple[int, ...]:
    """How many sequences of each dataset an epoch of a mixture has.

    ``share_i = floor(w_i * min_j(n_j / w_j))``, n the counts, w the weights as they are written in
    decimals: 0.1 is a tenth. So each share is at most its dataset, and at least one is all of it.
    It is 0 where a weight is too small to draw a single one.

    Args:
        counts: sequences of each dataset; of none, nothing is drawn.
        weights: above 0.
    """
    if not all(counts):
        return (0,) * len(counts)
    exact = [Fraction(repr(weight)) for weight in weights]
    scale = min(count / weight for count, weight in zip(counts, exact, strict=True))
    return tuple(math.floor(weight * scale) for weight in exact)


def drawn_weights(parts: Sequence[MixturePart], counts: Sequence[int]) -> tuple[float, ...]:
    """The weights by which an epoch draws; those of datasets that are drawn as often as they are
    large are their numbers of sequences.
    """
    return tuple(part.weight or float(count) for part, count in zip(parts, counts, strict=True))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan

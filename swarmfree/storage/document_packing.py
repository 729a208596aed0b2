"""The order in which documents follow each other in a dataset, so that rows of a known length cut
few of them. No token is left out, and none is added.

Source: Ding et al., Fewer Truncations Improve Language Modeling (2024), best-fit packing. Differs:
nothing is padded, so where no document fits into what is left of a row, the longest one is cut.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence


def best_fit_order(lengths: Sequence[int], row_tokens: int, begun_tokens: int = 0) -> list[int]:
    """Order documents by best fit: into what is left of the present row goes the longest document
    that fits; of equal ones the first.

    Args:
        lengths: of the documents, tokens, each at least 1.
        row_tokens: tokens of a row.
        begun_tokens: that lie before the first document.

    Returns:
        Each index of `lengths` once.
    """
    # Of equal lengths the first index is the last of them
    waiting = sorted((length, -index) for index, length in enumerate(lengths))
    order: list[int] = []
    while waiting:
        room = row_tokens - begun_tokens % row_tokens
        fitting = bisect.bisect_left(waiting, (room + 1, -len(lengths)))
        length, index = waiting.pop(fitting - 1)  # -1 is the longest, where none fits
        order.append(-index)
        begun_tokens += length
    return order

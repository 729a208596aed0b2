"""Values as JSON has them: it knows no infinity and no NaN, and readers such as `JSON.parse` refuse
a file that has them.
"""

from __future__ import annotations

import math
from typing import Any


def finite(content: Any) -> Any:
    """The same content of dicts, lists and scalars, with None for every float that is infinite or
    no number.
    """
    match content:
        case float():
            return content if math.isfinite(content) else None
        case dict():
            return {key: finite(value) for key, value in content.items()}
        case list() | tuple():
            return [finite(value) for value in content]
        case _:
            return content

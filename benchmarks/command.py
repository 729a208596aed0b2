"""How a benchmark of a live swarm ends: figures as one JSON object on the last line, or one line
that says why there are none.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

from benchmarks.live import LiveFailed


def finish(name: str, work: Coroutine[Any, Any, Mapping[str, float]]) -> int:
    """Run it; the exit code is 0, 1 when the swarm failed, 130 or 143 after a signal.

    Args:
        name: of the benchmark.
        work: what it does; comes to its figures.
    """
    try:
        found = asyncio.run(work)
    except (LiveFailed, ExceptionGroup) as error:
        failed: Exception = error
        while isinstance(failed, ExceptionGroup):  # it failed beside something else
            failed = failed.exceptions[0]
        if not isinstance(failed, LiveFailed):
            raise
        print(f"{name}: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except asyncio.CancelledError:
        print(f"{name}: told to end", file=sys.stderr)
        return 143
    print(json.dumps(found), flush=True)
    return 0

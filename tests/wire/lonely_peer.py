"""A peer in a process of its own that never finishes a call: for tests that stop or kill it. Prints
its endpoint, then waits.

Arguments: the run, the member's name, the port (0 = given by the system).
"""

from __future__ import annotations

import asyncio
import sys

from wire_world import answer_to, network

from swarmfree.protocol.messages import Header, Hello, Request
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire.limits import WireLimits


async def _never(_header: Header, request: Request, _incoming: Incoming) -> Reply:
    """Answer Hello; everything else is work without end."""
    if isinstance(request, Hello):
        return Reply(answer_to(request))
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def main(run: str, name: str, port: int) -> None:
    """Serve until this process is ended, or its starter goes away."""
    async with network(name, run, port=port, limits=WireLimits(progress_s=0.05)) as here:
        here.serve(_never)
        sys.stdout.write(f"{here.here.addresses[0]}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))

"""A swarm of real processes that loses a whole stage and goes on: ``python
examples/lose_a_stage.py``.

Five peers train a small LLaMA on this machine; after the tenth iteration all replicas of stage 2
are killed, and a standby brings it back.
"""

import asyncio
import sys

from swarmfree import Swarm

RUN = ["run.iterations=20", "model.width=64", "model.mlp_width=128", "batch.microbatches=2"]


async def main(folder: str | None) -> None:
    """Train, kill, wait, and print what the loss cost."""
    async with Swarm("stdlib-small", peers=5, standbys=1, changes=RUN, folder=folder) as swarm:
        await swarm.wait(iteration=10)
        print("killed:", ", ".join(swarm.kill(stage=2)))
        await swarm.wait()
        report = swarm.report()
    print(report["outcome"])
    print("report in", swarm.folder)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))

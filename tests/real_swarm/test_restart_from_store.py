"""A real swarm that is killed whole, with all its peers' disks, goes on from a bucket."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.s3_endpoint import BUCKET, s3_endpoint
from tests.real_swarm.real_swarm import Processes, write_run
from tests.real_swarm.test_restart import MICROBATCHES, PEERS, REST_S, losses, start

pytestmark = pytest.mark.timeout(240)
EVERY = 5


async def test_a_swarm_that_loses_all_its_disks_goes_on_from_the_bucket(
    processes: Processes, fork_server: tuple[str, ...]
) -> None:
    """SIGKILL to every process, and each peer's folder is gone: new peers fetch what the old ones
    had copied, and go on with the same run to the same losses.
    """
    with s3_endpoint() as endpoint:
        environment = (f"{name}={value}" for name, value in endpoint.environment().items())
        processes.fork_server = (*processes.program[:2], *environment, *fork_server)
        # With more in flight gradients are added up as they come, and sums differ in last bits
        kept = f'snapshot_every = {EVERY}\nsnapshot_store = "s3://{BUCKET}/real"'
        recovery = f'mode = "checkfree"\n{kept}\n\n[ring]\ncredits = 1'
        one_each = "body = 2\nreplicas_max = 1"
        run = str(write_run(processes.folder, iterations=1000, stages=one_each, microbatches=MICROBATCHES, recovery=recovery))
        processes.rest_s = REST_S
        await start(processes, run, "")
        await processes.waiters.until(lambda: len(losses(processes, "")) > 2 * EVERY + 2, "it trains")
        for process in processes.living():
            process.kill()
        for child in list(processes._children):
            await child.wait()
        for name in PEERS:
            shutil.rmtree(processes.folder / "peers" / name)
        first = losses(processes, "")
        processes._starter = None  # what they were forked from is dead, too
        await start(processes, run, "-again")
        await processes.waiters.until(lambda: len(losses(processes, "-again")) > EVERY, "it trains again")
        second = losses(processes, "-again")
        fetched = [
            event["text"] for name in PEERS for event in processes.told(f"{name}-again", "Note") if "fetches" in event["text"]
        ]
        assert len(fetched) == len(PEERS), fetched
        begun = min(iteration for iteration in second if iteration >= EVERY)
        assert begun >= max(first) - 2 * EVERY - 1, "the newest set may have been under way"
        assert min(second) >= begun - 1, "not from nothing"
        again = {iteration: loss for iteration, loss in second.items() if iteration in first}
        assert again and again == {iteration: first[iteration] for iteration in again}
        for process in processes.living():
            process.kill()
        for child in list(processes._children):
            await child.wait()

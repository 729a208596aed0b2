"""One process of a side that is plain PyTorch: the whole model alone, or one rank of
torch.distributed.pipelining.

Started by `benchmarks.ring_sides`. Prints one `Mark` per iteration as a JSON line: the monotonic
clock, this process's processor seconds and, where it is known here, the loss. Both sides use the
layers of the swarm, torch's fused AdamW, and `clip_grad_norm_` or, over several ranks, the two
halves that it is made of. Allocator and garbage collector are set as a peer of the swarm sets its
own, unless they are to stay as they come.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the field's name
from torch import Tensor, nn

from benchmarks.ring_runs import Mark, machine_busy_seconds, open_job
from swarmfree.cli.process import keep_freed_memory, settle_garbage
from swarmfree.lab.parent_death import die_with_parent
from swarmfree.lab.reference_training import Alone, train_fused
from swarmfree.model.llama import Llama
from swarmfree.protocol.manifest import Manifest, OptimizerSection

STORE_FILE = "store"


class Slice(nn.Module):
    """One rank's share of the whole model: some blocks, the embedding on the first rank, norm and
    head on the last.

    Letters: ``B`` rows, ``T`` tokens per row, ``D`` width, ``V`` vocabulary.
    """

    def __init__(self, model: Llama, blocks: range, block_count: int) -> None:
        """Take `blocks` of all `block_count` out of `model`."""
        super().__init__()
        layers = model.model["layers"]
        assert isinstance(layers, nn.ModuleList), "blocks come in a list"
        self.embed_tokens = model.model["embed_tokens"] if blocks.start == 0 else None
        self.layers = nn.ModuleList(layers[block] for block in blocks)
        self.norm = model.model["norm"] if blocks.stop == block_count else None
        self.lm_head = model.lm_head if blocks.stop == block_count else None
        self.cos, self.sin = model.cos, model.sin

    def forward(self, x: Tensor) -> Tensor:
        """(B, T) tokens or (B, T, D) -> (B, T, D), or logits (B, T, V) on the last rank."""
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        for block in self.layers:
            x = block(x, self.cos, self.sin)
        if self.norm is not None and self.lm_head is not None:
            x = self.lm_head(self.norm(x))
        return x


class Pipeline:
    """One rank's training loop.

    Args:
        alone: holds the run's first weights and its data; its model is cut.
        rank: 0 for the first stage of the body.
    """

    def __init__(self, alone: Alone, rank: int) -> None:
        """Cut the model; the process group must be there."""
        manifest = alone.manifest
        self._alone, self._rank, self._world = alone, rank, manifest.stages.body
        self._tokens_per_iteration = manifest.tokens_per_iteration
        self._module = Slice(alone.model, manifest.blocks_of(rank + 1), manifest.model.blocks)
        self._parameters = list(self._module.parameters())
        self._section = manifest.optimizer
        self._optimizer = _fused(self._section, self._parameters)
        # Loads sympy and the compiler, two seconds, which only this side uses
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: PLC0415

        stage = PipelineStage(self._module, rank, self._world, torch.device("cpu"))
        count = manifest.batch.microbatches
        self._schedule = Schedule1F1B(stage, count, loss_fn=self._loss, scale_grads=False)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / self._tokens_per_iteration

    def train(self, iterations: int) -> Iterator[float]:
        """Yield each iteration's mean loss, NaN where it is not known on this rank."""
        count = self._alone.manifest.batch.microbatches
        for iteration in range(iterations):
            losses: list[Tensor] = []
            self._optimizer.zero_grad(set_to_none=True)
            tokens = torch.cat([self._alone.microbatch(iteration * count + m) for m in range(count)])
            if self._rank == 0:
                self._schedule.step(tokens[:, :-1])
            elif self._rank == self._world - 1:
                self._schedule.step(target=tokens[:, 1:], losses=losses)
            else:
                self._schedule.step()
            if self._section.clip != "none":
                self._clip()
            self._optimizer.step()
            yield sum(loss.item() for loss in losses) if losses else math.nan

    def _clip(self) -> None:
        """`clip_grad_norm_` over all ranks."""
        own = nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        squared = own.square()
        dist.all_reduce(squared)
        nn.utils.clip_grads_with_norm_(self._parameters, self._section.clip_norm, squared.sqrt())


def _fused(section: OptimizerSection, parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": section.weight_decay},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=section.rate,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        fused=True,
    )


def _pipeline(manifest: Manifest, alone: Alone, rank: int, store: Path) -> Iterator[float]:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=manifest.stages.body)
    try:
        yield from Pipeline(alone, rank).train(manifest.run.iterations)
    finally:
        dist.destroy_process_group()


def _tell(losses: Iterator[float]) -> None:
    for loss in losses:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        mark = Mark(time.monotonic(), usage.ru_utime + usage.ru_stime, machine_busy_seconds(), loss)
        print(json.dumps(dataclasses.asdict(mark)), flush=True)


def main() -> None:
    """Train the job in a folder, as one of its processes."""
    parser = argparse.ArgumentParser(description="One process of a side of benchmarks.ring; not to be started by hand.")
    parser.add_argument("job", type=Path, help="folder of the job")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--rank", type=int, default=-1, help="rank of the pipeline; -1 = the whole model alone")
    parser.add_argument("--store", type=Path, default=Path(STORE_FILE), help="file through which the ranks find each other")
    parser.add_argument("--whole", action="store_true", help="all rows of an iteration at once, not in microbatches")
    parser.add_argument("--as-it-comes", action="store_true", help="leave allocator and garbage collector alone")
    parser.add_argument("--die-with-parent", type=int, required=True, help="process whose end is also this one's")
    asked = parser.parse_args()
    die_with_parent(asked.die_with_parent)
    if not asked.as_it_comes:
        keep_freed_memory()
    manifest, tokens = open_job(asked.job, whole=asked.whole)
    alone = Alone(manifest, tokens, threads=asked.threads)
    if not asked.as_it_comes:
        settle_garbage()
    if asked.rank < 0:
        _tell(train_fused(alone, iterations=manifest.run.iterations))
    else:
        _tell(_pipeline(manifest, alone, asked.rank, asked.store.absolute()))
        # All is told. As the interpreter ends, threads of a group that was destroyed abort it at
        # times: "terminate called without an active exception".
        os._exit(0)


if __name__ == "__main__":
    main()

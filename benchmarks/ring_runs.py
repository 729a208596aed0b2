"""The runs that the ring benchmark measures: two models, one text, and what one measurement is.

A run is the swarm's own manifest, so that every side takes model, stages, batch, optimizer and data
order from the same place. Nothing is started here.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from swarmfree.policy.data_order import order_of
from swarmfree.protocol.config import load_run, to_toml
from swarmfree.protocol.manifest import (
    BatchSection,
    DataSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RingSection,
    RunSection,
    StagesSection,
)
from swarmfree.storage.corpus import prepare_corpus
from swarmfree.storage.tokens import CorpusTokens, tokens_of

TEXT_BYTES = 4 << 20
RUN_FILE, TEXT_FILE, CORPUS_FOLDER = "run.toml", "text.txt", "corpus"

BODY_STAGES = 4
_OPTIMIZER = OptimizerSection(rate=3e-4, warmup_iterations=0, weight_decay=0.1, clip="global", clip_norm=1.0)
_STAGES = StagesSection(body=BODY_STAGES, replicas_max=1)


def _run(name: str, model: ModelSection, batch: BatchSection) -> Manifest:
    """Evaluation is off: the one at the end comes after the measured iterations."""
    run = RunSection(name=name, seed=1, evaluate_every=0, evaluate_windows=1)
    return Manifest(
        run=run, model=model, stages=_STAGES, batch=batch, optimizer=_OPTIMIZER, ring=RingSection(credits=BODY_STAGES)
    )


RUNS: dict[str, Manifest] = {
    "compute_bound": _run(
        "compute-bound",
        ModelSection(width=512, blocks=8, heads=8, kv_heads=8, mlp_width=1376, tokens_per_row=256),
        BatchSection(rows=2, microbatches=8),
    ),
    "hop_bound": _run(
        "hop-bound",
        ModelSection(width=128, blocks=4, heads=4, kv_heads=4, mlp_width=448, tokens_per_row=128),
        BatchSection(rows=8, microbatches=8),
    ),
}
"""By name. About 25 and 1 million parameters: a quarter of a second and a fortieth of one core's
work per body stage and microbatch.
"""


def parameter_count(model: ModelSection) -> int:
    """All weights of a model, embedding and head included."""
    kv_width = model.width // model.heads * model.kv_heads
    block = 2 * model.width * (model.width + kv_width) + 3 * model.width * model.mlp_width + 2 * model.width
    return model.blocks * block + 2 * model.vocabulary * model.width + model.width


@dataclass(frozen=True, slots=True)
class Job:
    """One run to be done by every side alike.

    Args:
        manifest: of the run; its data section is still empty.
        folder: holds the run file and the text; sides work below it.
        warmup: iterations at the start that do not count, 1 or more.
        iterations: measured ones after them, 1 or more.
    """

    manifest: Manifest
    folder: Path
    warmup: int
    iterations: int

    @property
    def run_file(self) -> Path:
        """The run config."""
        return self.folder / RUN_FILE

    @property
    def text_file(self) -> Path:
        """What is learned from."""
        return self.folder / TEXT_FILE

    @property
    def tokens(self) -> int:
        """Predicted tokens of all measured iterations."""
        return self.iterations * self.manifest.tokens_per_iteration


def prepare_job(manifest: Manifest, folder: Path, warmup: int, iterations: int) -> Job:
    """Write run file and text into `folder`, which is made.

    The text is the beginning of the default corpus: small, so that no side spends its start with
    reading.
    """
    assert warmup >= 1, "the clock starts when an iteration ends"
    assert iterations >= 1, "something has to be measured"
    run = dataclasses.replace(manifest.run, iterations=warmup + iterations)
    job = Job(dataclasses.replace(manifest, run=run), folder, warmup, iterations)
    folder.mkdir(parents=True)
    job.run_file.write_text(to_toml(job.manifest))
    corpus = prepare_corpus("", folder / CORPUS_FOLDER, manifest.data.held_out_percent)
    with corpus.train_file.open("rb") as source:
        job.text_file.write_bytes(source.read(TEXT_BYTES))
    return job


def in_one_piece(batch: BatchSection) -> BatchSection:
    """The same rows as one microbatch."""
    return BatchSection(rows=batch.rows * batch.microbatches, microbatches=1)


def open_job(folder: Path, *, whole: bool = False) -> tuple[Manifest, CorpusTokens]:
    """The run and its tokens, in the process of a side that is not the swarm; `whole`: an
    iteration's rows are one microbatch.
    """
    manifest = load_run(folder / RUN_FILE).manifest
    if whole:
        manifest = dataclasses.replace(manifest, batch=in_one_piece(manifest.batch))
    percent = manifest.data.held_out_percent
    corpus = prepare_corpus(str(folder / TEXT_FILE), folder / CORPUS_FOLDER, percent)
    data = DataSection(corpus.name, percent, corpus.corpus_hash, corpus.train_tokens, corpus.held_out_tokens)
    manifest = dataclasses.replace(manifest, data=data)
    order = order_of(manifest.run.seed, corpus.parts, corpus.train_tokens, manifest.model.tokens_per_row)
    return manifest, tokens_of(corpus, manifest, order.sequence_of)


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of one iteration at one side.

    Args:
        time_s: when, by any clock that goes on steadily.
        cpu_s: processor seconds, user and system, that all processes of the side had used by then;
            NaN where nobody looked.
        busy_s: processor seconds of everything on this machine by then.
        loss: mean over the iteration, nats per token.
    """

    time_s: float
    cpu_s: float
    busy_s: float
    loss: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """One side in one round: what lies between the last warm-up iteration's end and the last
    iteration's end.

    Args:
        tokens: predicted tokens.
        seconds: wall time.
        cpu_s: processor time of all processes of the side.
        others_cpu_s: processor time of everything else on this machine meanwhile, what the
            hypervisor took included.
        losses: of all iterations, warm-up included, nats per token.
    """

    tokens: int
    seconds: float
    cpu_s: float
    others_cpu_s: float
    losses: tuple[float, ...]

    @staticmethod
    def of(job: Job, marks: Sequence[Mark]) -> Measurement:
        """From the marks of all iterations, warm-up included."""
        first, last = marks[job.warmup - 1], marks[-1]
        seconds, cpu_s = last.time_s - first.time_s, last.cpu_s - first.cpu_s
        others_cpu_s = max(0.0, last.busy_s - first.busy_s - cpu_s)
        return Measurement(job.tokens, seconds, cpu_s, others_cpu_s, tuple(mark.loss for mark in marks))

    @property
    def tokens_per_s(self) -> float:
        """Speed."""
        return self.tokens / self.seconds

    @property
    def cpu_s_per_token(self) -> float:
        """Cost."""
        return self.cpu_s / self.tokens

    @property
    def others_cores(self) -> float:
        """How many cores everything else kept busy."""
        return self.others_cpu_s / self.seconds

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs ran."""
        return self.others_cores > OTHERS_CORES_MAX


def machine_busy_seconds() -> float:
    """Processor seconds since the machine's start in which a core was not idle."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


PLAIN_ONE, PLAIN_TWO, SWARM, PIPELINING = "PyTorch, 1 thread", "PyTorch, 2 threads", "swarm", "pipelining 1F1B"
WHOLE = ", one piece"
"""How a plain process is called that takes all rows of an iteration at once, as nothing but a swarm
keeps it from; the others take the swarm's microbatches.
"""
PLAIN = (PLAIN_ONE, PLAIN_TWO, PLAIN_ONE + WHOLE, PLAIN_TWO + WHOLE)
AS_IT_COMES = ", as it comes"
"""How a side is called whose processes leave allocator and garbage collector as they find them; all
others set them as the swarm does.
"""
SIDES = (*PLAIN, SWARM, PIPELINING, *(side + AS_IT_COMES for side in (*PLAIN, PIPELINING)))

OTHERS_CORES_MAX = 0.1
"""A measurement beside which other programs kept more cores busy is disturbed."""

Rounds = Sequence[dict[str, Measurement]]
"""A measurement of every side, per round."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of the swarm over another side's, by two definitions; medians over all rounds, or
    over those in which neither side was disturbed, whichever make the swarm look worse.

    Args:
        as_it_comes: the other side is plain PyTorch as somebody finds it.
        equal: it has the swarm's settings of allocator and garbage collector.
        small_is_good: of the figure.
    """

    as_it_comes: float
    equal: float
    small_is_good: bool = False

    @property
    def least_kind(self) -> float:
        """The definition that makes the swarm look worse."""
        return (max if self.small_is_good else min)(self.as_it_comes, self.equal)


def ratios(rounds: Rounds) -> dict[str, Ratio]:
    """What is reported: the swarm's speed and cost over the others' of the same round; of the plain
    processes over the fastest and the cheapest one. So a round in which another program slowed the
    other side down makes no ratio better.
    """

    def over(others: Sequence[str], figure: str, *, small_is_good: bool) -> float:
        worst = max if small_is_good else min
        quiet = [r for r in rounds if not any(r[side].is_disturbed for side in (SWARM, *others))]
        medians = [
            statistics.median(worst(getattr(r[SWARM], figure) / getattr(r[other], figure) for other in others) for r in some)
            for some in (rounds, quiet)
            if some
        ]
        return round(float(worst(medians)), 4)

    def both(others: Sequence[str], figure: str, *, small_is_good: bool = False) -> Ratio:
        as_it_comes = over([other + AS_IT_COMES for other in others], figure, small_is_good=small_is_good)
        return Ratio(as_it_comes, over(others, figure, small_is_good=small_is_good), small_is_good)

    return {
        "over_single": both(PLAIN, "tokens_per_s"),
        "cpu_over_single": both(PLAIN, "cpu_s_per_token", small_is_good=True),
        "over_pipelining": both((PIPELINING,), "tokens_per_s"),
    }

"""A recovery method of one's own, beside the paper's: ``python examples/own_recovery.py
[ITERATIONS]``.

A small model is trained on one machine, stage by stage; stage 2 is lost a few times, and each
strategy brings it back in its own way, under the same trace. What is printed is the held-out loss
at the end, in bits per byte.
"""

import dataclasses
import math
import sys
import tempfile
from pathlib import Path

from swarmfree.lab.study.base_training import Training
from swarmfree.lab.study.recovery import run_of_study
from swarmfree.lab.study.trial import Trial, TrialRun
from swarmfree.policy.data_order import order_of
from swarmfree.storage.corpus import prepare_corpus
from swarmfree.storage.tokens import tokens_of


def calmer_neighbour(training: Training, stage: int) -> None:
    """Copy the neighbour whose gradient was smaller: it has less to learn."""
    before, after = stage - 1, stage + 1
    donor = before if training.norms[before] <= training.norms[after] else after
    training.model.merge(stage, donor, stage, (1.0, 0.0))


def main(iterations: int) -> None:
    """Play each strategy under one trace."""
    run = run_of_study(iterations)
    losses = tuple((iteration, 2) for iteration in range(iterations // 4, iterations, iterations // 4))
    with tempfile.TemporaryDirectory() as folder:
        corpus = prepare_corpus("", Path(folder), run.data.held_out_percent)
        manifest = dataclasses.replace(
            run,
            run=dataclasses.replace(run.run, evaluate_windows=4),
            model=dataclasses.replace(run.model, width=32, heads=2, kv_heads=2, mlp_width=64, tokens_per_row=32),
            data=dataclasses.replace(run.data, corpus_hash=corpus.corpus_hash),
        )
        order = order_of(manifest.run.seed, corpus.parts, corpus.train_tokens, manifest.model.tokens_per_row)
        tokens = tokens_of(corpus, manifest, order.sequence_of)
        for strategy, own in (("none", None), ("norm2", None), ("random", None), ("own", calmer_neighbour)):
            hit = () if strategy == "none" else losses
            trial = Trial(strategy, "example", manifest.run.seed, iterations, hit, is_from_scratch=True)
            played = TrialRun(trial, manifest, tokens, Path(), iterations, own=own).play(lambda _: None)
            nats = played["curve"][-1][1]
            print(f"{strategy:8} {nats / math.log(2):.6f} bits per byte, {len(played['recoveries'])} recoveries")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)

"""A process that plays trials of a recovery study: ``python -m swarmfree.lab.study.worker FOLDER
PARENT_PID``.

Workers of one study share its folder: each takes what nobody has taken, bases first. A result is
written whole or not at all, so a study that was ended goes on where it was. Progress goes to
stdout, a JSON line about once a second.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from swarmfree.lab.chaos.loss_judge import KeptTokens
from swarmfree.lab.parent_death import die_with_parent
from swarmfree.lab.report import write_whole
from swarmfree.lab.study.base_training import Training, base_path, train_base
from swarmfree.lab.study.trial import Trial, TrialRun
from swarmfree.policy.data_order import order_of
from swarmfree.protocol.config import manifest_from_bytes
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.ports import Tokens
from swarmfree.storage.corpus import Corpus, prepare_corpus
from swarmfree.storage.study_texts import texts_of
from swarmfree.storage.tokens import tokens_of

STUDY_FILE = "study.json"
TELL_S, WAIT_S = 1.0, 0.2


class TrialWorker:
    """One worker's view of the study's folder."""

    def __init__(self, folder: Path) -> None:
        """Read what is to be done."""
        self._folder = folder
        found = json.loads((folder / STUDY_FILE).read_text(encoding="utf-8"))
        self._manifest = manifest_from_bytes(found["manifest"].encode())
        self._data, self._every, self._base_iterations = found["data"], found["evaluate_every"], found["base_iterations"]
        self._trials = [Trial(**{**trial, "losses": tuple(map(tuple, trial["losses"]))}) for trial in found["trials"]]
        self._told_s = 0.0

    def run(self) -> None:
        """Everything that nobody else has taken."""
        wanted = dict.fromkeys((trial.base_seed, trial.swaps) for trial in self._trials)
        for seed, swaps in wanted:
            path = base_path(self._folder, seed, swaps=swaps)
            if not path.exists() and self._take(path.stem):
                manifest, tokens, _ = self._run_of(seed)
                say = self._say(path.stem, self._base_iterations)
                train_base(Training(manifest, tokens, swaps=swaps), path, self._base_iterations, self._every, say)
        for trial in self._trials:
            path = self._folder / "trials" / f"{trial.name}.json"
            if path.exists() or not self._take(trial.name):
                continue
            base = base_path(self._folder, trial.base_seed, swaps=trial.swaps)
            while not base.exists():
                time.sleep(WAIT_S)
            manifest, tokens, corpus = self._run_of(trial.base_seed)
            texts = self._texts(corpus, manifest) if trial.shows_texts else {}
            run = TrialRun(trial, manifest, tokens, base, self._every)
            write_whole(path, json.dumps(run.play(self._say(trial.name, trial.iterations), texts)).encode())

    def _take(self, name: str) -> bool:
        """Whether this worker is the first to want it."""
        try:
            os.close(os.open(self._folder / f"{name}.taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def _run_of(self, seed: int) -> tuple[Manifest, Tokens, Corpus]:
        manifest = dataclasses.replace(self._manifest, run=dataclasses.replace(self._manifest.run, seed=seed))
        corpus = prepare_corpus(self._data, self._folder / "corpus", manifest.data.held_out_percent)
        manifest = dataclasses.replace(manifest, data=dataclasses.replace(manifest.data, corpus_hash=corpus.corpus_hash))
        order = order_of(seed, corpus.parts, corpus.train_tokens, manifest.model.tokens_per_row)
        return manifest, KeptTokens(tokens_of(corpus, manifest, order.sequence_of)), corpus

    def _texts(self, corpus: Corpus, manifest: Manifest) -> dict[str, list[bytes]]:
        """What a trial's model is tried on at its end, text of Python among it."""
        other = prepare_corpus("", self._folder / "corpus", manifest.data.held_out_percent)
        return texts_of(corpus, other, manifest)

    def _say(self, name: str, count: int) -> Callable[[int], None]:
        def say(done: int) -> None:
            if time.monotonic() - self._told_s >= TELL_S or done == count:
                self._told_s = time.monotonic()
                sys.stdout.write(json.dumps({"name": name, "done": done, "of": count}) + "\n")
                sys.stdout.flush()

        return say


def main() -> None:
    """Play what is to be played."""
    die_with_parent(int(sys.argv[2]))
    try:
        TrialWorker(Path(sys.argv[1])).run()
    except (KeyboardInterrupt, BrokenPipeError):
        return


if __name__ == "__main__":
    main()

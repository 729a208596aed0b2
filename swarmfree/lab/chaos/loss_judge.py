"""Same as alone (I5) for a chaos run: the loss of each iteration beside that of one process which
trains the same model alone.

Two controls say how near is near: shuffled orders of summation, which cost rounding only, and a run
in which one microbatch of one iteration counts twice. After a rebuild from neighbours the curves
part for good reason, so what comes after the first one is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent
from swarmfree.lab.reference_training import Alone, Grouping, Twice, shuffled, train_canonically
from swarmfree.policy.data_order import order_of
from swarmfree.policy.schedule import clip_factors, step_scalars
from swarmfree.protocol.events import IterationCommitted, StageBuilt
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.ports import Tokens
from swarmfree.protocol.records import StepScalars
from swarmfree.storage.corpus import prepare_corpus
from swarmfree.storage.tokens import tokens_of

ITERATIONS_MAX = 300
ORDERS = 20
BOUND = 1e-5
CONTROL = Twice(iteration=5, offset=1)


@dataclass(frozen=True, slots=True)
class Gap:
    """The largest difference of two loss curves, in nats per token, and the iteration in which it
    is.
    """

    nats: float = 0.0
    iteration: int = 0


def gap_between(losses: Sequence[float], others: Sequence[float]) -> Gap:
    """Compare as far as both go; what is no number is infinitely far away."""
    found = [math.inf if math.isnan(a - b) else abs(a - b) for a, b in zip(losses, others, strict=False)]
    return Gap(max(found), found.index(max(found))) if found else Gap()


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far the swarm, the shuffled runs and the run with a mistake are from the process alone.

    Args:
        iterations: how many were compared.
        swarm: of the swarm.
        orders: the widest of `order_count` shuffled runs.
        control: of the run with one microbatch counted twice; its first difference can be no
            earlier than `CONTROL.iteration`.
    """

    iterations: int
    swarm: Gap
    order_count: int
    orders: Gap
    control: Gap

    def lines(self) -> list[str]:
        """Format the comparison as lines for the report."""
        return [
            f"same as alone: {self.iterations} losses differ by at most {self.swarm.nats:.1e} nats; {BOUND:.0e} allowed",
            f"  {self.order_count} runs alone, shuffled and summed in random groups: {self.orders.nats:.1e} at most",
            f"  a run alone with microbatch {CONTROL.offset} of iteration {CONTROL.iteration} counted twice: {self.control.nats:.1e}",
        ]

    def violations(self) -> list[str]:
        """I5 as one line, if it does not hold, or if the comparison could not have found that it
        does not.
        """
        if self.swarm.nats > BOUND:
            return [
                f"I5: the loss of iteration {self.swarm.iteration} is {self.swarm.nats:.1e} nats from that of one process alone"
            ]
        if self.iterations > CONTROL.iteration + 1 and self.control.nats <= BOUND:
            return [
                f"I5: a microbatch counted twice changes the losses by {self.control.nats:.1e} nats only: the comparison is blind"
            ]
        return []


class AloneJudge:
    """Implements `chaos.chaos.Judge`: keeps the losses; `compare` trains alone when the swarm is
    gone.
    """

    def __init__(self, manifest: Manifest, data: str) -> None:
        """Nothing heard; `data` is where the text lies, empty for Python's own."""
        self._manifest, self._data = manifest, data
        self._losses: dict[int, float] = {}
        self._rebuilt = ITERATIONS_MAX

    def hear(self, observed_event: ObservedEvent) -> None:
        """Hear one event."""
        if isinstance(observed_event, PeerEvent):
            match observed_event.event:
                case IterationCommitted(iteration=iteration, loss=loss) if iteration < ITERATIONS_MAX:
                    self._losses.setdefault(iteration, loss)
                case StageBuilt(iteration=iteration, action=action) if iteration and action != "Copy":
                    self._rebuilt = min(self._rebuilt, iteration)
                case _:
                    pass

    def violations(self) -> list[str]:
        """Nothing is known before the end."""
        return []

    def losses(self) -> list[float]:
        """Losses of the first iterations, as far as they can be compared."""
        found: list[float] = []
        while len(found) < self._rebuilt and len(found) in self._losses:
            found.append(self._losses[len(found)])
        return found

    def compare(self, folder: Path, say: Callable[[str], None], is_told_to_end: Callable[[], bool]) -> Comparison | None:
        """Train alone, once in order, once with a mistake, and `ORDERS` times shuffled.

        Args:
            folder: for the corpus.
            say: told what is being done.
            is_told_to_end: asked at every iteration.

        Returns:
            What came of it; None where nothing can be compared, or it was told to end.

        Raises:
            DataError: the corpus is gone.
        """
        losses = self.losses()
        if not losses:
            return None
        manifest, tokens = self._run(folder)

        def train(grouping: Grouping | None = None, twice: Twice | None = None) -> Iterator[float]:
            scalars = partial(scalars_of, manifest)
            for loss in train_canonically(
                Alone(manifest, tokens), scalars, iterations=len(losses), grouping=grouping, twice=twice
            ):
                if is_told_to_end():
                    return
                yield loss

        say(f"trains {len(losses)} iterations alone, and again {ORDERS + 1} times as controls")
        alone = list(train())
        control = gap_between(list(train(twice=CONTROL)), alone)
        orders: list[Gap] = []
        for number in range(ORDERS):
            orders.append(gap_between(list(train(shuffled(manifest, number))), alone))
            if number % 5 == 4 and not is_told_to_end():
                say(f"  {number + 1} of {ORDERS} shuffled runs")
        if is_told_to_end():
            return None
        return Comparison(len(losses), gap_between(losses, alone), ORDERS, max(orders, key=lambda gap: gap.nats), control)

    def _run(self, folder: Path) -> tuple[Manifest, Tokens]:
        manifest = self._manifest
        corpus = prepare_corpus(self._data, folder, manifest.data.held_out_percent)
        manifest = replace(manifest, data=replace(manifest.data, corpus_hash=corpus.corpus_hash))
        order = order_of(manifest.run.seed, corpus.parts, corpus.train_tokens, manifest.model.tokens_per_row)
        return manifest, KeptTokens(tokens_of(corpus, manifest, order.sequence_of))


class KeptTokens:
    """Implements `ports.Tokens` over another one: every microbatch is gathered once for all
    runs.
    """

    def __init__(self, tokens: Tokens) -> None:
        """Nothing kept yet."""
        self._tokens = tokens
        self._kept: dict[int, bytes] = {}

    def microbatch(self, number: int, place: int | None = None) -> bytes:
        """Return the tokens of this microbatch, always the same bytes."""
        where = number if place is None else place
        if where not in self._kept:
            self._kept[where] = self._tokens.microbatch(number, place)
        return self._kept[where]

    def window(self, number: int) -> bytes:
        """Return the tokens of this window, always the same bytes."""
        return self._tokens.window(number)


def scalars_of(manifest: Manifest, iteration: int, squared_norms: list[float]) -> list[StepScalars]:
    """Step scalars by the run's schedule and clipping; no stage was rebuilt, so each has done as
    many steps as there were iterations.
    """
    factors = clip_factors(manifest.optimizer, squared_norms)
    iterations = manifest.run.iterations
    return [step_scalars(manifest.optimizer, iterations, iteration, iteration + 1, 1.0, factor) for factor in factors]

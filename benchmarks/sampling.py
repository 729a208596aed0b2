"""How fast does a model write, with the cache of keys and values that `swarmfree sample` has, and
without one? Both in turns, in one process and one thread, as `sample` computes.

``python -m benchmarks.sampling`` draws the weights of three models and has each write greedily: the
model of `stdlib-small` and one of 6 million parameters a whole row from a prompt of four tokens,
one of 91 million parameters eight tokens in the middle of its row, behind a prompt of half of it. A
round is one text with and one without, whichever was second being first in the next; both must be
the same token for token, or it ends with a line. `--rounds` says how many (5), and
`--only` which model.

*..._cached* and *..._plain* are tokens/s, medians over the rounds; *..._cached_over_plain* is the
median of the rounds' ratios. What is counted begins behind the first token, which costs the whole
prompt on both sides; *..._first_s* is that.

Prints a table and, as the last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from swarmfree.lab.runs import run_file
from swarmfree.model.llama import Llama
from swarmfree.model.sampling import continue_text
from swarmfree.protocol.config import load_run
from swarmfree.protocol.manifest import ModelSection

ROUNDS = 5
Write = Callable[[Llama, Sequence[int], int], Iterator[int]]


@dataclass(frozen=True, slots=True)
class Case:
    """One text.

    Args:
        model: that writes it.
        prompt: tokens before it.
        count: tokens in it; one row holds both.
    """

    model: ModelSection
    prompt: int
    count: int


@dataclass(frozen=True, slots=True)
class Timed:
    """How one text came.

    Args:
        tokens: of it.
        first_s: until the first of them.
        rest_s: from that to the last.
    """

    tokens: tuple[int, ...]
    first_s: float
    rest_s: float

    @property
    def tokens_per_s(self) -> float:
        """Behind the first one."""
        return (len(self.tokens) - 1) / self.rest_s


def cases() -> dict[str, Case]:
    """Name -> what is written."""
    small = load_run(run_file(Path("stdlib-small"))).manifest.model
    middle = ModelSection(width=256, blocks=6, heads=8, kv_heads=4, mlp_width=704, tokens_per_row=256, vocabulary=4096)
    large = ModelSection(width=768, blocks=12, heads=12, kv_heads=12, mlp_width=2048, tokens_per_row=1024, vocabulary=4096)
    return {"small": Case(small, 4, 124), "middle": Case(middle, 4, 252), "large": Case(large, 512, 8)}


def cached(llama: Llama, prompt: Sequence[int], count: int) -> Iterator[int]:
    """As `swarmfree sample --temperature 0` writes."""
    return continue_text(llama, prompt, count=count, temperature=0.0, seed=0, symbols=llama.lm_head.out_features)


def plain(llama: Llama, prompt: Sequence[int], count: int) -> Iterator[int]:
    """Each token from all that stands before it."""
    text = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            text.append(int(llama(torch.tensor([text]))[0, -1].argmax()))
        yield text[-1]


def timed(write: Write, llama: Llama, prompt: Sequence[int], count: int) -> Timed:
    """One text, and how long it took."""
    began_s = time.perf_counter()
    following = write(llama, prompt, count)
    first = next(following)
    first_s = time.perf_counter()
    rest = tuple(following)
    return Timed((first, *rest), first_s - began_s, time.perf_counter() - first_s)


def compare(case: Case, rounds: int) -> dict[str, float]:
    """Figures of one case.

    Raises:
        AssertionError: the two texts differ.
    """
    torch.manual_seed(0)
    llama = Llama(case.model).eval()
    prompt = torch.randint(case.model.vocabulary, (case.prompt,)).tolist()
    found: dict[Write, list[Timed]] = {cached: [], plain: []}
    for turn in range(rounds):
        for write in (cached, plain) if turn % 2 else (plain, cached):
            found[write].append(timed(write, llama, prompt, case.count))
    texts = {each.tokens for side in found.values() for each in side}
    assert len(texts) == 1, f"{len(texts)} texts of one model; one expected"
    rates = {write: [each.tokens_per_s for each in side] for write, side in found.items()}
    return {
        "cached": statistics.median(rates[cached]),
        "plain": statistics.median(rates[plain]),
        "cached_over_plain": statistics.median(one / other for one, other in zip(rates[cached], rates[plain], strict=True)),
        "first_s": statistics.median(each.first_s for side in found.values() for each in side),
    }


def table_of(found: Mapping[str, Mapping[str, float]]) -> Table:
    """The figures for people."""
    table = Table("model", "with a cache, tokens/s", "without", "ratio", "first token, s")
    for name, figures in found.items():
        table.add_row(
            name,
            f"{figures['cached']:,.1f}",
            f"{figures['plain']:,.1f}",
            f"{figures['cached_over_plain']:.1f}",
            f"{figures['first_s']:.3f}",
        )
    return table


def main() -> int:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description="Tokens a second with a cache of keys and values, and without one.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="texts of each side (default %(default)s)")
    parser.add_argument("--only", choices=sorted(cases()), help="this model alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: compare(case, given.rounds) for name, case in cases().items() if given.only in {None, name}}
    Console().print(table_of(found))
    print(json.dumps({f"{name}_{figure}": value for name, figures in found.items() for figure, value in figures.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

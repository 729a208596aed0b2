"""How fast does a model write, with the cache of keys and values that `swarmfree sample` has, and
without one? Both in turns, in one process and one thread, as `sample` computes.

``python -m benchmarks.sampling`` draws the weights of three models and has each write greedily: the
model of `stdlib-small` and one of 6 million parameters a whole row from a prompt of four tokens,
one of 91 million parameters eight tokens in the middle of its row, behind a prompt of half of it. A
round is one text with and one without, whichever was second being first in the next; both must be
the same token for token, or it ends with a line. `--rounds` says how many (5), and
`--only` which model.

Without a cache each token is computed from all that stands before it, the head for the last
position alone. *..._cached* and *..._plain* are tokens/s, medians over the rounds, of the whole
text, its first token with it, which costs the whole prompt on both sides; *..._cached_over_plain*
is the median of the rounds' ratios. *..._behind_first* is that ratio without the first token, as it
was reported before, and *..._cached_first_s* and *..._plain_first_s* are the first tokens.

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
from torch import Tensor

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
        """Of all of it."""
        return len(self.tokens) / (self.first_s + self.rest_s)

    @property
    def rest_per_s(self) -> float:
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
            text.append(int(last_logits(llama, torch.tensor([text])).argmax()))
        yield text[-1]


def last_logits(llama: Llama, tokens: Tensor) -> Tensor:
    """What follows a row: (1, T) int64 -> logits (V,), without those of the positions before."""
    x = llama.model["embed_tokens"](tokens)
    cos, sin = llama.cos[: tokens.shape[1]], llama.sin[: tokens.shape[1]]
    for block in llama.model["layers"]:  # type: ignore[attr-defined]
        x = block(x, cos, sin)
    logits: Tensor = llama.lm_head(llama.model["norm"](x[0, -1]))
    return logits


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
    pairs = list(zip(found[cached], found[plain], strict=True))
    return {
        "cached": statistics.median(one.tokens_per_s for one, _ in pairs),
        "plain": statistics.median(other.tokens_per_s for _, other in pairs),
        "cached_first_s": statistics.median(one.first_s for one, _ in pairs),
        "plain_first_s": statistics.median(other.first_s for _, other in pairs),
        "behind_first": statistics.median(one.rest_per_s / other.rest_per_s for one, other in pairs),
        "cached_over_plain": statistics.median(one.tokens_per_s / other.tokens_per_s for one, other in pairs),
    }


def table_of(found: Mapping[str, Mapping[str, float]]) -> Table:
    """The figures for people."""
    table = Table("model", "with a cache, tokens/s", "without", "ratio", "behind the first", "first token, s", "without")
    for name, figures in found.items():
        table.add_row(
            name,
            f"{figures['cached']:,.1f}",
            f"{figures['plain']:,.1f}",
            f"{figures['cached_over_plain']:.1f}",
            f"{figures['behind_first']:.1f}",
            f"{figures['cached_first_s']:.3f}",
            f"{figures['plain_first_s']:.3f}",
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

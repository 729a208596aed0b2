"""The benchmark of sampling, with a model that is too small to say anything."""

from __future__ import annotations

import pytest
import torch
from rich.console import Console

from benchmarks.sampling import Case, Timed, cases, compare, last_logits, table_of
from swarmfree.model.llama import Llama
from swarmfree.protocol.manifest import ModelSection


def test_both_sides_write_the_same_and_every_figure_is_there() -> None:
    """Each side is timed; the texts of all cases fit into one row of their models."""
    tiny = ModelSection(width=16, blocks=2, heads=2, kv_heads=1, mlp_width=24, tokens_per_row=12, vocabulary=40)
    found = compare(Case(tiny, 3, 9), 2)
    names = {"cached", "plain", "cached_over_plain", "behind_first", "cached_first_s", "plain_first_s"}
    assert found.keys() == names and all(value > 0 for value in found.values())
    console = Console(width=120, record=True, quiet=True)
    console.print(table_of({"tiny": found}))
    assert all(case.prompt + case.count <= case.model.tokens_per_row for case in cases().values())


def test_the_first_token_is_part_of_a_text() -> None:
    """What the prompt costs is in the rate that is reported, and stands beside the one without."""
    text = Timed((1, 2, 3, 4), first_s=2.0, rest_s=1.0)
    assert text.tokens_per_s == pytest.approx(4 / 3)
    assert text.rest_per_s == pytest.approx(3.0)


def test_who_has_no_cache_computes_no_more_than_it_needs() -> None:
    """The logits of the last position are those of the whole row's, and the head sees that one
    alone.
    """
    llama = Llama(ModelSection(width=16, blocks=2, heads=2, kv_heads=1, mlp_width=24, tokens_per_row=12, vocabulary=40)).eval()
    row, seen = torch.tensor([[3, 1, 4, 1, 5]]), list[int]()
    llama.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numel() // 16))
    with torch.inference_mode():
        assert torch.allclose(last_logits(llama, row), llama(row)[0, -1], atol=1e-5)
    assert seen == [1, 5]

"""The benchmark of sampling, with a model that is too small to say anything."""

from __future__ import annotations

from rich.console import Console

from benchmarks.sampling import Case, cases, compare, table_of
from swarmfree.protocol.manifest import ModelSection


def test_both_sides_write_the_same_and_every_figure_is_there() -> None:
    """Each side is timed; the texts of all cases fit into one row of their models."""
    tiny = ModelSection(width=16, blocks=2, heads=2, kv_heads=1, mlp_width=24, tokens_per_row=12, vocabulary=40)
    found = compare(Case(tiny, 3, 9), 2)
    assert found.keys() == {"cached", "plain", "cached_over_plain", "first_s"} and all(value > 0 for value in found.values())
    console = Console(width=120, record=True, quiet=True)
    console.print(table_of({"tiny": found}))
    assert all(case.prompt + case.count <= case.model.tokens_per_row for case in cases().values())

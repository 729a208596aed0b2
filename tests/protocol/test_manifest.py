"""The manifest: its relations, its cut into stages and its fingerprint."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.manifest import SECTIONS, Manifest, ModelSection, StagesSection


@given(blocks=st.integers(1, 200), data=st.data())
def test_every_block_is_in_exactly_one_stage(blocks: int, data: st.DataObject) -> None:
    """Stages 1..L take the blocks in order, none is empty, and no stage has two more than
    another.
    """
    body = data.draw(st.integers(1, blocks))
    manifest = Manifest(model=ModelSection(blocks=blocks), stages=StagesSection(body=body))
    cut = [list(manifest.blocks_of(stage)) for stage in range(1, manifest.stage_count)]
    assert [block for stage in cut for block in stage] == list(range(blocks))
    assert {len(stage) for stage in cut} <= {blocks // body, blocks // body + 1}
    assert list(manifest.blocks_of(0)) == []


HELD_BY_A_RULE = {
    ("batch", "microbatches_max"),
    ("model", "heads"),
    ("model", "kv_heads"),
    ("optimizer", "beta1"),
    ("optimizer", "beta2"),
    ("stages", "replicas_min"),
}
NUMBERS = [
    (name, field.name)
    for name, kind in SECTIONS.items()
    for field in dataclasses.fields(kind)
    if isinstance(field.default, int | float) and (name, field.name) not in HELD_BY_A_RULE
]


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_fingerprint_is_of_every_value(name: str, key: str) -> None:
    """A run in which one number differs is another run."""
    section = getattr(Manifest(), name)
    changed = dataclasses.replace(section, **{key: getattr(section, key) * 2 or 1})
    assert dataclasses.replace(Manifest(), **{name: changed}).fingerprint() != Manifest().fingerprint()


def test_canonical_bytes_are_sorted_json() -> None:
    """Two programs that agree on the values agree on the bytes."""
    content = Manifest().canonical()
    assert content == json.dumps(json.loads(content), sort_keys=True, separators=(",", ":")).encode()
    assert len(Manifest().fingerprint()) == 64


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("run", {"iterations": 0}, r"run\.iterations = 0: must be above 0"),
        ("run", {"evaluate_every": -1}, r"run\.evaluate_every = -1: must be 0"),
        ("model", {"heads": 5}, r"model\.heads = 5: must divide model\.width = 128"),
        ("model", {"kv_heads": 3}, r"model\.kv_heads = 3: must divide model\.heads = 4"),
        ("model", {"width": 12}, r"model\.heads = 4: head width 3 must be even"),
        ("stages", {"replicas_min": 3}, r"stages\.replicas_max = 2: must be at least stages\.replicas_min = 3"),
        ("stages", {"replicas_max": 9}, r"at most 8 replicas"),
        ("optimizer", {"beta1": 1.0}, r"optimizer\.beta1 = 1\.0: must be at least 0 and below 1"),
        ("optimizer", {"weight_decay": -0.1}, r"must be 0 or more"),
        ("optimizer", {"final_fraction": 1.1}, r"must lie between 0 and 1"),
        ("data", {"held_out_percent": 0}, r"data\.held_out_percent = 0: must lie between 1 and 50"),
        ("ring", {"part_bytes": 5000}, r"ring\.part_bytes = 5000: must be a multiple of 4096"),
        ("recovery", {"weight_ratio_max": 0.5}, r"must be at least 1"),
        ("recovery", {"snapshot_store": "bucket/prefix"}, r"recovery\.snapshot_store = 'bucket/prefix': must be s3://BUCKET or"),
        ("recovery", {"snapshot_store": "s3://key:secret@bucket"}, r"must be s3://BUCKET or .* without endpoint or credentials"),
        ("recovery", {"snapshot_store": "s3://bucket/a//b"}, r"must be s3://BUCKET or"),
        ("recovery", {"snapshot_store": "s3://bucket/.."}, r"must be s3://BUCKET or"),
        (
            "recovery",
            {"snapshot_store": "s3://bucket", "snapshot_every": 0},
            r"nothing is copied there with .*snapshot_every = 0",
        ),
        ("recovery", {"ends_copies": -1}, r"recovery\.ends_copies = -1: must lie between 0 \(none\) and 8"),
        ("timing", {"silence_s": 0.0}, r"timing\.silence_s = 0\.0: must be above 0"),
    ],
)
def test_broken_relations_are_told_with_key_and_value(section: str, values: dict[str, Any], message: str) -> None:
    """Each section refuses what cannot be, by the name of the key."""
    with pytest.raises(ConfigError, match=message):
        SECTIONS[section](**values)


def test_more_stages_than_blocks_is_refused() -> None:
    """Each body stage needs a block."""
    with pytest.raises(ConfigError, match=r"more stages than model\.blocks = 2"):
        Manifest(model=ModelSection(blocks=2), stages=StagesSection(body=3))


def test_sizes_of_an_iteration() -> None:
    """Tokens of an iteration are microbatches times rows times tokens per row."""
    assert Manifest().tokens_per_iteration == 8 * 8 * 128

"""Text from a finished model: the same bytes as Hugging Face's, and the same for the same seed."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from model_world import MODELS, EngineRing, RandomTokens, manifest_of, scalars_of

from swarmfree.model.sampling import continue_text, llama_of
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.storage.weights import FolderWeights, read_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a model after one step."""
    place = tmp_path_factory.mktemp("weights")
    manifest = manifest_of(next(iter(MODELS.values())))
    ring = EngineRing(manifest)
    ring.train(0, RandomTokens(manifest).microbatch(0))
    ring.step(scalars_of())
    for stage, engine in enumerate(ring.engines):
        FolderWeights(place, manifest).write(stage, engine.export())
    return place


def test_the_likeliest_bytes_are_those_of_transformers(folder: Path) -> None:
    """With temperature 0 our own model writes what `AutoModelForCausalLM` generates greedily from
    the same folder.
    """
    transformers = pytest.importorskip("transformers")
    import torch

    model, weights = read_weights(folder)
    count = model.tokens_per_row - 4
    ours = list(continue_text(llama_of(model, weights), b"\x01\x02\x03", count=count, temperature=0, seed=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
        asked = torch.tensor([[1, 2, 3]])
        found = theirs.generate(
            asked, attention_mask=torch.ones_like(asked), do_sample=False, max_new_tokens=count, use_cache=False
        )
    assert ours == found[0, 3:].tolist()


def test_a_seed_decides_what_is_drawn(folder: Path) -> None:
    """The same seed writes the same bytes, another one others, also beyond the length of a row."""
    model, weights = read_weights(folder)
    llama = llama_of(model, weights)
    count = model.tokens_per_row + 9
    first, again, other = (list(continue_text(llama, b"\n", count=count, temperature=1.0, seed=seed)) for seed in (3, 3, 4))
    assert len(first) == count
    assert first == again != other
    assert all(0 <= byte < 256 for byte in first)


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    """A weight that is missing, or has another shape, is one line."""
    model, weights = read_weights(folder)
    name = next(iter(weights))
    with pytest.raises(SwarmfreeError, match="not those of the model"):
        llama_of(model, {key: array for key, array in weights.items() if key != name})
    with pytest.raises(SwarmfreeError, match="not those of the model"):
        llama_of(model, {**weights, name: np.zeros((1, 1), np.float32)})

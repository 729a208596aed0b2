"""Text from a finished model: the same bytes as Hugging Face's, and the same for the same seed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from model_world import MODELS, ODD, EngineRing, RandomTokens, manifest_of, scalars_of

from swarmfree.model.key_value_cache import KeyValueCache
from swarmfree.model.llama import Llama
from swarmfree.model.sampling import arrays_of, continue_text, llama_of
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.manifest import ModelSection
from swarmfree.storage.weights import FolderWeights, read_weights


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As `sample` computes: two threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def stepped(model: ModelSection) -> Llama:
    """A model after one step."""
    manifest = manifest_of(model)
    ring = EngineRing(manifest)
    ring.train(0, RandomTokens(manifest).microbatch(0))
    ring.step(scalars_of())
    return llama_of(model, arrays_of(engine.export() for engine in ring.engines))


def greedy_without_cache(llama: Llama, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens, each found in a pass over its whole context: a row from the text's
    beginning, and the newer half of it where one more token does not fit.
    """
    row, context, text = len(llama.cos), prompt[-len(llama.cos) :], list[int]()
    for _ in range(count):
        if len(context) > row:
            context = context[-((row + 1) // 2) :]
        with torch.inference_mode():
            text.append(int(llama(torch.tensor([context]))[0, -1].argmax()))
        context.append(text[-1])
    return text


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_changes_no_token(name: str) -> None:
    """Greedy text over several rows is that of whole passes, from prompts of one token, of a row,
    and longer.
    """
    model = MODELS[name]
    llama, row = stepped(model), model.tokens_per_row
    draw = np.random.default_rng(5)
    for length in (1, row, row + 1, 2 * row + 3):
        prompt = draw.integers(0, model.vocabulary, length).tolist()
        cached = list(continue_text(llama, prompt, count=3 * row, temperature=0, seed=0, symbols=model.vocabulary))
        assert cached == greedy_without_cache(llama, prompt, 3 * row)


@pytest.mark.parametrize("name", MODELS)
def test_cached_logits_are_those_of_a_whole_pass(name: str) -> None:
    """To rounding, at each position, after beginnings of any length."""
    model = MODELS[name]
    llama, row = stepped(model), model.tokens_per_row
    tokens = torch.from_numpy(np.random.default_rng(6).integers(0, model.vocabulary, (1, row)))
    with torch.inference_mode():
        whole = llama(tokens)[0]
        for first in (1, row // 2, row):
            caches, end = llama.empty_caches(), first
            found = [llama.next_logits(tokens[:, :first], caches)]
            while end < row:
                found.append(llama.next_logits(tokens[:, end : end + 1], caches))
                end += 1
            torch.testing.assert_close(torch.stack(found), whole[first - 1 :], rtol=0, atol=3e-6)


def test_a_token_costs_one_position() -> None:
    """The prompt is computed once, then one position for each token; behind a full row half a row
    more for each half row.
    """
    llama, row, seen = stepped(ODD), ODD.tokens_per_row, list[int]()
    llama.model["embed_tokens"].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))  # type: ignore[operator]
    list(continue_text(llama, [1, 2, 3], count=row + 8, temperature=0, seed=0, symbols=37))
    half = (row + 1) // 2
    assert seen == [3, *[1] * (row - 3), half, *[1] * (row - half), half, 1, 1, 1, 1][: row + 8]


def test_a_cache_is_one_row_long() -> None:
    """Beyond it nothing fits, and several positions come only at the beginning."""
    keys = torch.zeros(1, ODD.kv_heads, 1, ODD.width // ODD.heads)
    cache = KeyValueCache(ODD)
    for length in range(1, ODD.tokens_per_row + 1):
        assert [each.shape[2] for each in cache.extend(keys, keys)] == [length, length]
    with pytest.raises(AssertionError, match="12 positions in a row of 11"):
        cache.extend(keys, keys)
    two = keys.expand(-1, -1, 2, -1)
    begun = KeyValueCache(ODD)
    begun.extend(two, two)
    with pytest.raises(AssertionError, match="2 positions behind 2; one at a time expected"):
        begun.extend(two, two)


def test_the_likeliest_bytes_are_those_of_transformers(folder: Path) -> None:
    """With temperature 0 our own model writes what `AutoModelForCausalLM` generates greedily from
    the same folder, with a cache of its own and without one.
    """
    transformers = pytest.importorskip("transformers")
    model, weights = read_weights(folder)
    count = model.tokens_per_row - 4
    ours = list(continue_text(llama_of(model, weights), b"\x01\x02\x03", count=count, temperature=0, seed=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
        asked = torch.tensor([[1, 2, 3]])
        given = {"attention_mask": torch.ones_like(asked), "do_sample": False, "max_new_tokens": count}
        found = [theirs.generate(asked, **given, use_cache=use_cache)[0, 3:].tolist() for use_cache in (True, False)]
    assert found == [ours, ours]


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

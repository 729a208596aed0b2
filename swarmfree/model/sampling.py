"""Tokens from a finished model: one after the other, each drawn from what the model says of it.

Plain PyTorch over `model.llama`, with a cache of keys and values: a token costs one position. The
context is a row, as many tokens as training had, from the text's beginning; once a row is full, its
newer half begins the next one, which is computed once. Dropping the oldest token alone would leave
nothing to keep: each position would move, and deeper layers still know what was dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from swarmfree.model.llama import Llama
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.manifest import ModelSection


def arrays_of(stages: Iterable[Mapping[str, tuple[tuple[int, ...], bytes]]]) -> dict[str, NDArray[np.float32]]:
    """Hugging Face name -> float32 array, of stages as `Engine.export` gives them."""
    tensors = (tensor for stage in stages for tensor in stage.items())
    return {name: np.frombuffer(data, "<f4").reshape(shape).copy() for name, (shape, data) in tensors}


def llama_of(model: ModelSection, weights: Mapping[str, NDArray[np.float32]]) -> Llama:
    """The model with these weights.

    Args:
        model: its shapes.
        weights: Hugging Face name -> float32 array.

    Raises:
        SwarmfreeError: a weight is missing, or has another shape.
    """
    llama = Llama(model)
    try:
        llama.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()}, strict=True)
    except RuntimeError as error:
        raise SwarmfreeError(
            f"the weights are not those of the model that its config describes: {str(error).splitlines()[-1].strip()}"
        ) from error
    return llama.eval()


def continue_text(
    llama: Llama, prompt: Sequence[int], *, count: int, temperature: float, seed: int, symbols: int = 256
) -> Iterator[int]:
    """What the model writes after a prompt, token by token.

    Args:
        llama: the model.
        prompt: tokens that stand before, one at least.
        count: tokens to write.
        temperature: 0 takes the likeliest token each time; 1 draws as the model says; between them
            the likelier ones are preferred.
        seed: of the draws.
        symbols: how many the tokenizer has; the model may have rows beyond them, which are never
            drawn.

    Yields:
        Tokens.
    """
    draw = torch.Generator().manual_seed(seed)
    rows = len(llama.cos)
    text, begin = list(prompt), max(0, len(prompt) - rows)
    caches, seen = llama.empty_caches(), begin
    for _ in range(count):
        if len(text) - begin > rows:
            begin = seen = len(text) - (rows + 1) // 2
            caches = llama.empty_caches()
        with torch.inference_mode():
            logits = llama.next_logits(torch.tensor([text[seen:]]), caches)[:symbols]
            if temperature > 0:
                shares = torch.softmax(logits.double() / temperature, dim=0)
                found = int(torch.multinomial(shares, 1, generator=draw))
            else:
                found = int(logits.argmax())
        seen = len(text)
        text.append(found)
        yield found

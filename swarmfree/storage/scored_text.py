"""Text on which a model is scored: a file or folder, what a run holds out of it, or the held-out
half of a dataset.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swarmfree.protocol.errors import ConfigError, DataError
from swarmfree.storage.corpus import prepare_corpus
from swarmfree.storage.dataset import Dataset, TokenSplit, checked
from swarmfree.storage.dataset_tokenizer import TextTokenizer
from swarmfree.storage.tokens import half_of


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text that a model is to predict.

    Args:
        tokens: all of it, behind whatever stands before its first token.
        predicted_bytes: of the text that all but the first token stand for.
        name: of what it is part of.
        data_hash: of that.
        part: which part, for people; empty = all.
    """

    tokens: NDArray[np.integer]
    predicted_bytes: int
    name: str
    data_hash: str
    part: str = ""


def held_out_of(dataset: Dataset, tokenizer: TextTokenizer) -> ScoredText:
    """The held-out half of a dataset, its hashes checked.

    Raises:
        ConfigError: it was made with another tokenizer than the model reads.
        DataError: a shard is damaged.
    """
    if not dataset.is_indexed:
        raise ConfigError(f"--data {dataset.place}: shards without an index do not say what text they stand for; name that")
    own = "" if tokenizer.is_bytes else hashlib.sha256(tokenizer.content).hexdigest()
    if own != dataset.tokenizer_hash:
        raise ConfigError(
            f"--data {dataset.place}: made with the tokenizer {dataset.tokenizer_hash[:12] or 'bytes'}, and the model reads that of "
            f"{own[:12] or 'bytes'}; name the text that the dataset was made of"
        )
    half = checked(replace(dataset, train=TokenSplit(()))).held_out
    tokens = half_of(dataset, half).read(0, half.tokens)
    first_bytes = 1 if tokenizer.is_bytes else len(tokenizer.decode([int(token) for token in tokens[:1]]).encode())
    return ScoredText(tokens, half.text_bytes - first_bytes, dataset.name, dataset.dataset_hash, "the held-out half of ")


def text_of(data: str, held_out_percent: int, tokenizer: TextTokenizer) -> ScoredText:
    """A text, or what a run holds out of it: behind the end of a text, where the tokenizer has a
    token for that, so that all of it is predicted; else its first byte is not.

    Raises:
        DataError: it is no text, and the tokenizer reads nothing else.
    """
    with tempfile.TemporaryDirectory(prefix="swarmfree-eval-") as cache:
        corpus = prepare_corpus(data, Path(cache), held_out_percent)
        text = (corpus.held_out_file if held_out_percent else corpus.train_file).read_bytes()
    if held_out_percent and not tokenizer.is_bytes:
        text = text[next((at for at in range(min(3, len(text))) if text[at] & 0xC0 != 0x80), 3) :]  # the cut may split a letter
    try:
        tokens = tokenizer.encode([text])[0]
    except UnicodeDecodeError as error:
        raise DataError(f"{data}: no text in UTF-8 (byte {error.start:,}), which this model's tokenizer needs") from error
    part = f"the held-out {held_out_percent} % of " if held_out_percent else ""
    if tokenizer.is_bytes:
        return ScoredText(tokens, len(text) - 1, corpus.name, corpus.corpus_hash, part)
    begun = np.concatenate((np.array([tokenizer.end_token], tokens.dtype), tokens))
    return ScoredText(begun, len(text), corpus.name, corpus.corpus_hash, part)

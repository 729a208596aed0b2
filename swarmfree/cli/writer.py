"""A model that writes: its weights, and the tokenizer of what it learned from."""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarmfree.model.llama import Llama
    from swarmfree.storage.dataset_tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Writer:
    """A model that writes.

    Args:
        llama: the model.
        tokenizer: of its tokens.
        end: the token that ends a text; None where there is none.
    """

    llama: Llama
    tokenizer: TextTokenizer
    end: int | None

    def write(self, prompt: str, *, tokens: int, temperature: float, seed: int) -> Iterator[str]:
        """What the model writes after a prompt, piece by piece; bytes that are no text are shown as
        U+FFFD.
        """
        import torch  # noqa: PLC0415 - it takes seconds to load

        from swarmfree.model.sampling import continue_text  # noqa: PLC0415 - as torch

        # For one token at a time; two threads that wait for each other on a busy machine took 66 s
        # instead of 2
        torch.set_num_threads(1)
        tokenizer = self.tokenizer
        symbols = min(tokenizer.vocabulary, self.llama.lm_head.out_features)
        content = prompt.encode("utf-8", "surrogateescape" if tokenizer.is_bytes else "replace") or b"\n"
        begun = [int(token) for token in tokenizer.encode([content])[0]]
        following = continue_text(self.llama, begun, count=tokens, temperature=temperature, seed=seed, symbols=symbols)
        if tokenizer.is_bytes:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            for byte in following:
                yield decoder.decode(bytes([byte]))
            yield decoder.decode(b"", final=True)
            return
        yield from tokenizer.pieces(begun, itertools.takewhile(lambda token: token != self.end, following))


def written(folder: Path, prompt: str, *, tokens: int, temperature: float, seed: int) -> Iterator[str]:
    """What the model in a folder writes after a prompt, as `Writer.write`."""
    return writer_in(folder).write(prompt, tokens=tokens, temperature=temperature, seed=seed)


def writer_in(folder: Path) -> Writer:
    """The model in a folder.

    Raises:
        SwarmfreeError: there is no whole model.
    """
    from swarmfree.storage.weights import read_weights  # noqa: PLC0415 - help is fast

    model, weights = read_weights(folder)
    tokenizer = tokenizer_in(folder)
    from swarmfree.model.sampling import llama_of  # noqa: PLC0415 - torch takes seconds to load

    return Writer(llama_of(model, weights), tokenizer, _end_token(folder))


def tokenizer_in(folder: Path) -> TextTokenizer:
    """The tokenizer beside a model's weights.

    Raises:
        ConfigError: there is none, it is no tokenizer, or not the model's.
    """
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast
    from swarmfree.storage.atomic_files import told_in_one_line  # noqa: PLC0415 - help is fast
    from swarmfree.storage.dataset import TOKENIZER_FILE  # noqa: PLC0415 - help is fast
    from swarmfree.storage.dataset_tokenizer import TextTokenizer  # noqa: PLC0415 - help is fast

    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise ConfigError(f"{folder}: no {TOKENIZER_FILE}; copy that of the dataset that the run learned from here")
    with told_in_one_line(path, "reading"):
        config = _json_in(folder / "tokenizer_config.json")
        tokenizer = TextTokenizer(path.read_bytes(), str(path), end := str(config.get("eos_token") or ""))
    if end and tokenizer.is_bytes:
        raise ConfigError(
            f"{path}: a tokenizer of bytes, but the model ends texts with {end}; copy that of the dataset that the run learned from here"
        )
    return tokenizer


def _end_token(folder: Path) -> int | None:
    """The token that ends a text; None where there is none."""
    found = _json_in(folder / "generation_config.json").get("eos_token_id")
    return found if isinstance(found, int) else None


def _json_in(path: Path) -> dict[str, Any]:
    """What a file of ours says; nothing where it is missing."""
    from swarmfree.storage.regular_files import read_regular  # noqa: PLC0415 - help is fast

    try:
        content = json.loads(read_regular(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

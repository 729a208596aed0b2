"""Tokenizers that a dataset is made with: bytes, a tokenizer.json of Hugging Face's, or a
byte-level BPE that is trained on the text itself.

A byte has no special tokens; the byte 0, which no text has, stands behind each document. All others
have a token of their own for that.

Source: Radford et al., Language Models are Unsupervised Multitask Learners (2019), byte-level BPE.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.protocol.manifest import BYTES
from swarmfree.storage.text_sources import missing_extra
from swarmfree.storage.token_shards import SYMBOLS_MAX
from swarmfree.storage.tokenizer import tokenizer_files

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES_NAME, TRAIN_PREFIX = "bytes", "train:"
END_OF_TEXT = "<|endoftext|>"
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "<|eot|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
"""What tokenizers call the end of a document, the most usual first."""
VOCABULARY_MIN = BYTES + 1


class TextTokenizer:
    """Text to tokens below 65,536, and back."""

    def __init__(self, content: bytes, where: str, end_of_text: str = "") -> None:
        """Read a tokenizer.json.

        Args:
            content: of the file.
            where: its place, for errors.
            end_of_text: the token behind each document, empty = the one that is usual.

        Raises:
            ConfigError: it is none, it has too many symbols, or no such token.
            SwarmfreeError: the library is not installed.
        """
        self.content = content
        fields = _fields(content, where)
        self.is_bytes = fields == tokenizer_files(1)["tokenizer.json"]
        self._tokenizer = None if self.is_bytes else _load(content, where)
        if self._tokenizer is None:
            self.vocabulary, self.end_of_text, self.end_token = BYTES, "", 0
            return
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = max(vocabulary.values(), default=-1) + 1
        if self.vocabulary > SYMBOLS_MAX:
            raise ConfigError(
                f"{where}: a tokenizer with {self.vocabulary:,} symbols; token shards have 16 bits a token and hold {SYMBOLS_MAX:,} at most"
            )
        found = [token for token in ((end_of_text,) if end_of_text else _ENDS) if token in vocabulary]
        if not found:
            raise ConfigError(
                f"{where}: no token {end_of_text or ', '.join(_ENDS)} to end a document with; name one of its tokens with --end-of-text"
            )
        self.end_of_text, self.end_token = found[0], vocabulary[found[0]]

    def encode(self, contents: Sequence[bytes]) -> list[NDArray[np.uint16]]:
        """Tokens of each text, of UTF-8 bytes: uint16; on all cores that the library takes."""
        if self._tokenizer is None:
            return [np.frombuffer(content, np.uint8).astype(np.uint16) for content in contents]
        texts = [content.decode() for content in contents]
        return [np.array(each.ids, np.uint16) for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones shown; bytes that are no text are U+FFFD."""
        if self._tokenizer is None:
            return bytes(map(int, tokens)).decode("utf-8", "replace")
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def pieces(self, before: Sequence[int], following: Iterator[int]) -> Iterator[str]:
        """The text that each token adds to those `before` it; letters of several tokens come when
        they are whole. Together it is the text that all tokens decode to.

        Each piece is what a window of the last two pieces' tokens decodes to, less what it was
        before, for some tokenizers leave out the space before the first word.
        """
        tokens = list(before)
        begin, end = 0, len(tokens)
        for token in following:
            tokens.append(token)
            known, text = self.decode(tokens[begin:end]), self.decode(tokens[begin:])
            if text.endswith("\N{REPLACEMENT CHARACTER}"):
                continue
            yield text[len(known) :]
            begin, end = end, len(tokens)
        yield self.decode(tokens[begin:])[len(self.decode(tokens[begin:end])) :]


def byte_tokenizer() -> bytes:
    """The tokenizer.json of bytes."""
    return (json.dumps(tokenizer_files(1)["tokenizer.json"], indent=2) + "\n").encode()


def vocabulary_of(name: str) -> int | None:
    """N of ``train:N``; None where it is another name.

    Raises:
        ConfigError: N is no number, or not within 257 to 65,536.
    """
    if not name.startswith(TRAIN_PREFIX):
        return None
    text = name.removeprefix(TRAIN_PREFIX).replace("_", "")
    if not text.isdecimal() or not VOCABULARY_MIN <= int(text) <= SYMBOLS_MAX:
        raise ConfigError(
            f"--tokenizer {name}: {VOCABULARY_MIN} to {SYMBOLS_MAX:,} symbols expected, as in train:4096 (256 bytes, the end of text, and merges)"
        )
    return int(text)


def train_tokenizer(texts: Iterator[str], vocabulary: int) -> bytes:
    """The tokenizer.json of a byte-level BPE with so many symbols, learned from texts; the same
    texts give the same bytes.

    Raises:
        SwarmfreeError: the library is not installed.
    """
    library = require_tokenizers()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return (str(tokenizer.to_str(pretty=True)) + "\n").encode()


def require_tokenizers() -> Any:
    """The library `tokenizers`.

    Raises:
        SwarmfreeError: it is not installed.
    """
    try:
        import tokenizers  # noqa: PLC0415 - of the extra `data`
    except ImportError as error:
        raise SwarmfreeError(missing_extra("a tokenizer other than bytes needs the library tokenizers")) from error
    return tokenizers


def _fields(content: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error}); a tokenizer.json of Hugging Face's expected") from error
    if not isinstance(fields, dict) or "model" not in fields:
        raise ConfigError(f"{where}: no tokenizer.json of Hugging Face's: it has no model")
    return fields


def _load(content: bytes, where: str) -> Tokenizer:
    library = require_tokenizers()
    try:
        tokenizer: Tokenizer = library.Tokenizer.from_buffer(content)
    except ValueError as error:
        raise ConfigError(f"{where}: no tokenizer that the library tokenizers can read: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer

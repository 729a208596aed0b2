"""The tokenizer of a model of bytes, as files that Hugging Face's `AutoTokenizer` reads: 256
symbols, no merges, no special tokens.

A byte-level BPE without merges is what says "a token is a byte" in that format: its pre-tokenizer
writes each byte as one printable letter (GPT-2's alphabet), its vocabulary gives that letter the
byte's value, its decoder turns letters into bytes again.

Source: Radford et al., Language Models are Unsupervised Multitask Learners (2019): the alphabet.
"""

from __future__ import annotations

from typing import Any

from swarmfree.protocol.manifest import BYTES


def byte_letters() -> list[str]:
    """The letter that stands for each byte: itself where it is printable and no space, else the
    next code point from 256 on.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = iter(range(BYTES, 2 * BYTES))
    return [chr(byte if byte in printable else next(others)) for byte in range(BYTES)]


def tokenizer_files(tokens_per_row: int) -> dict[str, dict[str, Any]]:
    """File name -> content of the tokenizer and of how text is generated.

    Args:
        tokens_per_row: how long a row the model was trained on.
    """
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {letter: byte for byte, letter in enumerate(byte_letters())},
        "merges": [],
    }
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": model,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": tokens_per_row,
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
        },
        "generation_config.json": {"do_sample": True, "temperature": 0.7, "max_new_tokens": tokens_per_row // 2 or 1},
    }

"""The tokenizer beside the weights: a token is a byte, in Hugging Face's words."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from swarmfree.storage.tokenizer import byte_letters, tokenizer_files


def test_every_byte_has_a_letter_of_its_own() -> None:
    """256 letters, all different, none of them white space or a control character; ASCII stands for
    itself.
    """
    letters = byte_letters()
    assert len(set(letters)) == 256
    assert all(letter.isprintable() and not letter.isspace() for letter in letters)
    assert [letters[byte] for byte in b"main(~"] == list("main(~")
    assert (letters[ord(" ")], letters[ord("\n")]) == ("\u0120", "\u010a"), "as in GPT-2"


def test_transformers_reads_bytes_as_tokens(tmp_path: Path) -> None:
    """`AutoTokenizer` turns any text into its UTF-8 bytes, adds nothing, and gives the same text
    back.
    """
    transformers = pytest.importorskip("transformers")
    for name, content in tokenizer_files(4096).items():
        (tmp_path / name).write_text(json.dumps(content))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 256
    draw = random.Random(0)
    drawn = ["".join(chr(draw.randrange(1, 0xD7FF)) for _ in range(60)) for _ in range(20)]
    for text in ["def main(", "Grüße, 你 🎉\n\t \x00\x7f", "  a  b ", "don't  stop\n\n", *drawn]:
        assert tokenizer(text)["input_ids"] == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text
    assert transformers.GenerationConfig.from_pretrained(tmp_path).do_sample

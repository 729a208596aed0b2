"""Base58 as Bitcoin and libp2p write it: bytes to a text without look-alike letters. It knows
nothing of what the bytes mean.
"""

from __future__ import annotations

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS = {letter: digit for digit, letter in enumerate(ALPHABET)}


def base58_encode(data: bytes) -> str:
    """The text of `data`; each leading zero byte becomes a leading "1"."""
    number = int.from_bytes(data, "big")
    letters: list[str] = []
    while number:
        number, digit = divmod(number, 58)
        letters.append(ALPHABET[digit])
    zeros = len(data) - len(data.lstrip(b"\0"))
    return ALPHABET[0] * zeros + "".join(reversed(letters))


def base58_decode(text: str) -> bytes:
    """The bytes that `text` stands for.

    Raises:
        ValueError: a letter that base58 does not have.
    """
    number = 0
    for letter in text:
        digit = _DIGITS.get(letter)
        if digit is None:
            raise ValueError(f"{letter!r} is no letter of base58")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip(ALPHABET[0]))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")

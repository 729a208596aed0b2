"""RSA keys of the tests' peers, each drawn once and used by one test after the other: one of 2,048
bits takes 0.05 to 0.14 s of a processor, in each of some five hundred new folders.

No real swarm and no module of tests is given the same key twice, so peers differ as they would.
The product does the rest itself: it finds no file, asks for a key, writes and reads it. Tests of
identities, and processes that are not forked from the nursery, draw real ones.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

Draw = Callable[[int, int], rsa.RSAPrivateKey]
"""(public exponent, size in bits) -> a key."""
OUR_KIND = (65537, 2048)
draw_real: Draw = rsa.generate_private_key


class KeysInMemory:
    """Keys for the modules of tests in this process."""

    def __init__(self) -> None:
        self._drawn: list[rsa.RSAPrivateKey] = []
        self._lock = threading.Lock()

    def for_a_module(self) -> Draw:
        """How its tests draw keys: the first one, then the second, and so on."""
        numbers = itertools.count()

        def draw(public_exponent: int, key_size: int) -> rsa.RSAPrivateKey:
            if (public_exponent, key_size) != OUR_KIND:
                return draw_real(public_exponent, key_size)
            with self._lock:
                number = next(numbers)
                if number == len(self._drawn):
                    self._drawn.append(draw_real(public_exponent, key_size))
                return self._drawn[number]

        return draw


KEYS = KeysInMemory()


def drawing_from(folder: Path, test: str) -> Draw:
    """How processes of this test draw keys, of which each is kept in `folder` for the tests to
    come.
    """
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256(test.encode()).hexdigest()

    def draw(public_exponent: int, key_size: int) -> rsa.RSAPrivateKey:
        if (public_exponent, key_size) != OUR_KIND:
            return draw_real(public_exponent, key_size)
        number = next(number for number in itertools.count() if _is_ours(folder / f"{name}-{number}"))
        return _kept(folder / f"{number}.der")

    return draw


def _is_ours(mark: Path) -> bool:
    """Whether no other process of the test has taken this number before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _kept(path: Path) -> rsa.RSAPrivateKey:
    """The key in this file, or a new one, which is kept there."""
    try:
        key = serialization.load_der_private_key(path.read_bytes(), None, unsafe_skip_rsa_key_validation=True)
    except FileNotFoundError:
        key = draw_real(*OUR_KIND)
        content = key.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        whole = path.with_suffix(f".{os.getpid()}")
        whole.write_bytes(content)
        whole.replace(path)
    assert isinstance(key, rsa.RSAPrivateKey), "nothing else is kept here"
    return key

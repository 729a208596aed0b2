"""Keys that were drawn before: no two of one test or module are the same, and the next one has the
same again.
"""

from __future__ import annotations

from pathlib import Path

from tests.lab.drawn_keys import OUR_KIND, KeysInMemory, drawing_from


def test_no_two_processes_of_a_test_have_the_same_key(tmp_path: Path) -> None:
    """Each process draws by itself, and knows of the others by the folder alone."""
    keys = [drawing_from(tmp_path / "keys", "a test")(*OUR_KIND).private_numbers() for _ in range(2)]
    again = [drawing_from(tmp_path / "keys", "another")(*OUR_KIND).private_numbers() for _ in range(2)]
    assert keys[0] != keys[1]
    assert keys == again
    assert drawing_from(tmp_path / "keys", "another")(65537, 1024).key_size == 1024, "of another kind: drawn for it"


def test_no_two_of_a_module_are_the_same() -> None:
    """The next module begins with the first one."""
    pool = KeysInMemory()
    one, other = pool.for_a_module(), pool.for_a_module()
    keys = [one(*OUR_KIND), one(*OUR_KIND)]
    assert keys[0] is not keys[1]
    assert [other(*OUR_KIND), other(*OUR_KIND)] == keys

"""What is written to the log takes a line each."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from types import FunctionType

import pytest

from swarmfree.cli.log_lines import OneLine
from swarmfree.protocol.records import bits_float64


def _logged(work: Callable[[str], object], *args: object) -> list[str]:
    """Lines of an exception that a library's logger tells of."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(OneLine())
    record = logging.makeLogRecord({"name": "grpc._cython.cygrpc", "msg": "raised\nin %s", "args": args})
    try:
        work(f"Failed\nexecute_batch {500 * 'x'}")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    handler.handle(record)
    return stream.getvalue().splitlines()


def test_an_exception_that_comes_from_libraries_takes_one_line() -> None:
    """With its kind and what it says, not all of it."""
    (line,) = _logged(int, "Heartbeat")
    assert line.startswith("raised in Heartbeat: ValueError: invalid literal")
    assert len(line) <= 300


def test_an_exception_that_went_through_our_code_keeps_where_it_comes_from() -> None:
    """That may be a fault of ours, whoever logs it."""
    assert any("Traceback" in line for line in _logged(bits_float64, "Heartbeat"))


def _wrapped(text: str) -> None:
    try:
        bits_float64(text)
    except ValueError as error:
        cause = error
    raise ValueError(text) from cause


def _in_place_of(text: str) -> None:
    try:
        bits_float64(text)
    except ValueError:
        int(text)


def _grouped(text: str) -> None:
    try:
        bits_float64(text)
    except ValueError as error:
        group = ExceptionGroup(text, [error])
    raise ValueError(text) from group


@pytest.mark.parametrize("work", [_wrapped, _in_place_of, _grouped])
def test_an_exception_that_a_library_makes_of_ours_keeps_where_it_comes_from(work: Callable[[str], object]) -> None:
    """However it is wrapped."""
    assert any("Traceback" in line for line in _logged(work))


def test_code_of_a_module_without_a_name_is_no_trouble() -> None:
    """Its exception takes a line as well."""

    def work(text: str) -> None:
        raise ValueError(text)

    assert len(_logged(FunctionType(work.__code__, {"__name__": None}))) == 1


def test_a_record_that_cannot_be_put_so_is_left_as_it_is() -> None:
    """Its handler says what is wrong with it, and nobody who logs is stopped by that."""
    record = logging.makeLogRecord({"name": "grpc", "msg": "raised in %s", "args": ("a", "b")})
    try:
        int("x")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    assert OneLine().filter(record)
    assert record.exc_info is not None

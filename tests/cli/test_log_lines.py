"""What is written to the log takes a line each."""

from __future__ import annotations

import io
import logging

from swarmfree.cli.log_lines import OneLine


def _logged(name: str) -> list[str]:
    """Lines of an exception that a logger of this name tells of."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(OneLine())
    record = logging.makeLogRecord({"name": name, "msg": "raised in %s", "args": ("Heartbeat",)})
    try:
        int(f"Failed\nexecute_batch {500 * 'x'}")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    handler.handle(record)
    return stream.getvalue().splitlines()


def test_an_exception_that_a_library_logs_takes_one_line() -> None:
    """With its kind and what it says, not all of it."""
    (line,) = _logged("grpc._cython.cygrpc")
    assert line.startswith("raised in Heartbeat: ValueError: invalid literal")
    assert len(line) < 300


def test_an_exception_of_our_own_keeps_where_it_comes_from() -> None:
    """That is a fault of ours."""
    assert any("Traceback" in line for line in _logged("swarmfree.wire.server"))

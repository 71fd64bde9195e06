"""A log that nobody takes must not hold up what it tells of."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass

import pytest

from milepost.server.telemetry.log_output import StandardError

PIPE_BYTES = 65536
LINES = 3000


@dataclass
class Pipe:
    """Standard error, and whoever reads it."""

    reader: int
    stderr: io.TextIOWrapper
    handler: StandardError

    def log(self, message: str) -> None:
        with redirect_stderr(self.stderr):
            self.handler.handle(logging.LogRecord("test", logging.INFO, __file__, 1, message, (), None))

    def take(self) -> list[str]:
        """What is there now."""
        data = b""
        while True:
            try:
                data += os.read(self.reader, PIPE_BYTES)
            except BlockingIOError:
                return data.decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(reader, False)
    handler = StandardError()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    with os.fdopen(reader, "rb"), os.fdopen(writer, "w", encoding="utf-8") as stderr:
        yield Pipe(reader, stderr, handler)


def test_lines_that_nobody_takes_are_lost_and_counted(pipe: Pipe) -> None:
    began = time.monotonic()
    for number in range(LINES):
        pipe.log(f"line {number:04} {'x' * 90}")
    assert time.monotonic() - began < 2
    written = pipe.take()
    assert [int(line.split()[2]) for line in written] == [*range(len(written))]
    assert 0.8 * PIPE_BYTES < sum(map(len, written)) <= PIPE_BYTES
    pipe.log("again")
    lost = LINES - len(written)
    assert pipe.take() == [
        f"WARNING {lost} lines of the log were lost or cut off: nobody took them",
        "INFO again",
    ]
    pipe.log("and again")
    assert pipe.take() == ["INFO and again"]


def test_a_line_that_is_larger_than_the_pipe_is_cut_off(pipe: Pipe) -> None:
    began = time.monotonic()
    pipe.log("y" * (3 * PIPE_BYTES))
    assert time.monotonic() - began < 2
    assert sum(map(len, pipe.take())) == PIPE_BYTES
    pipe.log("é" * 20_000)
    assert pipe.take() == [
        "WARNING 1 lines of the log were lost or cut off: nobody took them",
        "INFO " + "é" * 20_000,
    ]

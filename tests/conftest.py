"""Settings of every test process: one thread, so that runs side by side don't fight for cores."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest

# Before torch is imported by any test; not by importing it, which takes seconds. The compiled kernels start
# with one thread; tests of several ask for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# A shell that starts a command in the background lets it ignore Ctrl-C, and what it starts too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """`milepost serve` sets the logging of its process, which here is every test's."""
    names = (None, "milepost", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger, logger.level, [*logger.handlers], logger.propagate) for logger in loggers]
    yield
    logging.captureWarnings(False)
    for logger, level, handlers, propagates in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagates

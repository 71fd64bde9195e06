"""Fixtures of the server's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.server.scripted_server import ServedEngine, serving


@pytest.fixture(autouse=True)
def logging_is_put_back() -> Iterator[None]:
    """`serve`, run in this process, sends all logs where it will; later tests read them."""
    loggers = [
        logging.getLogger(name) for name in (None, "milepost", "uvicorn", "uvicorn.error", "uvicorn.access")
    ]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate
    logging.captureWarnings(capture=False)


@pytest.fixture
def served() -> Iterator[ServedEngine]:
    """A server of one's own."""
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def shared() -> Iterator[ServedEngine]:
    """One server for all the tests that leave nothing behind."""
    with serving() as served:
        yield served


@pytest.fixture
def client(served: ServedEngine) -> Iterator[OpenAI]:
    """OpenAI's own client, pointed at the server."""
    with served.client() as client:
        yield client


@pytest.fixture
def kept_logging() -> Iterator[None]:
    """For tests that set up the logs of the whole process, as the command does."""
    loggers = [
        logging.getLogger(name) for name in (None, "milepost", "uvicorn", "uvicorn.error", "uvicorn.access")
    ]
    kept = [(each, each.level, each.handlers[:], each.propagate) for each in loggers]
    yield
    logging.captureWarnings(False)
    for each, level, handlers, propagate in kept:
        each.setLevel(level)
        each.handlers[:] = handlers
        each.propagate = propagate

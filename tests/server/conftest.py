"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from openai import OpenAI

from tests.server.scripted_server import ServedEngine, serving


@pytest.fixture(scope="session")
def close_later() -> Iterator[Callable[[ServedEngine], None]]:
    """Shuts servers down in the background: uvicorn takes a fifth of a second, whatever there is to do."""
    with ThreadPoolExecutor(4) as threads:
        closing: list[Future[None]] = []
        yield lambda served: closing.append(threads.submit(served.close))
        for closed in closing:
            closed.result()


@pytest.fixture
def served(close_later: Callable[[ServedEngine], None]) -> Iterator[ServedEngine]:
    """A server of one's own."""
    served = ServedEngine()
    yield served
    if served.front_is_idle():
        close_later(served)
    else:  # what it logs of the requests that it aborts is not the next test's
        served.close()


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

"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.server.scripted_server import ServedEngine, serving


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

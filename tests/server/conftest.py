"""Fixtures of the server's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.server.scripted_server import ServedEngine


def serving() -> Iterator[ServedEngine]:
    served = ServedEngine()
    try:
        yield served
    finally:
        served.stop()
        asyncio.run(served.engine.stop())


@pytest.fixture
def served() -> Iterator[ServedEngine]:
    """A server of one's own."""
    yield from serving()


@pytest.fixture(scope="session")
def shared() -> Iterator[ServedEngine]:
    """One server for all the tests that leave nothing behind."""
    yield from serving()


@pytest.fixture
def client(served: ServedEngine) -> Iterator[OpenAI]:
    """OpenAI's own client, pointed at the server."""
    with served.client() as client:
        yield client

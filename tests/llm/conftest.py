"""One small checkpoint of each kind for a whole test run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.llm import LLM
from tests.llm.checkpoints import ENGINE, copied, no_thinking, small_k3


@pytest.fixture(scope="session")
def k3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Kimi K3 that thinks by default."""
    return small_k3(tmp_path_factory.mktemp("k3") / "toy")


@pytest.fixture(scope="session")
def quiet_k3(k3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without thinking, as the shipped model."""
    return copied(k3, tmp_path_factory.mktemp("quiet") / "toy", no_thinking)


@pytest.fixture(scope="session")
def llm(quiet_k3: Path) -> Iterator[LLM]:
    """A loaded small model."""
    with LLM(quiet_k3, **ENGINE) as loaded:
        yield loaded

"""A small real model for the scenes that need numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.llm import LLM
from tests.llm.checkpoints import ENGINE, small_k3


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Kimi K3."""
    return small_k3(tmp_path_factory.mktemp("field-reports") / "toy")


@pytest.fixture(scope="session")
def cold(small_model: Path) -> Iterator[LLM]:
    """It without a prefix cache."""
    with LLM(small_model, prefix_cache=False, **ENGINE) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def loaded(small_model: Path) -> Iterator[LLM]:
    """It with one; `warm` empties it for each test."""
    with LLM(small_model, **ENGINE) as llm:
        yield llm


@pytest.fixture
def warm(loaded: LLM) -> LLM:
    """It with an empty cache."""
    loaded.reset_cache()
    return loaded

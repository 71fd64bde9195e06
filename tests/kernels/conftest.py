"""Kernel tests run on one thread: they check values, and the machine has other work."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def any_seed() -> None:
    """Other numbers in every run; a failing test shows which."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"torch.manual_seed({seed})")  # noqa: T201 - pytest shows it with a failure
    torch.manual_seed(seed)

"""One thread for tiny tensors: on a busy machine, waiting for a second one costs up to 100 times the work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["single_thread"]


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Let torch use one thread inside the block or the decorated function, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

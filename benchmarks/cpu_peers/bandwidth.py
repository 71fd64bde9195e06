"""What the machine's memory gives to threads that only read: the roof over a decode step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import torch

__all__ = ["read_bandwidth"]

BYTES_PER_THREAD = 256 << 20
"""Far more than any cache holds."""


def read_bandwidth(threads: int, *, repeats: int = 5) -> float:
    """Bytes per second of a streaming read, the best of several runs of two different loops.

    Each thread reads memory of its own. Two loops because which one a processor runs at memory speed
    differs: numpy's minimum of integers, and torch's sum of floats.

    Args:
        threads: that read at the same time.
        repeats: runs of each loop.
    """
    arrays = [np.ones(BYTES_PER_THREAD // 4, np.float32) for _ in range(threads)]
    loops: tuple[Callable[[np.ndarray], object], ...] = (
        lambda array: np.min(array.view(np.int32)),
        lambda array: torch.sum(torch.from_numpy(array)),
    )
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the threads are ours
    try:
        best = min(_seconds(loop, arrays) for loop in loops for _ in range(repeats))
    finally:
        torch.set_num_threads(torch_threads)
    return sum(array.nbytes for array in arrays) / best


def _seconds(loop: Callable[[np.ndarray], object], arrays: list[np.ndarray]) -> float:
    others = [threading.Thread(target=loop, args=(array,)) for array in arrays[1:]]
    start = time.perf_counter()
    for thread in others:
        thread.start()
    loop(arrays[0])
    for thread in others:
        thread.join()
    return time.perf_counter() - start

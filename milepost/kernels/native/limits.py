"""What this machine can do at most, measured: the rates that kernels are held against."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from milepost.kernels.native import native

__all__ = ["MachineLimits", "measure_limits"]

_READ_BYTES = 128 << 20  # far more than a processor's caches hold
_REPEATS = 25
_ROUNDS = 20_000


@dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """Rates of the kernels' threads together.

    Attributes:
        read_bytes_per_second: reading memory that no cache holds, from front to back.
        flops_per_second: float32 multiply-adds in registers, two operations each.
        threads: that did it.
    """

    read_bytes_per_second: float
    flops_per_second: float
    threads: int


def measure_limits(repeats: int = _REPEATS) -> MachineLimits:
    """Measure for about a second, with the kernels' present threads; the best of several tries counts.

    Other work on the machine can only slow a try down, so the best of many short ones is nearest to what the
    machine can do.

    Args:
        repeats: tries of each rate.
    """
    memory = torch.ones(_READ_BYTES // 4)
    flops = torch.zeros(1, dtype=torch.int64)
    reading = min(_read_once(memory) for _ in range(repeats))
    adding = min(_add_once(flops) for _ in range(repeats))
    return MachineLimits(
        read_bytes_per_second=memory.nbytes / reading,
        flops_per_second=int(flops) / adding,
        threads=native.num_threads(),
    )


def _read_once(memory: torch.Tensor) -> float:
    began = time.perf_counter()
    native.read_all(memory.data_ptr(), memory.numel())
    return time.perf_counter() - began


def _add_once(flops: torch.Tensor) -> float:
    began = time.perf_counter()
    native.multiply_registers(_ROUNDS, flops.data_ptr())
    return time.perf_counter() - began

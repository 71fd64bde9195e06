"""Numbers of a step in memory that stays where it is from step to step."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = ["IntBuffer"]

_FIRST_CAPACITY = 16


class IntBuffer:
    """A list of int64 that is written anew for each step, at one address while its capacity lasts.

    Attributes:
        generation: how often the address has changed.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._values: NDArray[np.int64] = np.empty(_FIRST_CAPACITY, np.int64)
        self._tensor = torch.from_numpy(self._values)
        self._view = self._tensor[:0]

    def write(self, values: ArrayLike, count: int) -> NDArray[np.int64]:
        """Hold these `count` values and no others; returns them as they lie here."""
        if count > len(self._values):
            self._grow(count)
        held = self._values[:count]
        held[...] = values
        return held

    def tensor(self, count: int) -> Tensor:
        """The first `count` values, [count] int64: the same memory, whatever is written later."""
        if self._view.shape[0] != count:
            self._view = self._tensor[:count]
        return self._view

    def _grow(self, count: int) -> None:
        self._values = np.empty(1 << (count - 1).bit_length(), np.int64)
        self._tensor = torch.from_numpy(self._values)
        self._view = self._tensor[:0]
        self.generation += 1

"""Numbers of a step in memory that stays where it is from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack_into

import numpy as np
import torch
from numpy.typing import NDArray
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

    def write(self, values: Sequence[int]) -> None:
        """Hold these values and no others."""
        count = len(values)
        if count > len(self._values):
            self._grow(count)
        # Not through NumPy: its conversions take far longer where a step has emptied the caches of them.
        pack_into(f"{count}q", self._values.data, 0, *values)

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

"""Memory for packed weights, in huge pages where the system has them.

A decode step reads weights once from front to back, far more than the processor remembers addresses of
4 KiB pages for: with pages of 2 MiB it looks up few. Matrices lie one behind another in mappings that are
larger than most of them, for a mapping of its own would leave the rest of its last page unused.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor

__all__ = ["weight_memory"]

_HUGE_PAGE: Final = 1 << 21  # other sizes gain less or nothing, and lose nothing
_MAPPING: Final = 32 * _HUGE_PAGE
_ALIGNMENT: Final = 64  # a cache line, which is also the longest vector
_ADVICE: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


def weight_memory(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialized tensor that is written once and then read as long as it lives.

    Args:
        shape: of the tensor.
        dtype: of its elements.
        device: the CPU, or ``meta``.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or _ADVICE is None or num_bytes == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    memory = _mappings.take(num_bytes)
    if memory is None:
        return torch.empty(shape, dtype=dtype, device=device)
    return memory.view(dtype).view(shape)


class _Mappings:
    """Hands out parts of the mapping made last. Mappings live as long as tensors in them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: Callable[[], mmap.mmap | None] = lambda: None
        self._used = 0

    def take(self, num_bytes: int) -> Tensor | None:
        """So many bytes; None when the system refuses."""
        with self._lock:
            mapping = self._last()
            if mapping is None or self._used + num_bytes > len(mapping):
                mapping = _map(max(_MAPPING, num_bytes + _HUGE_PAGE))
                if mapping is None:
                    return None
                self._last, self._used = weakref.ref(mapping), _to_huge_page(mapping)
            taken = torch.frombuffer(mapping, dtype=torch.uint8, count=num_bytes, offset=self._used)
            self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
            return taken


def _map(num_bytes: int) -> mmap.mmap | None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        mapping = mmap.mmap(-1, num_bytes, flags=flags)
    except (OSError, ValueError, OverflowError):
        return None
    if _ADVICE is not None:
        with suppress(OSError):  # a system built without them: common pages then
            mapping.madvise(_ADVICE)
    return mapping


def _to_huge_page(mapping: mmap.mmap) -> int:
    """Bytes before the first address at which a huge page can begin."""
    address = torch.frombuffer(mapping, dtype=torch.uint8).data_ptr()
    return -address % _HUGE_PAGE


_mappings = _Mappings()

"""Compiling the CPU versions' inner loops: lazily, cached on disk, in step with torch's threads.

A `Kernel` is one Python function of loops over arrays. It is compiled on its first call, in a serial
and, when there is enough work, in a parallel variant (`numba.prange` over the outermost loop).

Threads: the parallel variant uses as many threads as torch. It is skipped, and the serial one runs
instead, where it could hang or crash: in a process forked after the thread pool was started, and
while another Python thread is inside a parallel kernel.
"""

from __future__ import annotations

import os
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import numba
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["PARALLEL_WORK", "Array", "Kernel", "all_work_in_parallel", "arrays", "subroutine"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

Array = NDArray[Any]
"""An operand of a compiled loop: a tensor's memory, of any float or integer dtype."""

PARALLEL_WORK = 1 << 18
"""Elements that a call must touch for threads to pay: some 1 MB, tens of microseconds of one core."""

# Sums may be reordered (that is what vectorises them) and contracted, but NaN and infinity keep their
# meaning: a state that went bad must stay visibly bad.
_FASTMATH = frozenset({"reassoc", "contract", "nsz", "arcp"})


class _ThreadPool:
    """Who may run parallel kernels: one Python thread at a time, of the process that started the threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.least_work = PARALLEL_WORK
        self._owner: int | None = None

    def claim(self) -> bool:
        """Take the pool, unless it is in use or another process's; give it back with `release`."""
        if not self.lock.acquire(blocking=False):
            return False
        if self._owner is None:
            self._owner = os.getpid()
        if self._owner == os.getpid():
            return True
        self.lock.release()
        return False

    def release(self) -> None:
        """Give the pool back."""
        self.lock.release()


_pool = _ThreadPool()


@contextmanager
def all_work_in_parallel() -> Iterator[None]:
    """Run even the smallest work by the parallel variants where there are threads, to compile them early.

    It holds for the whole process; what another thread computes meanwhile is right, if not as quick.
    """
    _pool.least_work = 0
    try:
        yield
    finally:
        _pool.least_work = PARALLEL_WORK


class Kernel:
    """A loop function, compiled when first called.

    Args:
        function: loops over arrays, `numba.prange` at the outermost; returns nothing.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._compiled: dict[bool, Callable[..., None]] = {}

    def __call__(self, work: int, *args: Array | float) -> None:
        """Run the kernel.

        Args:
            work: elements that the call touches; decides whether threads are used.
            args: what the function takes; tensors go through `arrays` first.
        """
        threads = min(torch.get_num_threads(), vars(numba.config)["NUMBA_NUM_THREADS"])
        if threads > 1 and work >= _pool.least_work and _pool.claim():
            try:
                numba.set_num_threads(threads)
                self._run(True, args)
            finally:
                _pool.release()
        else:
            self._run(False, args)

    def _run(self, parallel: bool, args: tuple[Array | float, ...]) -> None:
        compiled = self._compiled.get(parallel)
        if compiled is None:
            compiled = self._compiled[parallel] = _compile(self._function, parallel, cache=True)
        try:
            compiled(*args)
        except OSError:
            # The code compiled, but could not be saved (full or read-only disk); it has not run yet.
            compiled = self._compiled[parallel] = _compile(self._function, parallel, cache=False)
            compiled(*args)


def subroutine(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a part of a kernel of the same module: it is compiled with and into the kernel."""
    compiled: Callable[_P, _R] = numba.njit(fastmath=set(_FASTMATH), nogil=True, error_model="numpy")(
        function
    )
    return compiled


def arrays(*tensors: Tensor) -> tuple[Array, ...]:
    """The tensors as numpy arrays over the same memory."""
    return tuple(tensor.detach().numpy() for tensor in tensors)


def _compile(function: Callable[..., None], parallel: bool, *, cache: bool) -> Callable[..., None]:
    # Numba's cache tells functions apart by name and not by options, so each variant gets its own name.
    variant = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    variant.__qualname__ = f"{function.__qualname__}_{'parallel' if parallel else 'serial'}"
    variant.__module__ = function.__module__
    try:
        jit = numba.njit(
            cache=cache, parallel=parallel, fastmath=set(_FASTMATH), nogil=True, error_model="numpy"
        )
        compiled: Callable[..., None] = jit(variant)
    except RuntimeError:
        if not cache:
            raise
        return _compile(function, parallel, cache=False)  # no directory that a cache could be written to
    return compiled

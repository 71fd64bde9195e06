"""The compiled kernels' targets that this machine can run, for tests to go through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from milepost.kernels.native import native

__all__ = ["TARGETS", "using"]

_KNOWN = ("avx512", "avx2", "baseline")


def _runs(target: str) -> bool:
    before = native.target()
    runs = native.choose_target(target)
    native.choose_target(before)
    return runs


TARGETS = tuple(target for target in _KNOWN if _runs(target))


@contextmanager
def using(target: str, threads: int = 1) -> Iterator[None]:
    """Run a target's kernels on so many threads."""
    before = native.target(), native.num_threads()
    assert native.choose_target(target)
    native.set_num_threads(threads)
    try:
        yield
    finally:
        native.choose_target(before[0])
        native.set_num_threads(before[1])

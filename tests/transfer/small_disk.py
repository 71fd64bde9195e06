"""A disk tier of a few small pages, and disks that die or fill up at any write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.transfer.disk_store import DiskStore
from milepost.transfer.page_store import PageArray, TransferError

PAGE_BYTES = 16
NUM_SLOTS = 6

WRITING_CALLS = ("pwrite", "ftruncate", "fsync", "replace")


def never() -> bool:
    return False


def open_store(folder: Path, **changes: Any) -> DiskStore:
    options = {"num_pages": NUM_SLOTS, "page_bytes": PAGE_BYTES, "fingerprint": b"model", "layout": b"paged"}
    return DiskStore(folder, **{**options, **changes})


def page_of(number: int, page_bytes: int = PAGE_BYTES) -> bytes:
    """Content that no other number has."""
    return number.to_bytes(4, "little") * (page_bytes // 4)


def rows_of(numbers: list[int], page_bytes: int = PAGE_BYTES) -> PageArray:
    content = b"".join(page_of(number, page_bytes) for number in numbers)
    return np.frombuffer(content, dtype=np.uint8).reshape(len(numbers), page_bytes).copy()


def put(store: DiskStore, record: bytes, contents: dict[int, int]) -> None:
    """Write numbers to slots: ``contents[slot] = number``."""
    pairs = tuple(enumerate(contents))
    store.write(record, pairs, rows_of(list(contents.values())), never)


def read_slot(store: DiskStore, slot: int) -> bytes | None:
    """A slot's content, or None if it can't be read as a page."""
    target = np.zeros((1, store.page_bytes), dtype=np.uint8)
    try:
        store.read([(slot, 0)], target, never)
    except (TransferError, OSError):
        return None
    return target.tobytes()


class Killed(BaseException):
    """The process would be gone here: nothing may tidy up after it."""


@contextmanager
def failing_disk(
    monkeypatch: pytest.MonkeyPatch, at_call: int, error: BaseException, written: float = 0.0, times: int = 1
) -> Iterator[Callable[[], int]]:
    """From the `at_call`-th writing system call on, `times` of them fail; a pwrite first writes a part.

    Yields:
        How many writing calls there have been.
    """
    calls = 0

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if at_call <= calls < at_call + times:
                if name == "pwrite" and written:
                    fd, content, offset = args
                    real(fd, memoryview(content)[: int(len(content) * written)], offset)
                raise error
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in WRITING_CALLS:
            patch.setattr(os, name, wrap(name, getattr(os, name)))
        yield lambda: calls


def abandon(store: DiskStore) -> None:
    """What the system does with the files of a killed process."""
    store._close_files()

from __future__ import annotations

import os
from pathlib import Path

import pytest

from milepost.errors import ConfigError
from milepost.transfer.host_store import HostStore


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_pages_hold_what_is_written() -> None:
    store = HostStore(4, 8)
    store.pages[3] = 7
    assert store.pages[3].tolist() == [7] * 8
    assert not store.pages[:3].any()
    store.close()


def test_memory_is_committed_only_where_it_is_written() -> None:
    before = resident_bytes()
    store = HostStore(1 << 10, 1 << 20)  # 1 GiB
    store.pages[1 << 9] = 1
    assert resident_bytes() - before < 64 << 20
    store.close()


def test_closing_twice_is_fine_and_leaves_readers_their_memory() -> None:
    store = HostStore(2, 8)
    kept = store.pages
    kept[1] = 5
    store.close()
    store.close()
    assert kept[1, 0] == 5
    assert store.pages.shape == (0, 8)


def test_what_can_not_be_mapped_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"refuses to map a host cache of .*Choose a smaller"):
        HostStore(1 << 40, 1 << 30)


def test_no_pages_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one page of 8 B"):
        HostStore(0, 8)

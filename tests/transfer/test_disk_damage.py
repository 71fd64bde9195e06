"""The disk tier while everything goes wrong. Whatever happened to the files, a page that can be read is
the page that was written, and the store can be used again."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.errors import ConfigError
from milepost.transfer import disk_store
from milepost.transfer.slot_table import RecoveredEntry
from tests.transfer.small_disk import (
    NUM_SLOTS,
    Killed,
    abandon,
    failing_disk,
    never,
    open_store,
    page_of,
    put,
    read_slot,
    rows_of,
)

FULL = OSError(errno.ENOSPC, "No space left on device")
READ_ONLY = OSError(errno.EROFS, "Read-only file system")


@pytest.fixture(autouse=True)
def quick_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power, which is all that a sync is about, and there are thousands of them."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def fill(folder: Path) -> None:
    """Three entries, one of them overwritten in part."""
    store = open_store(folder)
    put(store, b"a", {0: 1, 1: 2})
    put(store, b"b", {2: 3, 3: 4})
    put(store, b"c", {3: 5, 4: 6})
    store.close()


CONTENTS = {0: {1}, 1: {2}, 2: {3}, 3: {4, 5}, 4: {6}}  # everything that a slot was ever given


def check_and_use(folder: Path) -> list[bytes]:
    """Open, compare each readable page with what was written, write and read; returns the found records."""
    store = open_store(folder)
    found = store.recover()
    for slot in range(NUM_SLOTS):
        content = read_slot(store, slot)
        assert content is None or content in {page_of(number) for number in CONTENTS.get(slot, set())}
    put(store, b"used", {5: 99})
    assert read_slot(store, 5) == page_of(99)
    store.close()
    again = open_store(folder)
    assert again.recover()[-1] == RecoveredEntry(b"used", (5,))
    assert read_slot(again, 5) == page_of(99)
    again.close()
    return [entry.record for entry in found]


def test_a_journal_cut_anywhere_keeps_its_whole_entries(tmp_path: Path) -> None:
    fill(tmp_path / "whole")
    journal = (tmp_path / "whole" / "milepost.journal").read_bytes()
    seen = set()
    for cut in range(len(journal)):
        folder = tmp_path / str(cut)
        fill(folder)
        os.truncate(folder / "milepost.journal", cut)
        # The secret is this folder's own, so the header is too: only the length counts here.
        seen.add(tuple(check_and_use(folder)))
    assert seen == {(), (b"a",), (b"a", b"b")}
    assert check_and_use(tmp_path / "whole") == [b"a", b"c"]


def test_a_pages_file_cut_anywhere_loses_only_what_was_cut(tmp_path: Path) -> None:
    fill(tmp_path / "whole")
    size = 5 * 16
    for cut in range(size + 1):
        folder = tmp_path / str(cut)
        fill(folder)
        os.truncate(folder / "milepost.pages", cut)
        whole = cut // 16
        expected = [b"a"] * (whole >= 2) + [b"c"] * (whole >= 5)
        assert check_and_use(folder) == expected


def test_a_flipped_bit_in_any_file_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path)
    originals = {
        name: (tmp_path / f"milepost.{name}").read_bytes() for name in ("journal", "pages", "secret")
    }
    for name, original in originals.items():
        for at in range(0, len(original), 3):  # test_journal.py flips every bit of a journal
            for other_name, content in originals.items():
                (tmp_path / f"milepost.{other_name}").write_bytes(content)
            damaged = bytearray(original)
            damaged[at] ^= 1 << at % 8
            (tmp_path / f"milepost.{name}").write_bytes(damaged)
            check_and_use(tmp_path)


def test_a_missing_file_is_an_empty_cache(tmp_path: Path) -> None:
    for name in ("journal", "pages", "secret", "lock"):
        folder = tmp_path / name
        fill(folder)
        (folder / f"milepost.{name}").unlink()
        assert check_and_use(folder) == ([b"a", b"c"] if name == "lock" else [])


def test_another_caches_pages_under_this_journal_are_not_read(tmp_path: Path) -> None:
    fill(tmp_path / "ours")
    other = open_store(tmp_path / "other")
    put(other, b"theirs", dict.fromkeys(range(NUM_SLOTS), 77))
    other.close()
    (tmp_path / "other" / "milepost.pages").rename(tmp_path / "ours" / "milepost.pages")
    store = open_store(tmp_path / "ours")
    assert [read_slot(store, slot) for slot in range(5)] == [None] * 5
    store.close()


@pytest.mark.parametrize("written", [0.0, 0.5, 1.0])
def test_a_process_killed_at_any_write_leaves_a_usable_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: float
) -> None:
    """Every system call that writes, from the first opening on, compactions included; a pwrite is cut."""
    monkeypatch.setattr(disk_store, "MIN_COMPACTION_BYTES", 1)
    at_call = 0
    survived = False
    while not survived:
        at_call += 1
        folder = tmp_path / str(at_call)
        stores: list[disk_store.DiskStore] = []
        try:
            with failing_disk(monkeypatch, at_call, Killed(), written):
                stores.append(open_store(folder))
                put(stores[0], b"a", {0: 1, 1: 2})
                put(stores[0], b"b", {2: 3, 3: 4})
                put(stores[0], b"c", {3: 5, 4: 6})
                survived = True
        except Killed:
            pass
        for store in stores:
            abandon(store)
        records = check_and_use(folder)
        assert len(list(folder.iterdir())) == 4  # nothing half-made is left over
        assert records in ([], [b"a"], [b"a", b"b"], [b"a", b"c"])
        reopened = open_store(folder)
        for entry in reopened.recover():
            # Killed, not struck by lightning: what can be found is whole.
            assert None not in [read_slot(reopened, slot) for slot in entry.pages]
        reopened.close()
    assert at_call > 20


@pytest.mark.parametrize("error", [FULL, READ_ONLY], ids=["full", "read-only"])
@pytest.mark.parametrize("times", [1, 1000], ids=["once", "for ever"])
def test_a_disk_that_fails_at_any_write_fails_that_write_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, times: int
) -> None:
    monkeypatch.setattr(disk_store, "MIN_COMPACTION_BYTES", 1)
    failures = 0
    for at_call in range(1, 40):
        folder = tmp_path / str(at_call)
        store = open_store(folder)
        told = []
        with failing_disk(monkeypatch, at_call, error, 0.5, times):
            for record, contents in ((b"a", {0: 1, 1: 2}), (b"b", {2: 3, 3: 4}), (b"c", {3: 5, 4: 6})):
                try:
                    put(store, record, contents)
                except OSError:
                    failures += 1
                else:
                    told.append(record)
            found = store.recover()
        # The third entry takes a slot of the second, which is gone from then on, however the third one ends.
        assert [entry.record for entry in found] == [record for record in told if record != b"b"]
        for entry in found:
            assert None not in [read_slot(store, slot) for slot in entry.pages]
        store.close()
        check_and_use(folder)
    assert failures > 5


def test_a_disk_that_is_full_at_the_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        failing_disk(monkeypatch, 1, FULL, times=1000),
        pytest.raises(ConfigError, match=r"No space left.*not full"),
    ):
        open_store(tmp_path)
    open_store(tmp_path).close()  # nothing is left locked


def test_a_real_limit_of_the_system_fails_the_write(tmp_path: Path) -> None:
    store = open_store(tmp_path, page_bytes=4096, num_pages=8)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * 4096, limits[1]))
    try:
        store.write(b"fits", [(0, 0)], rows_of([1], 4096), never)
        with pytest.raises(OSError, match="File too large"):
            store.write(b"does not", [(0, 1), (1, 5)], rows_of([2, 3], 4096), never)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.recover() == [RecoveredEntry(b"fits", (0,))]
    assert [store.holds(slot) for slot in (1, 5)] == [False, False]
    store.close()


@given(
    programs=st.lists(
        st.lists(
            st.dictionaries(st.integers(0, NUM_SLOTS - 1), st.integers(1, 3), min_size=1, max_size=3),
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    ),
    cuts=st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_torn_again_and_again_it_never_lies(
    tmp_path_factory: pytest.TempPathFactory, programs: list[list[dict[int, int]]], cuts: list[float]
) -> None:
    """Lives that each write, then lose the journal's tail.

    What a slot gives is what it was given last or nothing, and every entry that is found was written
    with exactly these slots.
    """
    folder = tmp_path_factory.mktemp("torn")
    last: dict[int, int] = {}
    every: set[tuple[bytes, tuple[int, ...]]] = set()
    for life, program in enumerate(programs):
        store = open_store(folder)
        for entry in store.recover():
            assert (entry.record, entry.pages) in every
        for slot in range(NUM_SLOTS):
            content = read_slot(store, slot)
            assert content is None or content == page_of(last[slot])
        for index, contents in enumerate(program):
            record = bytes([life, index])
            put(store, record, contents)
            last.update(contents)
            every.add((record, tuple(contents)))
        store.close()
        journal = folder / "milepost.journal"
        os.truncate(journal, int(cuts[life] * journal.stat().st_size))


KILLED_CHILD = """
import sys
from pathlib import Path
from tests.transfer.small_disk import never, open_store, rows_of
store = open_store(Path(sys.argv[1]), page_bytes=1 << 16, num_pages=6)
number = 0
while True:
    number += 1
    pages = [(0, 2 * number % 6), (1, 2 * number % 6 + 1)]
    if number == 3:
        print("writing", flush=True)
    store.write(number.to_bytes(4, "little"), pages, rows_of([number, number + 1], 1 << 16), never)
"""


def test_sigkill_in_the_middle_of_writing(tmp_path: Path) -> None:
    found = 0
    for delay in (0.0, 0.01, 0.03, 0.05):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED_CHILD, tmp_path], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        store = open_store(tmp_path, page_bytes=1 << 16, num_pages=6)
        assert store.discarded is None
        for entry in store.recover():
            number = int.from_bytes(entry.record, "little")
            assert entry.pages == (2 * number % 6, 2 * number % 6 + 1)
            contents = [read_slot(store, slot) for slot in entry.pages]
            assert contents == [page_of(number, 1 << 16), page_of(number + 1, 1 << 16)]
            found += 1
        store.close()
    assert found

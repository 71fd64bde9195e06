"""The disk tier while nothing goes wrong: what is kept, what is foreign, who may use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.errors import ConfigError
from milepost.transfer import disk_store
from milepost.transfer.page_store import TransferError
from milepost.transfer.slot_table import RecoveredEntry
from tests.transfer.small_disk import (
    NUM_SLOTS,
    PAGE_BYTES,
    never,
    open_store,
    page_of,
    put,
    read_slot,
    rows_of,
)


def test_pages_come_back_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.recover() == []
    assert store.discarded is None
    put(store, b"first", {1: 10, 4: 11})
    put(store, b"second", {2: 12})
    assert read_slot(store, 4) == page_of(11)
    store.close()
    again = open_store(tmp_path)
    assert again.recover() == [RecoveredEntry(b"first", (1, 4)), RecoveredEntry(b"second", (2,))]
    assert [read_slot(again, slot) for slot in (1, 4, 2)] == [page_of(10), page_of(11), page_of(12)]
    assert [again.holds(slot) for slot in range(NUM_SLOTS)] == [False, True, True, False, True, False]
    again.close()


def test_several_pages_are_read_into_the_rows_asked_for(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"r", {0: 1, 1: 2, 2: 3})
    target = np.zeros((4, PAGE_BYTES), dtype=np.uint8)
    store.read([(2, 0), (0, 3)], target, never)
    assert [row.tobytes() for row in target] == [page_of(3), bytes(PAGE_BYTES), bytes(PAGE_BYTES), page_of(1)]
    store.close()


def test_an_entry_is_gone_when_one_of_its_slots_is_written_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"old", {1: 10, 2: 11})
    put(store, b"new", {2: 12})
    for _ in range(2):
        assert store.recover() == [RecoveredEntry(b"new", (2,))]
        # Other records may count on the old entry's other page.
        assert read_slot(store, 1) == page_of(10)
        assert read_slot(store, 2) == page_of(12)
        store.close()
        store = open_store(tmp_path)
    store.close()


def test_pages_without_a_record_are_kept_and_not_found(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"", {3: 9})
    store.close()
    again = open_store(tmp_path)
    assert again.recover() == []
    assert read_slot(again, 3) == page_of(9)
    again.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fingerprint": b"other"}, "another model"),
        ({"layout": b"aligned"}, "laid out in another way"),
        ({"page_bytes": 2 * PAGE_BYTES, "num_pages": NUM_SLOTS // 2}, "laid out in another way"),
    ],
)
def test_a_foreign_cache_is_never_read_and_gives_its_space_back(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    store = open_store(tmp_path)
    put(store, b"theirs", {0: 1, 1: 2})
    secret = store.secret
    store.close()
    other = open_store(tmp_path, **changes)
    assert other.recover() == []
    assert other.discarded is not None
    assert why in other.discarded
    assert not any(other.holds(slot) for slot in range(other.num_pages))
    assert not any((tmp_path / "milepost.pages").read_bytes())
    assert other.secret == secret
    other.close()
    back = open_store(tmp_path)
    assert back.recover() == []  # overwritten, not set aside
    back.close()


def test_a_file_that_is_no_journal_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "milepost.journal").write_text("somebody's notes")
    store = open_store(tmp_path)
    assert store.recover() == []
    assert "damaged or of another version" in str(store.discarded)
    put(store, b"r", {0: 1})
    store.close()
    again = open_store(tmp_path)
    assert again.recover() == [RecoveredEntry(b"r", (0,))]
    assert again.discarded is None
    again.close()


def test_the_secret_outlives_the_process_and_is_drawn_once(tmp_path: Path) -> None:
    first = open_store(tmp_path / "a")
    other = open_store(tmp_path / "b")
    assert len(first.secret) == 32
    assert first.secret != other.secret
    secret = first.secret
    first.close()
    other.close()
    again = open_store(tmp_path / "a")
    assert again.secret == secret
    again.close()


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_without_its_secret_a_cache_is_foreign(tmp_path: Path, content: bytes) -> None:
    store = open_store(tmp_path)
    put(store, b"r", {0: 1})
    lost = store.secret
    store.close()
    (tmp_path / "milepost.secret").write_bytes(content)
    again = open_store(tmp_path)
    assert again.recover() == []
    assert again.discarded == "its hash secret is gone"
    assert again.secret != lost
    assert (tmp_path / "milepost.secret").read_bytes() == again.secret
    again.close()


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache"
    store = open_store(folder)
    for number in range(40):
        put(store, b"r" * 4096, {number % NUM_SLOTS: number})  # long enough to replace the journal
    store.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    names = ("journal", "lock", "pages", "secret")
    assert modes == {f"milepost.{name}": 0o600 for name in names}
    for name in names:
        (folder / f"milepost.{name}").chmod(0o644)
    open_store(folder).close()
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_link_in_a_files_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "milepost.pages").symlink_to(victim)
    with pytest.raises(ConfigError, match="can't be opened"):
        open_store(folder)
    assert victim.read_text() == "precious"


def test_a_folder_is_one_engines_at_a_time(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"r", {0: 1})
    with pytest.raises(ConfigError, match="in use by another engine"):
        open_store(tmp_path, fingerprint=b"other")
    code = (
        "import sys; from tests.transfer.small_disk import open_store; from pathlib import Path\n"
        "open_store(Path(sys.argv[1]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False
    )
    assert "ConfigError" in other.stderr
    assert "in use by another engine (process" in other.stderr
    assert store.recover() == [RecoveredEntry(b"r", (0,))]
    store.close()
    open_store(tmp_path).close()


@pytest.mark.parametrize("folder", ["file", "file/below", "proc"])
def test_a_place_that_can_not_be_written_is_refused_at_the_start(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = Path("/proc/milepost") if folder == "proc" else tmp_path / folder
    with pytest.raises(ConfigError, match=r"can't be opened.*must be a folder that this process may write"):
        open_store(path)


@pytest.mark.parametrize("num_pages", [1 << 60, 10**30])
def test_more_slots_than_the_disk_can_hold_are_refused(tmp_path: Path, num_pages: int) -> None:
    with pytest.raises(ConfigError, match=r"must take at most \d+ bytes .*, all that the disk of .* has"):
        open_store(tmp_path, num_pages=num_pages)
    open_store(tmp_path).close()


def test_no_slots_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one page"):
        open_store(tmp_path, num_pages=0)


def test_a_smaller_budget_forgets_what_no_longer_fits(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"low", {0: 1})
    put(store, b"high", {1: 2, 5: 3})
    store.close()
    small = open_store(tmp_path, num_pages=3)
    assert small.recover() == [RecoveredEntry(b"low", (0,))]
    assert (tmp_path / "milepost.pages").stat().st_size == 3 * PAGE_BYTES
    small.close()
    large = open_store(tmp_path, num_pages=12)
    assert large.recover() == [RecoveredEntry(b"low", (0,))]
    put(large, b"far", {11: 4})
    assert read_slot(large, 11) == page_of(4)
    large.close()


@pytest.mark.parametrize("slots", [(-1,), (NUM_SLOTS,), (0, 0)])
def test_wrong_slots_are_refused_and_change_nothing(tmp_path: Path, slots: tuple[int, ...]) -> None:
    store = open_store(tmp_path)
    put(store, b"r", {0: 1})
    with pytest.raises(TransferError, match="not different slots"):
        store.write(b"x", tuple(enumerate(slots)), rows_of([7, 8]), never)
    assert store.recover() == [RecoveredEntry(b"r", (0,))]
    assert read_slot(store, 0) == page_of(1)
    store.close()


def test_a_slot_that_holds_nothing_is_not_read(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(TransferError, match=r"Slot 3 .* holds no page"):
        store.read([(3, 0)], rows_of([0]), never)
    store.close()


def test_pages_of_another_size_are_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(TransferError, match="32 bytes don't fit slots of 16"):
        store.write(b"x", [(0, 0)], rows_of([1], 32), never)
    store.close()


def test_a_stopped_write_leaves_no_entry(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"old", {0: 1, 1: 2})
    answers = iter([False, True])
    with pytest.raises(TransferError, match="stopped"):
        store.write(b"new", [(0, 0), (1, 1)], rows_of([3, 4]), lambda: next(answers))
    assert store.recover() == []
    store.close()
    again = open_store(tmp_path)
    assert again.recover() == []
    assert [read_slot(again, slot) for slot in (0, 1)] == [None, None]
    again.close()


def test_the_journal_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store, "MIN_COMPACTION_BYTES", 1)
    journal = tmp_path / "milepost.journal"
    store = open_store(tmp_path)
    put(store, b"kept", {0: 1})
    sizes = []
    for number in range(200):
        put(store, b"again", {1: number, 2: number})
        sizes.append(journal.stat().st_size)
    short = sum(len(record) for record in (b"kept", b"again")) + 250  # header, two entries
    assert max(sizes) <= 2 * short
    assert not (tmp_path / "milepost.journal.new").exists()
    store.close()
    again = open_store(tmp_path)
    assert again.recover() == [RecoveredEntry(b"kept", (0,)), RecoveredEntry(b"again", (1, 2))]
    assert read_slot(again, 2) == page_of(199)
    again.close()


def test_clearing_forgets_for_ever(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"r", {0: 1})
    store.clear()
    assert store.recover() == []
    assert read_slot(store, 0) is None
    assert not any((tmp_path / "milepost.pages").read_bytes())
    put(store, b"later", {0: 2})
    store.close()
    again = open_store(tmp_path)
    assert again.recover() == [RecoveredEntry(b"later", (0,))]
    again.close()


def test_a_closed_store_refuses(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"r", {0: 1})
    store.close()
    store.close()
    with pytest.raises(TransferError, match="closed"):
        put(store, b"s", {1: 1})
    with pytest.raises(TransferError, match="closed"):
        store.read([(0, 0)], rows_of([0]), never)
    with pytest.raises(TransferError, match="closed"):
        store.clear()

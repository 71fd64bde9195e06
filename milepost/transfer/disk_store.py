"""The disk tier: pages in one file of fixed slots, and a journal that says what the slots hold.

A folder holds ``milepost.pages`` (slot i at byte ``i * page_bytes``), ``milepost.journal``,
``milepost.secret`` and ``milepost.lock``, readable by their owner alone.

Why no order of writes has to be kept. A page is read back only if its content has the 128-bit digest
that the journal names for its slot, and a journal is valid only up to its first frame that does not
follow from those before (see `journal`). So whatever part of the writes reached the disk before the
process or the machine died, what is read as a page was written as that page. Order only decides how
much is left to find, and for that the cheap order is enough: wipe the slots' old entries from the
journal, write the slots, append the entry. A killed process loses nothing that it had written,
because the system holds it; after a power failure entries can be left whose pages fail their check
and are computed again. That is why slots are not synced: it would cost every transfer a wait for
the disk and buy a cache nothing but a few hits after a power failure.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from milepost.byte_counts import format_bytes
from milepost.errors import ConfigError
from milepost.transfer.disk_files import (
    FOLDER_MODE,
    lock_file,
    open_private,
    read_exactly,
    read_secret,
    replace_file,
    write_all,
)
from milepost.transfer.journal import (
    Entry,
    Header,
    Scan,
    Wiped,
    Written,
    encode_frame,
    new_journal,
    page_digest,
    scan_journal,
)
from milepost.transfer.page_store import PageArray, Stopped, TransferError
from milepost.transfer.slot_table import RecoveredEntry, SlotTable

__all__ = ["DiskStore"]

MIN_COMPACTION_BYTES = 1 << 16


class DiskStore:
    """`num_pages` slots in the folder `path`, which is created; what an earlier process left is found again.

    Files of another model, layout, page size, format or secret are overwritten, not kept: the folder
    never takes more than its budget, and what it held can be computed again. `discarded` then says why.
    Methods may be called from any thread.

    Args:
        path: a folder. One engine at a time can use it.
        num_pages: slots. It may differ from the last time; entries that no longer fit are forgotten.
        page_bytes: bytes of a page, the arena's.
        fingerprint: of the model: whatever decides what numbers a page holds.
        layout: how a page is cut: whatever decides where they lie.

    Raises:
        ConfigError: the folder is in use, or can't be created, read or written.
    """

    def __init__(
        self, path: Path, num_pages: int, page_bytes: int, *, fingerprint: bytes, layout: bytes
    ) -> None:
        if num_pages < 1 or page_bytes < 1:
            raise ConfigError(
                f"The disk cache must hold at least one page of {format_bytes(page_bytes)}. "
                f"Given: {num_pages} pages. Give it more bytes."
            )
        self.path = path
        self.num_pages = num_pages
        self.page_bytes = page_bytes
        self.discarded: str | None = None
        self._lock = threading.RLock()
        self._closed = False
        self._open_fds: list[int] = []
        try:
            self._open(fingerprint, layout)
        except BaseException as error:
            self._close_files()
            if isinstance(error, OSError):
                raise ConfigError(
                    f"The disk cache {path} can't be opened: {error}. It must be a folder that this process "
                    "may write, or a new one, on a disk that is not full."
                ) from error
            raise

    @property
    def secret(self) -> bytes:
        """32 random bytes for hashing keys. They outlive the process, so that its keys do too."""
        return self._secret

    def recover(self) -> list[RecoveredEntry]:
        """What can be found now, oldest first: whole entries, of which no slot was written again.

        Pages are checked when they are read, not here: reading them all would take as long as
        loading them all.
        """
        with self._lock:
            return self._table.recovered()

    def holds(self, slot: int) -> bool:
        """Whether a slot holds a page that was written whole, as far as the journal knows."""
        with self._lock:
            return self._table.digest(slot) is not None

    def write(
        self, record: bytes, pages: Sequence[tuple[int, int]], source: PageArray, stopped: Stopped
    ) -> None:
        """Write rows of `source` to slots and append their entry; see `DiskTier.write`.

        Entries that held one of the slots are gone, even if the write then fails.

        Raises:
            TransferError, OSError: nothing of it may be used; the slots hold nothing.
        """
        with self._lock:
            self._require_open(source)
            slots = tuple(slot for _, slot in pages)
            self._require_slots(slots)
            if reused := self._table.held(slots):
                # First in memory: should the append fail, the old pages are not to be trusted either.
                self._table.wipe(reused)
                self._append(Wiped(reused))
            digests = []
            for row, slot in pages:
                if stopped():
                    raise TransferError("The transfer was stopped.")
                page = memoryview(source[row])
                digests.append(page_digest(page))
                write_all(self._pages_fd, page, slot * self.page_bytes)
            entry = Written(record, slots, b"".join(digests))
            self._append(entry)
            self._table.play(entry)
            self._compact_if_long()

    def read(self, pages: Sequence[tuple[int, int]], target: PageArray, stopped: Stopped) -> None:
        """Read slots into rows of `target`, and check each; see `DiskTier.read`.

        Raises:
            TransferError: a slot holds nothing, or not what was written to it.
            OSError: it can't be read.
        """
        with self._lock:
            self._require_open(target)
            for slot, row in pages:
                if stopped():
                    raise TransferError("The transfer was stopped.")
                digest = self._table.digest(slot)
                if digest is None:
                    raise TransferError(f"Slot {slot} of the disk cache {self.path} holds no page.")
                page = memoryview(target[row])
                whole = read_exactly(self._pages_fd, page, slot * self.page_bytes)
                if not whole or page_digest(page) != digest:
                    raise TransferError(
                        f"Slot {slot} of the disk cache {self.path} does not hold what was written to it: "
                        "the file is damaged."
                    )

    def clear(self) -> None:
        """Forget everything, also for later processes, and give the disk space back.

        Raises:
            TransferError: the store is closed.
            OSError: the files can't be written. Until the next restart everything is forgotten all the same.
        """
        with self._lock:
            self._require_open()
            self._table = SlotTable()
            self._rewrite_journal()
            self._resize_pages(empty=True)

    def close(self) -> None:
        """Close the files and let another process use the folder. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._close_files()

    def _check_size(self) -> None:
        """Refuse more pages than the whole disk has: they could never be written, and tables name each."""
        total = shutil.disk_usage(self.path).total
        if self.num_pages * self.page_bytes > total > 0:  # some file systems don't tell
            raise ConfigError(
                f"The disk cache must take at most {total} bytes ({format_bytes(total)}), all that the disk "
                f"of {self.path} has. Given: {self.num_pages * self.page_bytes}. Give it less."
            )

    def _open(self, fingerprint: bytes, layout: bytes) -> None:
        self.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        self._check_size()
        self._open_fds.append(lock_file(self.path / "milepost.lock"))
        for torn in self.path.glob("milepost.*.new"):  # a process was killed while it replaced a file
            torn.unlink()
        self._secret = read_secret(self.path / "milepost.secret")
        self._header = Header(self.page_bytes, fingerprint, layout, page_digest(self._secret))
        self._journal_path = self.path / "milepost.journal"
        self._journal_fd = self._opened(self._journal_path)
        self._pages_fd = self._opened(self.path / "milepost.pages")
        size = os.fstat(self._journal_fd).st_size
        data = bytearray(size)
        read_exactly(self._journal_fd, memoryview(data), 0)
        self._adopt(scan_journal(bytes(data)), size)

    def _adopt(self, scan: Scan, size: int) -> None:
        """Go on from a journal of `size` bytes if it is ours, else from an empty one."""
        if size:
            self.discarded = _difference(scan.header, self._header)
        ours = scan.header is not None and self.discarded is None
        self._table = SlotTable(scan.entries if ours else ())
        self._end, self._chain = scan.size, scan.chain
        # A slot that is not inside the file, or not inside the budget any more, holds nothing.
        num_whole = min(self.num_pages, os.fstat(self._pages_fd).st_size // self.page_bytes)
        lost = [slot for slot in self._table.slots() if slot >= num_whole]
        self._table.wipe(lost)
        if not ours:
            self._rewrite_journal()
        else:
            self._compact_at = max(MIN_COMPACTION_BYTES, 2 * self._end)
            if scan.size < size or lost:
                # On a full disk the longer journal serves as well: its torn tail is written over.
                with contextlib.suppress(OSError):
                    self._rewrite_journal()
        self._resize_pages(empty=not ours)

    def _resize_pages(self, *, empty: bool) -> None:
        if empty:
            os.ftruncate(self._pages_fd, 0)
        os.ftruncate(self._pages_fd, self.num_pages * self.page_bytes)

    def _append(self, entry: Entry) -> None:
        frame, chain = encode_frame(self._chain, entry)
        # At its place, not at the file's end: what a failed append left there is written over, and what
        # might stick out behind follows from no frame, so that it never reads as an entry.
        write_all(self._journal_fd, frame, self._end)
        self._end += len(frame)
        self._chain = chain

    def _compact_if_long(self) -> None:
        if self._end < self._compact_at:
            return
        try:
            self._rewrite_journal()
        except OSError:
            # The long journal is as good; the entry is written, so the transfer has not failed.
            self._compact_at = 2 * self._end

    def _rewrite_journal(self) -> None:
        """Replace the journal by the shortest one that says the same.

        It is done when the journal has doubled, so a byte is written twice on average, and the
        journal stays below twice what it has to say (or 64 KiB).
        """
        content, chain = new_journal(self._header, self._table.as_entries())
        fresh = replace_file(self._journal_path, content)
        self._open_fds[self._open_fds.index(self._journal_fd)] = fresh
        os.close(self._journal_fd)
        self._journal_fd = fresh
        self._end, self._chain = len(content), chain
        self._compact_at = max(MIN_COMPACTION_BYTES, 2 * self._end)

    def _require_open(self, rows: PageArray | None = None) -> None:
        if self._closed:
            raise TransferError("The disk cache is closed.")
        if rows is not None and rows.shape[1] != self.page_bytes:
            raise TransferError(f"Pages of {rows.shape[1]} bytes don't fit slots of {self.page_bytes} bytes.")

    def _require_slots(self, slots: tuple[int, ...]) -> None:
        if len(set(slots)) != len(slots) or not all(0 <= slot < self.num_pages for slot in slots):
            raise TransferError(f"Slots {slots} are not different slots of {self.num_pages}.")

    def _opened(self, path: Path) -> int:
        fd = open_private(path)
        self._open_fds.append(fd)
        return fd

    def _close_files(self) -> None:
        # The lock's descriptor is the first, so the last: nobody comes in while others are open.
        while self._open_fds:
            with contextlib.suppress(OSError):
                os.close(self._open_fds.pop())


def _difference(found: Header | None, ours: Header) -> str | None:
    """Why a journal with the header `found` is not ours."""
    if found is None:
        return "its journal is damaged or of another version"
    if found.fingerprint != ours.fingerprint:
        return "it is of another model, dtype, backend, cache key or version"
    if found.layout != ours.layout or found.page_bytes != ours.page_bytes:
        return "its pages are laid out in another way (layout, block size or match unit)"
    if found.secret_digest != ours.secret_digest:
        return "its hash secret is gone"
    return None

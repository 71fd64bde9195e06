"""What the disk tier's slots hold now: the journal's entries played one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from milepost.transfer.journal import DIGEST_BYTES, Entry, Written

__all__ = ["RecoveredEntry", "SlotTable"]


class RecoveredEntry(msgspec.Struct, frozen=True):
    """What an earlier process, or this one, left on disk and can be found by its record.

    Attributes:
        record: as the transfer gave it.
        pages: its slots, in the transfer's order.
    """

    record: bytes
    pages: tuple[int, ...]


class SlotTable:
    """The latest content of every slot, and the entries of which every slot still holds its page.

    An entry that lost one slot is gone, but its other slots keep their content: records of other
    entries may count on them.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._slots: dict[int, tuple[int, bytes]] = {}  # slot -> (number of its entry, digest)
        self._entries: dict[int, Written] = {}
        self._num_seen = 0
        for entry in entries:
            self.play(entry)

    def play(self, entry: Entry) -> None:
        """Take an entry into account, as the newest."""
        self.wipe(entry.slots)
        if not isinstance(entry, Written):
            return
        number = self._num_seen
        self._num_seen += 1
        for index, slot in enumerate(entry.slots):
            digest = entry.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
            self._slots[slot] = (number, digest)
        if entry.record:
            self._entries[number] = entry

    def wipe(self, slots: Iterable[int]) -> None:
        """These slots hold nothing now; entries that needed one of them are gone."""
        for slot in slots:
            held = self._slots.pop(slot, None)
            if held is not None:
                self._entries.pop(held[0], None)

    def digest(self, slot: int) -> bytes | None:
        """What the page in `slot` is recognised by; None if the slot holds nothing."""
        held = self._slots.get(slot)
        return None if held is None else held[1]

    def held(self, slots: Iterable[int]) -> tuple[int, ...]:
        """Those of `slots` that hold a page."""
        return tuple(slot for slot in slots if slot in self._slots)

    def slots(self) -> Sequence[int]:
        """All slots that hold a page."""
        return tuple(self._slots)

    def recovered(self) -> list[RecoveredEntry]:
        """The entries that are whole, oldest first."""
        return [RecoveredEntry(entry.record, entry.slots) for entry in self._entries.values()]

    def as_entries(self) -> Iterator[Entry]:
        """The shortest journal that says the same: pages without an entry first, then the whole entries."""
        loose = [slot for slot, (number, _) in self._slots.items() if number not in self._entries]
        if loose:
            yield Written(b"", tuple(loose), b"".join(self._slots[slot][1] for slot in loose))
        yield from self._entries.values()

"""What the slots hold, against the plainest way to say it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from milepost.transfer.journal import Entry, Wiped, Written, page_digest
from milepost.transfer.slot_table import RecoveredEntry, SlotTable


def written(record: bytes, slots: tuple[int, ...], content: int) -> Written:
    return Written(record, slots, b"".join(page_digest(bytes([content, slot])) for slot in slots))


slot_lists = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(tuple)
histories = st.lists(
    st.one_of(
        slot_lists.map(Wiped),
        st.builds(written, st.sampled_from([b"", b"a", b"b"]), slot_lists, st.integers(0, 255)),
    ),
    max_size=8,
)


def expected_entries(history: list[Entry]) -> list[RecoveredEntry]:
    """Those with a record of which no later entry names a slot."""
    return [
        RecoveredEntry(entry.record, entry.slots)
        for index, entry in enumerate(history)
        if isinstance(entry, Written)
        and entry.record
        and not any(set(entry.slots) & set(later.slots) for later in history[index + 1 :])
    ]


def expected_digests(history: list[Entry]) -> dict[int, bytes]:
    digests: dict[int, bytes] = {}
    for entry in history:
        for index, slot in enumerate(entry.slots):
            digests.pop(slot, None)
            if isinstance(entry, Written):
                digests[slot] = entry.digests[16 * index : 16 * index + 16]
    return digests


def digests_of(table: SlotTable) -> dict[int, bytes]:
    return {slot: digest for slot in range(6) if (digest := table.digest(slot)) is not None}


@given(histories)
def test_only_entries_whose_slots_nobody_reused_are_found(history: list[Entry]) -> None:
    table = SlotTable(history)
    assert table.recovered() == expected_entries(history)
    assert digests_of(table) == expected_digests(history)
    assert set(table.slots()) == set(expected_digests(history)) == set(table.held(range(6)))


@given(histories, histories)
def test_the_short_journal_says_the_same(history: list[Entry], more: list[Entry]) -> None:
    table = SlotTable(history)
    short = SlotTable(table.as_entries())
    for entry in more:
        table.play(entry)
        short.play(entry)
    assert short.recovered() == table.recovered()
    assert digests_of(short) == digests_of(table)
    assert len(list(table.as_entries())) <= 1 + len(table.recovered())

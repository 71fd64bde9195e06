"""The journal's bytes: whatever happens to them, what reads as an entry was written as one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.transfer.journal import (
    DIGEST_BYTES,
    MAGIC,
    Entry,
    Header,
    Wiped,
    Written,
    encode_frame,
    new_journal,
    page_digest,
    scan_journal,
)

HEADER = Header(64, b"model", b"layout", b"secret")


def written(record: bytes, *slots: int) -> Written:
    return Written(record, slots, b"".join(page_digest(slot.to_bytes(4, "little")) for slot in slots))


SMALL = (written(b"a", 1, 2), Wiped((2,)), written(b"b", 2), written(b"", 300, 4))

slot_lists = st.lists(st.integers(0, 1 << 20), max_size=4, unique=True).map(tuple)
entries = st.lists(
    st.one_of(
        slot_lists.map(Wiped),
        st.builds(lambda record, slots: written(record, *slots), st.binary(max_size=40), slot_lists),
    ),
    max_size=6,
)


def written_prefixes(items: tuple[Entry, ...]) -> list[tuple[Entry, ...]]:
    return [items[:count] for count in range(len(items) + 1)]


@given(entries)
def test_what_is_written_is_read(items: list[Entry]) -> None:
    data, chain = new_journal(HEADER, items)
    scan = scan_journal(data)
    assert (scan.header, scan.entries, scan.size, scan.chain) == (HEADER, tuple(items), len(data), chain)


@given(entries, st.data())
def test_a_torn_journal_reads_as_its_whole_frames(items: list[Entry], data: st.DataObject) -> None:
    journal, _ = new_journal(HEADER, items)
    ends = [len(new_journal(HEADER, items[:count])[0]) for count in range(len(items) + 1)]
    cut = data.draw(st.integers(0, len(journal)))
    tail = data.draw(st.binary(max_size=30))
    scan = scan_journal(journal[:cut] + tail)
    whole = sum(end <= cut for end in ends)
    if journal[:cut] + tail == journal[: cut + len(tail)]:
        whole = sum(end <= cut + len(tail) for end in ends)  # the tail happened to be what was cut off
    assert scan.entries == tuple(items[: max(0, whole - 1)])
    assert (scan.header is None) == (whole == 0)


def test_every_flipped_bit_ends_the_journal_before_its_frame() -> None:
    journal, _ = new_journal(HEADER, SMALL)
    ends = [len(new_journal(HEADER, SMALL[:count])[0]) for count in range(len(SMALL) + 1)]
    for bit in range(8 * len(journal)):
        damaged = bytearray(journal)
        damaged[bit // 8] ^= 1 << bit % 8
        scan = scan_journal(bytes(damaged))
        whole = sum(end <= bit // 8 for end in ends)
        assert scan.entries == SMALL[: max(0, whole - 1)]
        assert scan.size == (ends[whole - 1] if whole else 0)


def test_a_frame_is_valid_only_behind_the_frames_it_was_written_behind() -> None:
    start, chain = new_journal(HEADER, [])
    first, after_first = encode_frame(chain, written(b"old", 1))
    second, _ = encode_frame(after_first, written(b"older still", 2))
    other, _ = encode_frame(chain, written(b"new", 3))
    assert scan_journal(start + other + second).entries == (written(b"new", 3),)
    assert scan_journal(start + first + first).entries == (written(b"old", 1),)
    foreign, _ = new_journal(Header(64, b"other model", b"layout", b"secret"), [])
    assert scan_journal(foreign + first).entries == ()


def test_an_entry_of_a_later_version_ends_the_journal() -> None:
    start, chain = new_journal(HEADER, [])
    with_too_few_digests, _ = encode_frame(chain, Written(b"r", (1, 2), bytes(DIGEST_BYTES)))
    assert scan_journal(start + with_too_few_digests).entries == ()
    header_in_an_entrys_place, _ = encode_frame(chain, HEADER)
    assert scan_journal(start + header_in_an_entrys_place).entries == ()


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_no_bytes_raise(data: bytes) -> None:
    assert scan_journal(data).header is None
    assert scan_journal(MAGIC + data).header is None

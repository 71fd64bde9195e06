"""The disk tier's journal as bytes: what was written to which slots, in a form that can tear anywhere.

    MAGIC  frame(header)  frame(entry)  frame(entry)  ...

A frame is ``length (4 bytes, little-endian) | chain (16 bytes) | body (length bytes, msgpack)``, and
``chain = blake2b-128(chain of the frame before | body)``, the first one's being MAGIC itself. So a
frame is valid only after exactly the frames that it was written after: whatever a torn write, a
flipped bit or an older file left behind never reads as an entry, and the valid part of a journal is
always a prefix of what was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TypeVar

import msgspec

__all__ = [
    "CHAIN_BYTES",
    "DIGEST_BYTES",
    "MAGIC",
    "Entry",
    "Header",
    "Scan",
    "Wiped",
    "Written",
    "encode_frame",
    "new_journal",
    "page_digest",
    "scan_journal",
]

MAGIC = b"milepost disk cache 1\n"  # the number is the format's version
CHAIN_BYTES = 16
DIGEST_BYTES = 16
_LENGTH_BYTES = 4
_FRAME_BYTES = _LENGTH_BYTES + CHAIN_BYTES


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Whose pages these are. Any difference makes the journal foreign.

    Attributes:
        page_bytes: bytes of a page.
        fingerprint: of the model.
        layout: how a page is cut.
        secret_digest: of the hash secret, without which no key in a record can match.
    """

    page_bytes: int
    fingerprint: bytes
    layout: bytes
    secret_digest: bytes


class Written(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="written"):
    """These slots hold pages with these contents.

    Attributes:
        record: what makes them findable; empty if nothing does.
        slots: where they lie, each once.
        digests: `page_digest` of each slot's page, one after the other.
    """

    record: bytes
    slots: tuple[int, ...]
    digests: bytes


class Wiped(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="wiped"):
    """These slots are about to be overwritten: they hold nothing, and what needed them is gone."""

    slots: tuple[int, ...]


Entry = Written | Wiped


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal's bytes hold.

    Attributes:
        header: None if there is no valid one; nothing else is then valid.
        entries: the valid ones, oldest first.
        size: bytes of the valid part.
        chain: of its last frame.
    """

    header: Header | None
    entries: tuple[Entry, ...] = ()
    size: int = 0
    chain: bytes = MAGIC


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(Header)
_entry_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)

_Body = TypeVar("_Body", Header, Entry)


def page_digest(page: bytes | bytearray | memoryview) -> bytes:
    """What a page's content is recognised by (blake2b, 128 bits): other content never passes for it."""
    return hashlib.blake2b(page, digest_size=DIGEST_BYTES).digest()


def encode_frame(chain: bytes, item: Header | Entry) -> tuple[bytes, bytes]:
    """The frame of `item` after a frame with `chain`, and its own chain."""
    body = _encoder.encode(item)
    own = _chain(chain, body)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + own + body, own


def new_journal(header: Header, entries: Iterable[Entry]) -> tuple[bytes, bytes]:
    """A whole journal, and the chain of its last frame."""
    frame, chain = encode_frame(MAGIC, header)
    parts = [MAGIC, frame]
    for entry in entries:
        frame, chain = encode_frame(chain, entry)
        parts.append(frame)
    return b"".join(parts), chain


def scan_journal(data: bytes) -> Scan:
    """Read the valid part of a journal; never raises, whatever the bytes are."""
    if not data.startswith(MAGIC):
        return Scan(header=None)
    first = _next_frame(data, len(MAGIC), MAGIC, _header_decoder)
    if first is None:
        return Scan(header=None)
    header, at, chain = first
    entries: list[Entry] = []
    while (found := _next_frame(data, at, chain, _entry_decoder)) is not None:
        entry, at, chain = found
        entries.append(entry)
    return Scan(header=header, entries=tuple(entries), size=at, chain=chain)


def _next_frame(
    data: bytes, at: int, chain: bytes, decoder: msgspec.msgpack.Decoder[_Body]
) -> tuple[_Body, int, bytes] | None:
    """The frame at `at`: its item, where the next one begins, its chain; None if there is no valid one."""
    body_at = at + _FRAME_BYTES
    end = body_at + int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
    if body_at > len(data) or end > len(data):
        return None
    body = data[body_at:end]
    own = _chain(chain, body)
    if data[at + _LENGTH_BYTES : body_at] != own:
        return None
    try:
        item = decoder.decode(body)
    except msgspec.MsgspecError:
        return None  # written by something that knows more than we do
    if isinstance(item, Written) and len(item.digests) != DIGEST_BYTES * len(item.slots):
        return None
    return item, end, own


def _chain(before: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(before + body, digest_size=CHAIN_BYTES).digest()

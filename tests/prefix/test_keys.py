"""Keys of prefixes: what they depend on, and what they do not."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import ConfigError, InputError, InvariantError
from milepost.prefix.keys import KEY_BYTES, KeyChain, KeyHasher

SECRET = bytes(range(32))
MAX_TOKEN = 2**32 - 1

tokens_of = st.lists(st.integers(0, 1) | st.integers(0, MAX_TOKEN), max_size=40)
units = st.integers(1, 9)


def chain_of(tokens: Sequence[int], unit: int = 4, *, salt: str = "", secret: bytes = SECRET) -> KeyChain:
    chain = KeyHasher(unit, secret).chain(salt)
    chain.extend(tokens)
    return chain


def all_keys(tokens: Sequence[int], unit: int = 4, *, salt: str = "", secret: bytes = SECRET) -> list[bytes]:
    """The key of every position."""
    chain = chain_of(tokens, unit, salt=salt, secret=secret)
    return [chain.key_at(tokens, position) for position in range(len(tokens) + 1)]


def spelled_out(tokens: Sequence[int], unit: int, salt: str, position: int) -> bytes:
    """The docstring's formula, one step after the other, with a fresh hash for each."""

    def one(person: bytes, *parts: bytes) -> bytes:
        return hashlib.blake2b(b"".join(parts), digest_size=16, key=SECRET, person=person).digest()

    key = one(b"milepost root", salt.encode())
    for start in range(0, position, unit):
        segment = tokens[start : min(start + unit, position)]
        person = b"milepost full" if len(segment) == unit else b"milepost tail"
        key = one(person, key, struct.pack(f"<{len(segment)}I", *segment))
    return key


def test_keys_stay_the_same_from_version_to_version() -> None:
    """A cache on disk is found again only if they do."""
    chain = chain_of(range(10), 4, salt="tenant")
    assert chain.root.hex() == "7b91d79f1604054e345582f1d4da8bac"
    assert [key.hex() for key in chain.full] == [
        "527e5506f318e9f239aaa5aae735b0ce",
        "f1fe4d9d268a23e65b449e7f4b441787",
    ]
    assert chain.key_at(range(10), 10).hex() == "3b14b4d5ae8efa9f8c3e9267013397e6"


@given(tokens=tokens_of, unit=units, salt=st.text(max_size=4))
def test_keys_are_the_documented_formula(tokens: list[int], unit: int, salt: str) -> None:
    expected = [spelled_out(tokens, unit, salt, position) for position in range(len(tokens) + 1)]
    assert all_keys(tokens, unit, salt=salt) == expected


@given(tokens=tokens_of, unit=units, data=st.data())
def test_keys_do_not_depend_on_how_the_chain_grew(tokens: list[int], unit: int, data: st.DataObject) -> None:
    whole = chain_of(tokens, unit)
    grown = KeyHasher(unit, SECRET).chain()
    seen = 0
    while seen < len(tokens):
        seen = data.draw(st.integers(seen + 1, len(tokens)))
        if data.draw(st.booleans()):
            grown.extend(tokens[:seen])
        else:
            position = data.draw(st.integers(0, seen))
            assert grown.key_at(tokens[:seen], position) == whole.key_at(tokens, position)
    grown.extend(tokens)
    assert grown.full == whole.full
    assert len(whole.full) == len(tokens) // unit


@given(first=tokens_of, second=tokens_of, unit=units)
def test_two_sequences_share_the_keys_of_their_common_prefix_alone(
    first: list[int], second: list[int], unit: int
) -> None:
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    a, b = all_keys(first, unit), all_keys(second, unit)
    assert a[: common + 1] == b[: common + 1]
    assert not set(a[common + 1 :]) & set(b)
    assert not set(b[common + 1 :]) & set(a)


def test_every_position_has_a_key_of_its_own() -> None:
    keys = all_keys([0] * 100, 16)
    assert len(set(keys)) == 101
    assert {len(key) for key in keys} == {KEY_BYTES}


def test_full_keys_lie_at_whole_units() -> None:
    tokens = range(9)
    chain = chain_of(tokens, 4)
    assert chain.key_at(tokens, 0) == chain.root
    assert [chain.key_at(tokens, p) for p in (4, 8)] == chain.full
    assert not {chain.key_at(tokens, p) for p in (1, 2, 3, 5, 6, 7, 9)} & {chain.root, *chain.full}


def test_a_tail_key_is_no_full_key_of_another_unit() -> None:
    """The same tokens behind the same parent: a tail of unit 8 and a unit of 4."""
    tail = KeyHasher(8, SECRET).chain().key_at((1, 2, 3, 4), 4)
    (full,) = chain_of((1, 2, 3, 4), 4).full
    assert tail != full


def test_salts_share_nothing() -> None:
    tokens = range(20)
    keys = [all_keys(tokens, salt=salt) for salt in ("", "a", "b", "ab", "\ud800")]
    assert len({key for of_one in keys for key in of_one}) == 5 * 21


def test_secrets_share_nothing() -> None:
    tokens = range(20)
    keys = [all_keys(tokens, secret=secret) for secret in (SECRET, SECRET[::-1], b"0" * 16, b"0" * 64)]
    assert len({key for of_one in keys for key in of_one}) == 4 * 21


def test_a_hasher_without_a_secret_draws_one() -> None:
    first, second = KeyHasher(4), KeyHasher(4)
    assert first.chain().root == first.chain().root
    assert first.chain().root != second.chain().root


class CountedTokens(list[int]):
    """Tokens that count how many of them were read."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(tokens)
        self.read = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.read += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the whole context was read")


def test_growing_by_one_token_reads_each_token_once() -> None:
    tokens = CountedTokens(range(1000))
    chain = KeyHasher(16, SECRET).chain()
    chain.extend(tokens)
    assert tokens.read == 992
    for token in range(100):
        tokens.append(token)
        chain.extend(tokens)
    assert tokens.read == 1100 - 1100 % 16
    chain.key_at(tokens, 555)
    assert tokens.read == 1100 - 1100 % 16 + 555 % 16


@pytest.mark.parametrize("kind", [list, tuple, range, bytes])
def test_any_sequence_of_ids_will_do(kind: type) -> None:
    tokens = range(10) if kind is range else kind(range(10))
    assert all_keys(tokens) == all_keys(list(range(10)))


@pytest.mark.parametrize("wrong", [-1, MAX_TOKEN + 1, 2**64, 1.0, None, "7"])
def test_a_wrong_token_is_an_error_and_leaves_the_chain(wrong: object) -> None:
    good = list(range(9))
    bad: list = [*good, wrong, 1, 1]
    chain = chain_of(good)
    before = list(chain.full)
    with pytest.raises(InputError, match=rf"from 0 to 4294967295. Given: {wrong!r}\."):
        chain.extend(bad)
    with pytest.raises(InputError, match="Given"):
        chain.key_at(bad, 10)
    assert chain.full == before


def test_the_largest_token_is_none_of_the_others() -> None:
    assert not set(all_keys([MAX_TOKEN] * 4)[1:]) & set(all_keys([0] * 4)[1:])


@pytest.mark.parametrize("size", [0, 15, 65])
def test_a_secret_of_a_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"16 to 64 bytes. Given: {size} bytes"):
        KeyHasher(16, b"x" * size)


def test_an_empty_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"at least 1 token\. Given: 0"):
        KeyHasher(0)


def test_a_shrunken_sequence_is_a_bug() -> None:
    chain = chain_of(range(8))
    with pytest.raises(InvariantError, match="8 hashed tokens was given only 7"):
        chain.extend(range(7))


@pytest.mark.parametrize("position", [-1, 11])
def test_a_position_outside_the_tokens_is_a_bug(position: int) -> None:
    with pytest.raises(InvariantError, match="outside the 10 tokens"):
        chain_of(range(10)).key_at(range(10), position)

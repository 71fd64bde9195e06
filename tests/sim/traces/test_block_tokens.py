"""Prompts of blocks as sequences, and their keys: equal exactly where the trace says that tokens are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import ConfigError, InputError
from milepost.sim.replay.keys import BlockHasher
from milepost.sim.traces.block_tokens import BlockTokens, runs_of

SIZES = st.sampled_from([2, 3, 16, 64])


@st.composite
def prompts(draw: st.DrawFn, block_size: int) -> BlockTokens:
    ids = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True))
    last = draw(st.integers(1, block_size))
    return BlockTokens(runs_of(ids), (len(ids) - 1) * block_size + last, block_size)


@given(st.lists(st.integers(0, 9)))
def test_runs_spell_their_ids(ids: list[int]) -> None:
    runs = runs_of(ids)
    assert list(itertools.chain(*runs)) == ids
    assert all(len(run) for run in runs)


@given(st.data(), SIZES)
def test_it_reads_like_the_list_of_its_tokens(data: st.DataObject, size: int) -> None:
    prompt = data.draw(prompts(size))
    tokens = prompt.copy()
    for _ in range(data.draw(st.integers(0, 3))):
        tokens.append(7)
    spelled = list(tokens)
    assert len(tokens) == len(spelled) == prompt.num_prompt + len(tokens) - len(prompt)
    low = data.draw(st.integers(-5, len(tokens) + 5))
    high = data.draw(st.one_of(st.none(), st.integers(-5, len(tokens) + 5)))
    assert list(tokens[low:high]) == spelled[low:high]
    assert list(tokens[low:high][1:]) == spelled[low:high][1:]
    assert tokens[-1] == spelled[-1]
    blocks = -(-prompt.num_prompt // size)
    first, end = sorted((data.draw(st.integers(0, blocks)), data.draw(st.integers(0, blocks))))
    whole = [spelled[block * size] // size for block in range(blocks)]
    assert prompt.block_ids(first, end) == whole[first:end]
    with pytest.raises(IndexError):
        tokens[len(tokens)]


def test_a_copy_grows_by_itself_and_what_is_drawn_equals_nothing() -> None:
    prompt = BlockTokens(runs_of([5, 6]), 100, 64)
    one, other = prompt.copy(), prompt.copy()
    one.append(1)
    assert (len(prompt), len(one), len(other)) == (100, 101, 100)
    other.append(1)
    assert one[:100][3] == other[:100][3]
    assert one[100] != other[100]
    assert one[100] != one[99]


@pytest.mark.parametrize(("ids", "tokens"), [([1], 65), ([1, 2], 64), ([], 1)])
def test_ids_must_fit_the_tokens(ids: list[int], tokens: int) -> None:
    with pytest.raises(InputError, match=f"{tokens} tokens need"):
        BlockTokens(runs_of(ids), tokens, 64)


@given(st.data(), SIZES, st.sampled_from([1, 2, 3]), st.booleans())
def test_keys_are_equal_exactly_where_prefixes_are(
    data: st.DataObject, size: int, factor: int, finer: bool
) -> None:
    unit = size // factor if finer and size % factor == 0 else size * factor
    hasher = BlockHasher(unit, size)
    one, other = data.draw(prompts(size)), data.draw(prompts(size))
    chains = hasher.chain(), hasher.chain()
    for chain, prompt in zip(chains, (one, other), strict=True):
        chain.extend(prompt)
        chain.extend(prompt)  # nothing more happens
        assert len(chain.full) == len(prompt) // unit
        keys = [chain.key_at(prompt, position) for position in range(len(prompt) + 1)]
        assert len(set(keys)) == len(keys)
        assert chain.full == keys[unit::unit]
    for position in range(1, min(len(one), len(other)) + 1):
        block = (position - 1) // size
        # Ids are chained: the same id means that all before is the same.
        same = one.block_id(block) == other.block_id(block)
        assert (chains[0].key_at(one, position) == chains[1].key_at(other, position)) == same


def test_keys_reach_into_what_is_drawn_and_are_nobody_elses() -> None:
    chain = BlockHasher(64, 64).chain()
    one, other = (BlockTokens(runs_of([3]), 64, 64).copy() for _ in range(2))
    one.append(0)
    other.append(0)
    assert chain.key_at(one, 64) == chain.key_at(other, 64)
    assert chain.key_at(one, 65) != chain.key_at(other, 65)


@pytest.mark.parametrize("unit", [0, -16, 24, 96])
def test_a_unit_must_fit_the_blocks(unit: int) -> None:
    with pytest.raises(ConfigError, match=f"Given: {unit}"):
        BlockHasher(unit, 64)


def test_keys_need_blocks() -> None:
    with pytest.raises(InputError, match="tuple"):
        BlockHasher(64, 64).chain().extend((1, 2, 3))

"""The lcm layout's numbers, and its pool under random operations: a large page is free when all of it is."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest

from milepost.config import EngineConfig
from milepost.config_json import read_model_spec
from milepost.errors import ConfigError, InvariantError
from milepost.memory.lcm import LcmLayout, lcm_layout
from milepost.memory.lcm_pool import LcmPool
from milepost.memory.named_layout import named_layout, simulated_layout
from milepost.memory.page_states import PageState
from milepost.memory.pool import Lease
from milepost.memory.tables import SequencePages
from milepost.model_spec import ModelSpec
from tests.model_specs import SMALL

MODELS = Path(__file__).parents[2] / "milepost" / "assets" / "models"


def model(name: str) -> ModelSpec:
    return read_model_spec(MODELS / name)


def test_three_states_of_a_layer_are_a_common_multiple_for_k3() -> None:
    layout = lcm_layout(model("kimi-k3"))
    assert layout.large_bytes == math.lcm(6_512_640, 73_728) == 3 * 6_512_640 == 265 * 73_728
    assert (layout.pages_per_large, layout.left_over_bytes) == (11, 73_728)
    assert (layout.large_per_state, layout.state_padding_bytes) == (23, 0)
    assert layout.state_bytes == 449_372_160


@pytest.mark.parametrize("name", ["kimi-k3", "kimi-linear"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("block_size", [16, 64, 512])
def test_large_pages_are_multiples_that_waste_little(name: str, ranks: int, block_size: int) -> None:
    spec = model(name)
    layout = lcm_layout(spec, block_size=block_size, tensor_parallel=ranks)
    layer_block = block_size * spec.mla.row_dim * 2
    assert layout.large_bytes % layer_block == 0
    assert layout.page_bytes <= layout.large_bytes <= max(layout.state_bytes, layout.page_bytes * 2)
    slots = layout.large_bytes * layout.large_per_state
    assert slots >= layout.state_bytes
    # A block of 512 tokens is nearly as large as an eighth of a layer's state: nothing divides that well.
    assert layout.waste < (0.2 if block_size < 512 or ranks < 8 else 1.5)
    assert layout.pages_per_state % layout.pages_per_large == 0


def test_an_exploding_multiple_is_brought_down_by_padding() -> None:
    layout = lcm_layout(model("kimi-linear"), tensor_parallel=8)
    layer_state, layer_block = 271_360, 73_728
    assert math.lcm(layer_state, layer_block) > layout.state_bytes
    assert layout.large_bytes % (4 * layer_block) == 0  # a layer's state is padded to four blocks
    assert layout.large_bytes <= layout.state_bytes


def test_the_engine_refuses_it_and_the_simulator_knows_it() -> None:
    with pytest.raises(ConfigError, match=r"only the simulator.*layout must be one of paged, aligned"):
        EngineConfig(model="m", layout="lcm")
    with pytest.raises(ConfigError, match="layout must be one of paged, aligned"):
        named_layout("lcm", SMALL, block_size=64)
    assert isinstance(simulated_layout("lcm", SMALL, block_size=64), LcmLayout)
    with pytest.raises(ConfigError, match=r"paged, aligned, lcm.*Did you mean 'lcm'"):
        simulated_layout("lcn", SMALL, block_size=64)
    with pytest.raises(ConfigError, match="block_size must be at least 1"):
        lcm_layout(SMALL, block_size=0)


# -- the pool -----------------------------------------------------------------------------------------


def own(pool: LcmPool, lease: Lease, count: int) -> tuple[int, ...]:
    """Reserve and write `count` small pages."""
    pages = pool.reserve(lease, count)
    assert pages is not None
    pool.begin_step(lease, pages)
    pool.end_step(lease, pages)
    return pages


def test_a_life_gathers_its_kv_in_its_own_large_page() -> None:
    pool = LcmPool(3, 4)
    one, other = pool.open("one"), pool.open("other")
    first, second = own(pool, one, 1), own(pool, other, 2)
    assert (pool.num_free, pool.spare(one), pool.spare(other)) == (4, 3, 2)
    first += own(pool, one, 3)
    assert {(page - 1) // 4 for page in first} == {(first[0] - 1) // 4}
    assert {(page - 1) // 4 for page in second} != {(first[0] - 1) // 4}
    pool.release(one, first)
    pool.close(one)
    assert (pool.num_free, pool.num_evictable) == (8, 0)
    pool.check()


def test_what_is_left_of_a_large_page_is_of_no_use_until_the_rest_goes() -> None:
    pool = LcmPool(1, 4)
    lease = pool.open("a")
    pages = own(pool, lease, 4)
    pool.share(pages)
    pool.release(lease, pages)
    pool.close(lease)
    assert (pool.num_free, pool.num_evictable) == (0, 4)
    pool.drop(pages[:3])
    assert (pool.num_free, pool.num_evictable) == (0, 4)
    pool.hold(pages[3:])
    assert pool.num_evictable == 0
    pool.unhold(pages[3:])
    pool.drop(pages[3:])
    assert (pool.num_free, pool.num_evictable) == (4, 0)
    pool.check()


def test_a_state_takes_whole_large_pages_and_leaves_spare_ones_to_kv() -> None:
    pool = LcmPool(4, 4)
    lease = pool.open("a")
    own(pool, lease, 1)
    state = pool.reserve_state(lease, 8)
    assert state is not None
    assert len({(page - 1) // 4 for page in state}) == 2
    assert pool.spare(lease) == 3
    assert pool.reserve_state(lease, 8) is None
    with pytest.raises(InvariantError, match="whole large ones"):
        pool.reserve_state(lease, 3)
    pool.check()


def test_it_is_as_large_as_it_is() -> None:
    with pytest.raises(ConfigError, match="Given: 0 of 4"):
        LcmPool(0, 4)
    pool = LcmPool(1, 4)
    pool.ensure_free(4)
    with pytest.raises(InvariantError, match="can't be made"):
        pool.ensure_free(5)


class RandomLives:
    """Lives that grow, leave snapshots, share what they wrote and end, in any order."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.layout = LcmLayout(
            block_size=2, page_bytes=10, large_bytes=35, slot_bytes=35, large_per_state=2, state_bytes=61
        )
        self.pool = LcmPool(12, self.layout.pages_per_large)
        self.lives: list[tuple[SequencePages, int]] = []
        self.cached: list[tuple[int, ...]] = []
        self.held: list[tuple[int, ...]] = []

    def step(self) -> None:
        action = self.random.choice(
            [self.begin, self.grow, self.grow, self.snapshot, self.end, self.use, self.evict]
        )
        action()
        self.pool.check()
        counts = self.pool.counts()
        assert self.pool.num_free <= counts.free
        assert self.pool.num_free + self.pool.num_evictable <= counts.free + counts.cached

    def begin(self) -> None:
        self.lives.append((SequencePages("life", self.layout, self.pool), 0))

    def grow(self) -> None:
        if not self.lives:
            return
        index = self.random.randrange(len(self.lives))
        pages, length = self.lives[index]
        wanted = length + self.random.randint(1, 9)
        lacking = pages.lacking(wanted)
        fits = lacking <= self.pool.num_free
        assert pages.grow(wanted) == fits
        if fits:
            pages.begin_step()
            pages.end_step()
            pages.check(wanted)
            self.lives[index] = (pages, wanted)
            reach = pages.tokens_within_reach(self.pool.num_free)
            assert pages.lacking(reach) <= self.pool.num_free < pages.lacking(reach + 1)

    def snapshot(self) -> None:
        grown = [pages for pages, length in self.lives if length]
        if not grown:
            return
        pages = self.random.choice(grown)
        fits = self.layout.pages_per_state <= self.pool.num_free
        ordered = pages.order_snapshot()
        assert (ordered is not None) == fits
        if ordered is not None:
            pages.begin_step()
            pages.end_step()
            if self.random.random() < 0.7:
                self.pool.share(ordered)
                self.cached.append(ordered)
            pages.settle_snapshots()

    def end(self) -> None:
        if not self.lives:
            return
        pages, _ = self.lives.pop(self.random.randrange(len(self.lives)))
        kept = list(pages.block_table)[: self.random.randint(0, len(pages.block_table))]
        for page in kept:
            self.pool.share((page,))
            self.cached.append((page,))
        pages.release(tainted=self.random.random() < 0.2)
        self.pool.take_tainted()

    def use(self) -> None:
        if self.held and self.random.random() < 0.5:
            self.pool.unhold(self.held.pop(self.random.randrange(len(self.held))))
        elif self.cached:
            pages = self.random.choice(self.cached)
            self.pool.hold(pages)
            self.held.append(pages)

    def evict(self) -> None:
        loose = [pages for pages in self.cached if pages not in self.held]
        owned = {page for pages, _ in self.lives for page in (*pages.block_table, *pages.state_table)}
        loose = [pages for pages in loose if not owned.intersection(pages)]
        if loose:
            pages = self.random.choice(loose)
            self.cached.remove(pages)
            self.pool.drop(pages)


@pytest.mark.parametrize("seed", range(12))
def test_random_lives_keep_the_count_of_large_pages(seed: int) -> None:
    lives = RandomLives(seed)
    for _ in range(250):
        lives.step()
    while lives.held:
        lives.pool.unhold(lives.held.pop())
    while lives.lives:
        lives.end()
    evictable = lives.pool.num_evictable
    free = lives.pool.num_free
    assert free + evictable == lives.pool.num_usable
    for pages in lives.cached:
        lives.pool.drop(pages)
    lives.pool.check()
    assert lives.pool.num_free == lives.pool.num_usable
    assert all(lives.pool.state_of(page) is PageState.FREE for page in range(1, lives.pool.num_pages))

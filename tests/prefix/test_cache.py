"""The cache as the scheduler uses it, call by call."""

from __future__ import annotations

import pytest

from milepost.errors import ConfigError, InvariantError
from milepost.memory.pool import Lease, PagePool
from milepost.prefix.cache import PrefixCache
from milepost.prefix.config import CacheConfig
from milepost.prefix.plan import PlannedSnapshot, Reason
from milepost.prefix.reports import CacheStats
from milepost.prefix.trail import Trail
from milepost.types import Tier
from tests.scheduler.harness import SmallLayout, cache_config, prompt_of, request

PROMPT = prompt_of(10)


class Desk:
    """A cache and what a scheduler would do with it."""

    def __init__(self, policy: str = "none", num_pages: int = 60) -> None:
        self.now = 0.0
        self.pool = PagePool(num_pages)
        self.cache = PrefixCache(
            cache_config(match_unit=4, snapshot_policy=policy),
            SmallLayout(),
            self.pool,
            clock=lambda: self.now,
        )
        self.leases: dict[int, tuple[Lease, list[int]]] = {}

    def open(self, prompt: tuple[int, ...] = PROMPT, salt: str = "") -> Trail:
        return self.cache.open(request("a", prompt, salt=salt))

    def begin(self, trail: Trail, tokens: tuple[int, ...] = PROMPT) -> tuple[list[int], int | None]:
        match = self.cache.look_up(trail, tokens)
        self.cache.guard(match)
        return self.cache.begin(trail, match, tokens)

    def written(self, count: int) -> list[int]:
        lease = self.pool.open("writer")
        pages = [*(self.pool.reserve(lease, count) or ())]
        self.pool.begin_step(lease, pages)
        self.pool.end_step(lease, pages)
        self.leases[lease.generation] = lease, pages
        return pages

    def release(self) -> None:
        for lease, pages in self.leases.values():
            self.pool.release(lease, pages)
            self.pool.close(lease)
        self.leases.clear()

    def publish(self, trail: Trail, *positions: int, tokens: tuple[int, ...] = PROMPT) -> list[int]:
        """All tokens are computed, in pages of their own, and snapshots left at `positions`."""
        table = self.written(-(-len(tokens) // 4))
        self.cache.publish(trail, tokens, len(tokens), table)
        for position in positions:
            planned = PlannedSnapshot(position, Reason.TURN)
            self.cache.publish_snapshot(trail, tokens, planned, self.written(2), table)
        self.cache.check()
        return table

    def serve(self, *positions: int, tokens: tuple[int, ...] = PROMPT) -> list[int]:
        """A whole request."""
        trail = self.open(tokens)
        self.begin(trail, tokens)
        table = self.publish(trail, *positions, tokens=tokens)
        self.cache.end(trail)
        self.release()
        return table

    def stats(self) -> CacheStats:
        self.cache.check()
        return self.cache.stats()


def test_a_look_up_changes_nothing() -> None:
    desk = Desk()
    desk.serve(6)
    before = desk.stats()
    match = desk.cache.look_up(desk.open(), PROMPT)
    assert (match.hit, match.matched) == (6, 8)
    assert desk.cache.look_up(desk.open(salt="other"), PROMPT).hit == 0
    assert desk.stats() == before


def test_a_guard_keeps_path_and_snapshot_and_is_given_back() -> None:
    desk = Desk()
    desk.serve(6)
    match = desk.cache.look_up(desk.open(), PROMPT)
    free, evictable = desk.pool.num_free, desk.pool.num_evictable
    desk.cache.guard(match)
    # Two blocks and the state; the second block is also the unguarded unit's, in the same page.
    assert desk.pool.num_evictable == evictable - 4
    assert not desk.cache.make_room(free + evictable)
    desk.cache.unguard(match)
    assert desk.pool.num_evictable == evictable
    nothing = desk.cache.look_up(desk.open(), PROMPT[:1])
    desk.cache.guard(nothing)
    desk.cache.unguard(nothing)
    assert desk.cache.make_room(free + evictable)
    desk.cache.check()


def test_a_life_shares_whole_blocks_and_names_the_block_to_copy() -> None:
    desk = Desk()
    table = desk.serve(6, 8)
    trail = desk.open()
    assert desk.begin(trail) == (table[:2], None), "8 is a block's end"
    desk.cache.end(trail)
    short = desk.open(PROMPT[:8])
    assert desk.begin(short, PROMPT[:8]) == (table[:1], table[1])
    desk.cache.end(short)
    assert desk.begin(desk.open(PROMPT[:3]), PROMPT[:3]) == ([], None)


def test_only_the_consumed_snapshot_is_refreshed() -> None:
    """R16: not its whole path."""
    desk = Desk()
    desk.serve(4, 8)
    desk.now = 5.0
    trail = desk.open()
    desk.begin(trail)
    used = {one.position: (one.used_at, one.hits) for one in desk.cache.index.snapshots}
    assert used == {4: (0.0, 0), 8: (5.0, 1)}


def test_a_source_is_pinned_until_its_copy_has_run() -> None:
    desk = Desk()
    desk.serve(8)
    trail = desk.open()
    desk.begin(trail)
    (snapshot,) = desk.cache.index.snapshots
    assert snapshot.pins == 1
    desk.cache.copied(trail)
    desk.cache.copied(trail)
    assert (snapshot.pins, trail.source) == (0, None)
    assert desk.cache.index.clear() == 1, "the state may go, the KV that is shared stays"
    assert desk.cache.look_up(trail, PROMPT).matched == 8
    desk.cache.end(trail)
    assert desk.cache.make_room(desk.pool.num_usable)


def test_two_that_compute_the_same_publish_it_once() -> None:
    desk = Desk()
    one, other = desk.open(), desk.open()
    desk.begin(one)
    desk.begin(other)
    first = desk.publish(one, 6)
    second = desk.publish(other, 6)
    desk.cache.end(one)
    desk.cache.end(other)
    desk.release()
    assert (desk.stats().snapshots_written, desk.stats().snapshots_withdrawn) == (1, 1)
    assert [desk.pool.references(page) > 0 for page in first] == [True, True, False]
    assert not any(desk.pool.references(page) for page in second)
    assert desk.stats().state_pages == 2


def test_units_are_published_as_they_are_completed() -> None:
    desk = Desk()
    trail = desk.open()
    desk.begin(trail)
    table = desk.written(3)
    for computed, matched in ((3, 0), (4, 4), (7, 4), (9, 8), (9, 8)):
        desk.cache.publish(trail, PROMPT, computed, table)
        assert desk.cache.explain(PROMPT).matched_tokens == matched
    desk.cache.check()


def test_what_stands_is_due_and_gets_no_room() -> None:
    desk = Desk("every(3)")
    desk.serve(6)
    trail = desk.open()
    desk.begin(trail, PROMPT[:4])
    due = desk.cache.due(trail, 0, 10, PROMPT)
    assert [one.position for one in due] == [3, 6, 9]
    assert [desk.cache.room_for_snapshot(trail, PROMPT, one) for one in due] == [True, False, True]
    assert desk.stats().snapshots_skipped == 0
    assert desk.cache.due(trail, 10, 11, PROMPT) == []


def test_a_private_life_neither_uses_nor_feeds_the_cache() -> None:
    desk = Desk("every(2)+last")
    desk.serve(8)
    trail = desk.open()
    desk.begin(trail)
    desk.cache.copied(trail)
    desk.cache.go_private(trail)
    assert desk.pool.num_evictable == desk.pool.counts().cached, "nothing is held any more"
    assert (trail.private, trail.keep_last, desk.cache.due(trail, 0, 99, PROMPT)) == (True, False, [])
    assert desk.cache.look_up(trail, PROMPT).hit == 0
    longer = (*PROMPT, 0, 1, 1)
    desk.cache.publish(trail, longer, 13, desk.written(4))
    assert desk.cache.explain(longer).matched_tokens == 8
    desk.cache.end(trail)


def test_a_life_that_fails_at_once_takes_its_source_along() -> None:
    """R50: unless another one is copying it right now."""
    desk = Desk()
    desk.serve(8)
    bad, other = desk.open(), desk.open()
    desk.begin(bad)
    desk.begin(other)
    desk.cache.distrust(bad)
    assert desk.stats().snapshots == 1
    desk.cache.distrust(other)
    assert desk.stats().snapshots == 0
    for trail in (bad, other):
        desk.cache.end(trail)
    desk.cache.check()


def test_every_look_is_counted_once_a_request() -> None:
    desk = Desk()
    desk.serve(8)
    trail = desk.open()
    for _ in range(3):
        desk.begin(trail)
        desk.cache.end(trail)
    desk.cache.waited()
    desk.cache.withdrawn(2)
    stats = desk.stats()
    assert (stats.lookups, stats.hits, stats.hit_tokens, stats.looked_up_tokens) == (2, 1, 8, 20)
    assert (stats.waits, stats.snapshots_withdrawn, stats.resets) == (1, 2, 0)
    assert stats.copied_pages == 3 * 2, "but every copy"
    assert (stats.snapshots, stats.state_pages, stats.kv_pages, stats.page_bytes) == (1, 2, 2, 1)
    assert desk.cache.reset() == 1
    assert desk.stats().resets == 1


def test_tiers_are_shown_and_have_their_own_eviction() -> None:
    desk = Desk()
    assert desk.stats().tiers == ()
    assert not desk.cache.add_tiers(10).writes_through
    assert [tier.name for tier in desk.stats().tiers] == [Tier.HOST.value]
    tiers = Desk().cache.add_tiers(10, 20)
    assert tiers.writes_through
    assert [(tier.name, tier.total_pages) for tier in tiers.stats()] == [("host", 9), ("disk", 19)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"match_unit": 0}, "match_unit must be at least 1"),
        ({"secret": b"short"}, "16 to 64 bytes"),
        ({"secret": bytes(65)}, "Given: 65"),
    ],
)
def test_settings_that_can_not_be(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PrefixCache(CacheConfig(**changes), SmallLayout(), PagePool(8))  # type: ignore[arg-type]


def test_a_cache_without_known_policies_is_refused() -> None:
    for config in (CacheConfig(snapshot_policy="evry(3)"), CacheConfig(eviction="lfu")):
        with pytest.raises(ConfigError):
            PrefixCache(config, SmallLayout(), PagePool(9))


def test_ends_that_were_never_begun_are_bugs() -> None:
    desk = Desk()
    desk.serve(8)
    match = desk.cache.look_up(desk.open(), PROMPT)
    with pytest.raises(InvariantError, match="let go more often"):
        desk.cache.unguard(match)


def test_a_budget_of_the_pools_share_holds_a_snapshot_however_small_the_pool_is() -> None:
    PrefixCache(cache_config(snapshot_policy="budget"), SmallLayout(pages_per_state=3), PagePool(5))

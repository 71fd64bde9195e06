"""What the prefix cache tells about itself and about one request."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

__all__ = ["CacheCounts", "CacheStats", "Explanation", "Loss", "PathSnapshot", "TierStats"]


class Loss(enum.Enum):
    """Why tokens of a prompt had to be computed. A request's losses and its hit add up to its tokens."""

    UNSEEN = "unseen"  # nobody sent them before, or so long ago that it is forgotten
    EVICTED_STATE = "evicted_state"  # KV is cached, the snapshot that was there is not any more
    EVICTED_KV = "evicted_kv"  # the KV was cached and is not any more
    NO_SNAPSHOT = "no_snapshot"  # KV is cached, the policy left no snapshot there
    BELOW_UNIT = "below_unit"  # the same, by less than a match unit
    SALT = "salt"  # cached under another salt
    NOT_PUBLISHED = "not_published"  # another request is computing them right now
    NOT_LOADED = "not_loaded"  # in a tier behind the arena: too few to be worth a load, or no room for it
    NO_MEMORY = "no_memory"  # cached, and the request did not fit beside what it would have resumed from
    CAP = "cap"  # the last token, which is always computed


class PathSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot on a prompt's path: where, why, how often it was used, and in which tier it lies."""

    position: int
    reason: str
    hits: int
    tier: str = "arena"


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a prompt hits what it hits.

    Attributes:
        prompt_tokens: tokens of the prompt.
        hit_tokens: tokens that would not be computed; what a tier would load first is among them, here
            and in the two below, as if there were room for it.
        matched_tokens: tokens whose KV is cached.
        deepest_snapshot: position of the deepest snapshot on the prompt's path, the cap ignored.
        snapshots: all snapshots on the path, ascending.
        losses: tokens to be computed, by cause; causes without tokens are left out.
    """

    prompt_tokens: int
    hit_tokens: int
    matched_tokens: int
    deepest_snapshot: int
    snapshots: tuple[PathSnapshot, ...]
    losses: Mapping[str, int]


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tier behind the arena; counts since it was opened."""

    name: str
    snapshots: int
    used_pages: int
    total_pages: int
    hit_tokens: int
    stores: int
    loads: int
    failures: int
    evicted_snapshots: int


class CacheCounts(msgspec.Struct, kw_only=True):
    """What a cache counts as it goes; the fields of `CacheStats` of the same names say what."""

    lookups: int = 0
    looked_up_tokens: int = 0
    hits: int = 0
    hit_tokens: int = 0
    losses: dict[str, int] = msgspec.field(default_factory=lambda: {loss.value: 0 for loss in Loss})
    waits: int = 0
    snapshots_written: int = 0
    snapshots_skipped: int = 0
    snapshots_withdrawn: int = 0
    copied_pages: int = 0
    resets: int = 0

    def add_look_up(self, num_tokens: int, hit: int, losses: Mapping[str, int]) -> None:
        """A request of `num_tokens` tokens was looked up; `hit` and its `losses` add up to them."""
        self.lookups += 1
        self.looked_up_tokens += num_tokens
        self.hits += hit > 0
        self.hit_tokens += hit
        for cause, count in losses.items():
            self.losses[cause] += count


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """The cache at one moment. Numbers up to `snapshots_by_reason` are of now, the rest counts.

    Attributes:
        state_pages: pages of cached snapshots.
        kv_pages: pages of cached KV, those that running requests share included.
        snapshots: cached snapshots.
        snapshots_by_reason: the same by `Reason` value.
        lookups: requests looked up, once each.
        looked_up_tokens: their tokens.
        hits: requests that hit anything.
        hit_tokens: tokens that were not computed.
        losses: tokens computed, by `Loss` value; every cause has an entry.
        waits: times that a request waited for another one's snapshot.
        snapshots_written: snapshots published.
        snapshots_skipped: planned and not left, for lack of memory.
        snapshots_withdrawn: written and not published: aborted, failed, not finite, or there already.
        evicted_snapshots: snapshots dropped for their pages.
        evicted_kv_pages: KV pages dropped.
        copied_pages: pages copied for consumers.
        resets: times that the cache was emptied by hand.
        page_bytes: bytes of a page.
        tiers: the tiers behind the arena, nearest first.
    """

    state_pages: int
    kv_pages: int
    snapshots: int
    snapshots_by_reason: Mapping[str, int]
    lookups: int
    looked_up_tokens: int
    hits: int
    hit_tokens: int
    losses: Mapping[str, int]
    waits: int
    snapshots_written: int
    snapshots_skipped: int
    snapshots_withdrawn: int
    evicted_snapshots: int
    evicted_kv_pages: int
    copied_pages: int
    resets: int
    page_bytes: int
    tiers: tuple[TierStats, ...] = ()

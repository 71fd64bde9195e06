"""A prefix cache that says what a test wants, in place of a scheduler's own."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.prefix.reports import CacheStats, Explanation, Loss, PathSnapshot, TierStats
from milepost.scheduler.scheduler import Scheduler

EXPLANATION = Explanation(
    prompt_tokens=1200,
    hit_tokens=1024,
    matched_tokens=1104,
    deepest_snapshot=1024,
    snapshots=(
        PathSnapshot(position=700, reason="turn", hits=3),
        PathSnapshot(position=1024, reason="spare", hits=0, tier="host"),
    ),
    losses={"unseen": 95, "no_snapshot": 80, "cap": 1},
)

STATS = CacheStats(
    state_pages=12,
    kv_pages=30,
    snapshots=4,
    snapshots_by_reason={"turn": 3, "spare": 1},
    lookups=10,
    looked_up_tokens=5000,
    hits=7,
    hit_tokens=3500,
    losses={loss.value: number for number, loss in enumerate(Loss)},
    waits=2,
    snapshots_written=9,
    snapshots_skipped=1,
    snapshots_withdrawn=3,
    evicted_snapshots=5,
    evicted_kv_pages=6,
    copied_pages=21,
    resets=8,
    page_bytes=1000,
    tiers=(
        TierStats(
            name="host",
            snapshots=2,
            used_pages=40,
            total_pages=100,
            hit_tokens=900,
            stores=11,
            loads=13,
            failures=17,
            evicted_snapshots=19,
        ),
    ),
)


@dataclass
class ScriptedCache:
    """Stands in for what a scheduler says of its cache, and remembers what it was asked."""

    asked: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    resets: int = 0
    error: Exception | None = None

    def install(self, scheduler: Scheduler) -> ScriptedCache:
        """Answer in place of `scheduler`."""
        for name in ("cache_stats", "explain", "reset_cache"):
            setattr(scheduler, name, getattr(self, name))
        return self

    def cache_stats(self) -> CacheStats:
        return STATS

    def explain(self, prompt_token_ids: tuple[int, ...], cache_salt: str = "") -> Explanation:
        if self.error is not None:
            raise self.error
        self.asked.append((prompt_token_ids, cache_salt))
        return EXPLANATION

    def reset_cache(self) -> int:
        if self.error is not None:
            raise self.error
        self.resets += 1
        return STATS.snapshots

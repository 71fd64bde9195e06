"""A run's scheduler, cache and pool, put together from its spec as an engine's are from its options."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from milepost.errors import ConfigError
from milepost.memory.layout import DEFAULT_BLOCK_SIZE, Layout
from milepost.memory.lcm import LcmLayout
from milepost.memory.lcm_pool import LcmPool
from milepost.memory.named_layout import simulated_layout
from milepost.memory.pool import PagePool
from milepost.model_spec import ModelSpec
from milepost.prefix.cache import PrefixCache
from milepost.prefix.config import CacheConfig
from milepost.prefix.eviction import EvictionPolicy, parse_eviction
from milepost.prefix.plan import SnapshotPolicy
from milepost.prefix.policies import parse_policy
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.sim.replay.blockwise import Blockwise
from milepost.sim.replay.endless_pool import EndlessPool
from milepost.sim.replay.flat_layout import FlatLayout
from milepost.sim.replay.keys import BlockHasher
from milepost.sim.replay.watch import WatchedEviction, WatchedPolicy, depth_edges
from milepost.sim.runs import RunSpec
from milepost.sim.traces.trace import Trace

__all__ = ["Parts", "Setup", "layout_and_pool", "parts_of", "pool_of", "set_up"]

MATCH_UNIT = 16
_PROMPTS_IN_BUDGET = 8

# A pool's books take some 60 bytes a page; a budget with more pages than this is out of proportion.
MAX_PAGES = 1 << 23


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What makes one engine's cache different from another's.

    Attributes:
        layout: how states and KV lie in pages.
        layout_name: what results call the layout; "" for the one that was asked for.
        state_bytes: of one snapshot in memory.
        pool: whose pages are shared.
        policy: where snapshots stand.
        eviction: what goes first.
        stop_token_ids: tokens with which the model ends a message.
        cache_type: the cache, for presets that divide memory in another way.
        match_unit: tokens between prefix keys.
        moves_places: whether the policy's places move to whole blocks of a trace that knows no others.
        max_num_seqs: most requests that run at once, 0 for as many as the run allows.
        notes: what a reader of the figures must know.
    """

    layout: Layout
    layout_name: str = ""
    state_bytes: int
    pool: PagePool
    policy: SnapshotPolicy
    eviction: EvictionPolicy
    match_unit: int
    stop_token_ids: tuple[int, ...] = ()
    cache_type: Callable[..., PrefixCache] = PrefixCache
    moves_places: bool = True
    max_num_seqs: int = 0
    notes: tuple[str, ...] = ()


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run drives."""

    parts: Parts
    cache: PrefixCache
    scheduler: Scheduler
    watch: WatchedEviction
    policy: WatchedPolicy


def parts_of(spec: RunSpec, trace: Trace, model: ModelSpec) -> Parts:
    """Our own engine's, as `spec` asks."""
    block_size = spec.block_size or trace.block_or(DEFAULT_BLOCK_SIZE)
    if spec.layout == "lcm" and not spec.block_size:
        # Large pages grow with the block: the trace's may be far longer than anybody would choose.
        block_size = math.gcd(block_size, DEFAULT_BLOCK_SIZE)
    layout = simulated_layout(
        spec.layout,
        model,
        block_size=block_size,
        kv_itemsize=spec.kv_itemsize,
        conv_itemsize=spec.conv_itemsize,
        recurrent_itemsize=spec.state_itemsize,
        tensor_parallel=spec.tensor_parallel,
    )
    used, pool = layout_and_pool(spec.budget_bytes, layout)
    state_bytes = layout.state_bytes + layout.state_padding_bytes
    share = 0 if spec.budget_bytes is None else spec.budget_bytes // _PROMPTS_IN_BUDGET
    policy = parse_policy(spec.policy, state_bytes=state_bytes, budget_bytes=max(share, state_bytes))
    return Parts(
        layout=used,
        state_bytes=state_bytes,
        pool=pool,
        policy=policy,
        eviction=parse_eviction(spec.eviction),
        stop_token_ids=model.stop_token_ids,
        match_unit=spec.match_unit or trace.block_or(MATCH_UNIT),
    )


def layout_and_pool(budget_bytes: int | None, layout: Layout) -> tuple[Layout, PagePool]:
    """`layout` and the pool of a budget.

    Without a budget it makes no difference how many pages a state has, but for the time that they take: then
    the layout is one of small states.

    Raises:
        ConfigError: as `pool_of`.
    """
    pool = pool_of(budget_bytes, layout)
    if budget_bytes is not None:
        return layout, pool
    flat = FlatLayout(
        block_size=layout.block_size,
        page_bytes=layout.page_bytes,
        pages_per_state=min(layout.pages_per_state, 1),
    )
    return flat, pool


def pool_of(budget_bytes: int | None, layout: Layout) -> PagePool:
    """The pool of a budget; the dummy page comes on top.

    Raises:
        ConfigError: not one state and one block fit, or more pages than can be kept count of.
    """
    if budget_bytes is None:
        return EndlessPool()
    if isinstance(layout, LcmLayout):
        return _lcm_pool(budget_bytes, layout)
    pages = budget_bytes // layout.page_bytes
    least = layout.pages_per_state + layout.pages_per_block
    if pages < least:
        raise ConfigError(
            f"A budget must hold at least one state and one KV block, {least * layout.page_bytes:,} bytes. "
            f"Given: {budget_bytes:,}. Give more, or a smaller block size."
        )
    if pages > MAX_PAGES:
        raise ConfigError(
            f"A budget must have at most {MAX_PAGES:,} pages. Given: {pages:,} of {layout.page_bytes:,} B. "
            "Give less, no limit at all, or a larger block size."
        )
    return PagePool(pages + 1)


def _lcm_pool(budget_bytes: int, layout: LcmLayout) -> LcmPool:
    num_large = budget_bytes // layout.large_bytes
    least = layout.large_per_state + 1
    if num_large < least:
        raise ConfigError(
            f"A budget must hold the large pages of one state and one more, {least * layout.large_bytes:,} "
            f"bytes. Given: {budget_bytes:,}. Give more, or a smaller block size."
        )
    return LcmPool(num_large, layout.pages_per_large)


def set_up(parts: Parts, spec: RunSpec, trace: Trace, clock: Callable[[], float]) -> Setup:
    """Put a scheduler and its cache together."""
    longest = max((request.num_prompt + request.num_output for request in trace.requests), default=1)
    watch = WatchedEviction(parts.eviction, depth_edges(longest))
    policy, hasher, unit = parts.policy, None, parts.match_unit
    if trace.block_size > 1:
        if parts.moves_places:
            policy = Blockwise(parts.policy, trace.block_size)
        # Finer keys than the trace's blocks would find nothing more.
        unit = max(unit, trace.block_size)
        hasher = BlockHasher(unit, trace.block_size)
    watched = WatchedPolicy(policy)
    cache = parts.cache_type(
        CacheConfig(match_unit=unit, wait_for_leaders=True),
        parts.layout,
        parts.pool,
        clock=clock,
        hasher=hasher,
        policy=watched,
        eviction=watch,
    )
    config = SchedulerConfig(
        max_model_len=longest + 1,
        token_budget=spec.token_budget,
        max_num_seqs=min(spec.max_num_seqs, parts.max_num_seqs or spec.max_num_seqs),
        stop_token_ids=parts.stop_token_ids,
    )
    scheduler = Scheduler(config, parts.layout, parts.pool, cache)
    return Setup(parts=parts, cache=cache, scheduler=scheduler, watch=watch, policy=watched)

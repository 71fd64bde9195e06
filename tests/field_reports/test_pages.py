"""Group C: NaN, zeroing, padding, page 0."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from milepost.kernels.kda import cpu as kda_cpu
from milepost.kernels.matrix import DenseMatrix
from milepost.kernels.mla_attention import cpu
from milepost.kernels.short_conv import cpu as conv_cpu
from milepost.memory.layout import DUMMY_PAGE
from milepost.types import FinishReason
from tests.field_reports.scenes import serve
from tests.kernels.arenas import kda_arena, kv_arena, ragged
from tests.kernels.kda_cases import make_inputs
from tests.scheduler.harness import World, cache_config, prompt_of, request


@pytest.mark.parametrize("length", [1, 5, 40], ids=["decode", "short", "prefill"])
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 3e38])
def test_r47_what_a_page_held_before_never_shows(length: int, garbage: float) -> None:
    """R47: the other half of a half-filled block is what a float32 state left there: the same bits."""
    rows = ragged([length], [13])
    kv = kv_arena([13 + length], layers=1, block_size=16, row_dim=36, dtype=torch.float32)
    positions = torch.arange(13 + length)
    kv.cache[kv.block_table[0, positions // 16], 0, positions % 16] = torch.randn(13 + length, 36)
    written = torch.isfinite(kv.cache)
    q = torch.randn(length, 2, 12)
    k_b, v_b = DenseMatrix(torch.randn(2, 32, 8)), DenseMatrix(torch.randn(2, 8, 32))

    def attend(rest: float) -> torch.Tensor:
        cache = torch.where(written, kv.cache, torch.tensor(rest))
        return cpu.mla_attention(q, k_b, v_b, None, replace(kv, cache=cache, native=None), 0, rows)

    assert torch.equal(attend(garbage), attend(0.0))


def test_r50_nothing_of_a_step_that_was_not_finite_is_hit_later() -> None:
    """R50: NaN in the middle of a prompt: the request fails, and the same prompt is then served.

    Whatever the steps before it left is sound and may be used; free pages hold NaN the whole time.
    """
    config = cache_config(match_unit=4, snapshot_policy="every(4)")
    world = World(num_pages=40, token_budget=8, cache=config)
    prompt = prompt_of(30)
    world.add(request("first", prompt, 2))
    world.step()
    world.executor.fail_request("first")
    world.run()
    assert world.reason("first") is FinishReason.ERROR
    assert world.cache is not None
    assert world.cache.explain(prompt).matched_tokens == 8
    assert serve(world, "again", prompt) == 8
    assert serve(world, "shortened", prompt[:20]) == 16
    assert serve(world, "someone else", prompt_of(90, 3)) == 0


def test_r54_loads_and_copies_never_name_the_padding_page() -> None:
    """R54: the page that all padding reads is never the target of anything, with every other page in use."""
    config = cache_config(match_unit=4, snapshot_policy="every(4)")
    world = World(num_pages=1 + 14, token_budget=8, cache=config)
    for i in range(6):
        serve(world, f"{i}", prompt_of(18, i % 2))
    assert world.pool.num_free < 14
    named = {page for batch in world.batches for pair in batch.copies for page in pair}
    named |= {page for batch in world.batches for row in batch.rows for page in row.block_table}
    assert named
    assert DUMMY_PAGE not in named | set(world.cached_pages())


def test_r55_three_rows_leave_every_other_page_as_it_was() -> None:
    """R55: a batch of three beside a parked request on the first page: nobody pads, nobody writes there."""
    arena = kda_arena(4, 2, 32, 16).as_dtype(torch.float32)
    everyone = arena.state.table
    parked = int(everyone.argmin() // everyone.shape[1])
    table = torch.cat([everyone[:parked], everyone[parked + 1 :]])
    before = arena.state.recurrent.clone()
    inputs = make_inputs(3, 2, 32).to(torch.float32)
    kda_cpu.kda(*inputs.all(), replace(arena.state, table=table), arena.first_tile, ragged([1, 1, 1]))
    mask = torch.zeros(len(before), dtype=torch.bool)
    mask[replace(arena.state, table=table).tile_ids(arena.first_tile, arena.tiles).flatten()] = True
    after = arena.state.recurrent
    assert torch.equal(after[~mask].view(torch.int32), before[~mask].view(torch.int32))
    assert bool(torch.isfinite(after[mask]).all())


@pytest.mark.parametrize("rows", [[1], [1, 1, 1], [3, 1], [130, 1, 2]])
def test_r56_no_row_is_there_that_nobody_asked_for(rows: list[int]) -> None:
    """R56: outputs have a place for each token and no more, and every one is computed.

    Rows carry their own starts and lengths; nothing is classified from an older step's numbers.
    """
    out_of_nothing = torch.empty
    poisoned = torch.full((sum(rows), 12), float("nan"))
    arena = kda_arena(len(rows), 1, 16, 16, first_tile=0)
    state = replace(arena.state, recurrent=torch.zeros_like(arena.state.recurrent).float())
    state = replace(state, conv=state.recurrent.flatten(1))
    x, weight = torch.randn(sum(rows), 12), torch.randn(4, 12)

    def empty(*size: object, **kind: object) -> torch.Tensor:
        made: torch.Tensor = out_of_nothing(*size, **kind)  # type: ignore[call-overload]
        return made.fill_(float("nan")) if made.is_floating_point() else made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        got = conv_cpu.short_conv(x, weight, state, 0, ragged(rows))
    assert got.shape == poisoned.shape
    assert bool(torch.isfinite(got).all())


def test_r57_after_the_memory_was_lost_nothing_cached_is_left() -> None:
    """R57: the executor failed with all it held: the cache is empty, pages are scrubbed before use."""
    world = World(num_pages=40, token_budget=8, cache=cache_config(match_unit=4, snapshot_policy="every(4)"))
    prompt = prompt_of(20)
    serve(world, "before", prompt)
    world.add(request("during", (*prompt, 1), 4))
    world.step()
    world.schedule()
    world.scheduler.abandon()
    world.check()
    assert world.cache is not None
    assert world.cache.explain(prompt).matched_tokens == 0
    tainted = world.pool.counts().tainted
    assert tainted > 0
    assert serve(world, "after", prompt) == 0
    assert max(len(batch.scrubs) for batch in world.batches) == tainted

"""What deciding costs: time of `schedule` and `update` alone, with an executor that computes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.results import Result
from milepost.memory.layout import PagedLayout
from milepost.memory.pool import PagePool
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.types import Request, SamplingParams

__all__ = ["LAYOUT", "scheduler"]

STEPS = 50
CASES = ((8, 512), (64, 2048), (256, 8192))
"""(running sequences, context of each)"""

# Kimi K3 on 8 ranks, bf16 KV: 24 MLA layers, 69 KDA layers, 12 of 96 heads.
LAYOUT = PagedLayout(
    block_size=64,
    num_attention_layers=24,
    num_recurrent_layers=69,
    row_dim=576,
    kv_itemsize=2,
    num_heads=12,
    head_rows=128,
    head_dim=128,
    tile_rows=16,
    conv_channels=4608,
    conv_window=3,
    conv_itemsize=2,
)


def scheduler() -> Iterator[Result]:
    """Microseconds of one decode step per running sequence: schedule + update, no model."""
    for batch, context in CASES:
        yield Result(
            benchmark="scheduler",
            subject="paged layout of Kimi K3, TP8",
            quantity=f"{batch} sequences at context {context}",
            unit="us/sequence",
            samples=_step_costs(batch, context),
            settings={"steps": STEPS},
        )


def _step_costs(batch: int, context: int) -> list[float]:
    pages = 1 + batch * (LAYOUT.pages_per_state + LAYOUT.blocks_for(context + STEPS + 2))
    config = SchedulerConfig(max_model_len=1 << 20, token_budget=batch * context, max_num_seqs=batch)
    scheduler = Scheduler(config, LAYOUT, PagePool(pages))
    executor = ScriptedExecutor(lambda _request_id, index: index)
    # One token more than is timed, so that no sequence ends while the clock runs.
    sampling = SamplingParams(max_tokens=STEPS + 2, ignore_eos=True)
    for i in range(batch):
        scheduler.add(Request(request_id=f"s{i}", prompt_token_ids=(0,) * context, sampling=sampling))
    first = scheduler.schedule()
    assert first is not None, "there are requests"
    scheduler.update(first, executor.run(first))
    costs = []
    for _ in range(STEPS):
        start = time.perf_counter()
        planned = scheduler.schedule()
        seconds = time.perf_counter() - start
        assert planned is not None, "every sequence wants one token more"
        result = executor.run(planned)
        start = time.perf_counter()
        scheduler.update(planned, result)
        costs.append(1e6 * (seconds + time.perf_counter() - start) / batch)
    return costs

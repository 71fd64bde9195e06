"""State slots of running requests, measured on a recorded trace; what a batch takes from the cache.

Needs ``--traces DIR``, a folder with

    mooncake-conversation.jsonl.gz   Mooncake's conversation trace (kvcache-ai/Mooncake, Apache-2.0)

Kimi K3 on GB300 with an fp8 cache, once on eight ranks that share the heads (TP8) and once on sixteen that
share only the experts (TP1, DP16), of which one is simulated. The trace's first requests are slowed down to
what the ranks carry for the slots, and sped up beyond it for the trade, in which the batch is as large as its
limit allows. Tables are printed as Markdown. ``--quick`` takes fewer requests and one budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec

from benchmarks.on_traces import OnTraces
from benchmarks.results import Result
from milepost.errors import ConfigError
from milepost.machine import usable_cores
from milepost.memory.named_layout import simulated_layout
from milepost.planner.device_memory import free_memory
from milepost.planner.slots.batches import OTHERS_SLOTS, SlotBatch, constant_slots, slot_batches
from milepost.planner.slots.measure import slots_of
from milepost.planner.slots.state_slots import StateSlots
from milepost.planner.slots.trade import BatchTrade, trade_of
from milepost.shapes.names import find_shape
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.part_work import RankSizes
from milepost.sim.models import find_model
from milepost.sim.runs import TOKEN_BUDGET, RunSpec
from milepost.sim.traces.options import TraceOptions
from milepost.sim.traces.reading import read_trace
from milepost.sim.traces.trace import Trace

__all__ = ["markdown_table", "state_slots"]

TRACE = "mooncake-conversation.jsonl.gz"
MODEL, HARDWARE = "kimi-k3", "gb300"
MEMORY_SHARE = 0.9
BLOCK = 64
FIRST, QUICK_FIRST = 2000, 600
WARM_UP = 0.25
BUDGET_FACTORS = (1, 2)
FIVE, MEASURED, ONE = f"{OTHERS_SLOTS} slots", "measured", "1 slot"


Batches = dict[str, dict[str, SlotBatch]]
"""By what the context is of the trace's, and by what a request is charged."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks, and how much slower than recorded the trace goes to one group of those that share the heads.

    Attributes:
        name: of the case.
        tensor_parallel: ranks that share the heads.
        data_parallel: groups of them.
        carried: time scale that the group can carry.
        crowded: time scale at which requests wait all the time.
    """

    name: str
    tensor_parallel: int
    data_parallel: int
    carried: float
    crowded: float

    @property
    def free_bytes(self) -> int:
        """What a rank has for states and KV."""
        sizes = RankSizes(
            tensor_parallel=self.tensor_parallel, data_parallel=self.data_parallel, kv_itemsize=1
        )
        return free_memory(
            find_shape(MODEL)[1],
            find_hardware(HARDWARE),
            sizes,
            memory_share=MEMORY_SHARE,
            tokens_per_step=TOKEN_BUDGET,
        ).free_bytes

    @property
    def spec(self) -> RunSpec:
        """What is simulated."""
        return RunSpec(
            model=MODEL,
            hardware=HARDWARE,
            budget_bytes=self.free_bytes,
            tensor_parallel=self.tensor_parallel,
            kv_itemsize=1,
            max_num_seqs=1024,
            queueing=True,
        )


CASES = (
    Case(name="TP8, 8 GPUs", tensor_parallel=8, data_parallel=1, carried=2.0, crowded=0.5),
    Case(name="TP1 x DP16, one of 16 ranks", tensor_parallel=1, data_parallel=16, carried=12.0, crowded=3.0),
)


def state_slots(options: OnTraces) -> Iterator[Result]:
    """State slots that running requests need, the batch that fits, and what is hit beside it."""
    path = options.folder / TRACE
    if not path.exists():
        raise ConfigError(f"slots needs {TRACE} in the folder of --traces. Given: {options.folder}.")
    first = QUICK_FIRST if options.quick else FIRST
    factors = BUDGET_FACTORS[:1] if options.quick else BUDGET_FACTORS

    def read(scale: float) -> Trace:
        return read_trace(path, TraceOptions(first=first, time_scale=scale))

    with ProcessPoolExecutor(usable_cores(), get_context("fork")) as pool:
        measured = list(pool.map(slots_of, [read(case.carried) for case in CASES], [c.spec for c in CASES]))
        batches = [_batches(case, slots) for case, slots in zip(CASES, measured, strict=True)]
        trades = [
            [
                pool.submit(_trade, case.spec, read(case.crowded), *point)
                for point in _points(case, rows, factors)
            ]
            for case, rows in zip(CASES, batches, strict=True)
        ]
        found = [[future.result() for future in futures] for futures in trades]
    print(_slots_table(measured))
    for case, rows, outcomes in zip(CASES, batches, found, strict=True):
        print(_batch_table(case, rows))
        print(_trade_table(case, outcomes))
    for case, slots, rows in zip(CASES, measured, batches, strict=True):
        yield from _results(case, slots, rows)


def _batches(case: Case, slots: StateSlots) -> Batches:
    """The largest batches at the trace's contexts."""
    _, model = find_model(MODEL)
    layout = simulated_layout(
        "paged", model, block_size=BLOCK, kv_itemsize=1, tensor_parallel=case.tensor_parallel
    )
    contexts = {
        "p50": slots.context_p50_tokens,
        "mean": slots.context_mean_tokens,
        "p90": slots.context_p90_tokens,
    }
    charges = {FIVE: constant_slots(OTHERS_SLOTS), MEASURED: slots.slots_for, ONE: constant_slots(1)}
    return {
        label: {
            row.charged: row for row in slot_batches(layout, case.free_bytes, (math.ceil(context),), charges)
        }
        for label, context in contexts.items()
    }


def _points(case: Case, batches: Batches, factors: Sequence[int]) -> list[tuple[int, int]]:
    """(limit of the batch, budget): a small batch, what five slots allow at the mean context, what fits."""
    five, fits = (batches["mean"][charged].max_batch for charged in (FIVE, MEASURED))
    return [
        (limit, factor * case.free_bytes) for factor in factors for limit in (max(1, five // 4), five, fits)
    ]


def _trade(spec: RunSpec, trace: Trace, limit: int, budget: int) -> BatchTrade:
    warmed = msgspec.structs.replace(spec, warm_up=WARM_UP)
    return trade_of(trace, warmed, batch_limit=limit, budget_bytes=budget)


def _slots_table(measured: Sequence[StateSlots]) -> str:
    head = [
        *("ranks", "arrivals slowed by", "hit", "running, mean / most"),
        *("needed a request, mean / p99 / most", "beyond one each, p99 / most of all together"),
        "kept a request",
    ]
    rows = [
        [
            case.name,
            f"{case.carried:g}",
            f"{100 * slots.hit_rate:.1f} %",
            f"{slots.running_mean:.1f} / {slots.running_peak}",
            f"{slots.needed_slots_mean:.2f} / {slots.needed_slots_p99:.2f} / {slots.needed_slots_peak:.1f}",
            f"{slots.extra_slots_p99} / {slots.extra_slots_peak}",
            f"{slots.kept_slots_mean:.1f}",
        ]
        for case, slots in zip(CASES, measured, strict=True)
    ]
    return markdown_table("State slots on the conversation trace", head, rows)


def _batch_table(case: Case, batches: Batches) -> str:
    head = ["context, tokens", FIVE, MEASURED, ONE, f"measured / {FIVE}"]
    rows = []
    for label, fits in batches.items():
        counts = [fits[charged].max_batch for charged in (FIVE, MEASURED, ONE)]
        ratio = f"{counts[1] / counts[0]:.2f}" if counts[0] else "-"
        rows.append([f"{fits[ONE].context_tokens:,} ({label})", *map(str, counts), ratio])
    title = f"Largest batch of {case.name}: {case.free_bytes / 1e9:.1f} GB for states and KV on a rank"
    return markdown_table(title, head, rows)


def _trade_table(case: Case, outcomes: Sequence[BatchTrade]) -> str:
    head = [
        *("budget of a rank", "batch at most", "running, mean", "snapshots kept", "hit"),
        *("TPOT, p50", "output tokens/s a GPU"),
    ]
    rows = [
        [
            f"{trade.budget_bytes / 1e9:.1f} GB",
            str(trade.batch_limit),
            f"{trade.running_mean:.0f}",
            f"{trade.kept_slots_mean:.0f}",
            f"{100 * trade.hit_rate:.1f} %",
            f"{1000 * trade.tpot_p50_seconds:.0f} ms",
            f"{trade.output_tokens_per_second / case.tensor_parallel:.0f}",
        ]
        for trade in outcomes
    ]
    return markdown_table(f"Batch against cache, {case.name}, more requests than it can run", head, rows)


def markdown_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown under its title."""
    lines = map(" | ".join, [head, ["---"] * len(head), *rows])
    return f"\n**{title}**\n\n" + "\n".join(f"| {line} |" for line in lines)


def _results(case: Case, slots: StateSlots, batches: Batches) -> Iterator[Result]:
    settings: dict[str, object] = {"trace": slots.trace, "requests": slots.requests, "ranks": slots.hardware}
    for quantity, value in (
        ("needed a request, mean", slots.needed_slots_mean),
        ("needed a request, p99", slots.needed_slots_p99),
        ("kept a request, mean", slots.kept_slots_mean),
    ):
        yield Result(
            benchmark="slots",
            subject=case.name,
            quantity=quantity,
            unit="slots",
            samples=[value],
            settings=settings,
        )
    for row in (row for fits in batches.values() for row in fits.values()):
        yield Result(
            benchmark="slots",
            subject=case.name,
            quantity=f"batch at {row.context_tokens:,} tokens, {row.charged}",
            unit="requests",
            samples=[row.max_batch],
            settings=settings
            | {"slots": row.slots, "state_bytes": row.state_bytes, "kv_bytes": row.kv_bytes},
        )

"""How fast a loaded model runs on this machine, beside what the machine's memory and arithmetic allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from milepost.config import DTYPE_ITEMSIZE, ResolvedConfig
from milepost.engine.executor import Executor
from milepost.errors import ConfigError
from milepost.kernels.native.limits import MachineLimits
from milepost.llm.step_timing import PlannedStep, StepTimer
from milepost.machine import total_memory
from milepost.memory.layout import Layout
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.hardware import Efficiency, Hardware, PeakFlops
from milepost.sim.cost.part_work import RankSizes
from milepost.sim.cost.roofline import RooflineCost

__all__ = ["Speed", "Workload", "limits_cost", "measure_speeds", "planned_workloads"]

_NOTHING_SECONDS = 1e-12
"""For what a `Hardware` must have and a limit doesn't count: links, and starting kernels."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Steps that are timed one by one and add up.

    Attributes:
        what: in words.
        steps: one after the other.
        tokens: that they compute.
    """

    what: str
    steps: tuple[PlannedStep, ...]
    tokens: int


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One workload.

    Attributes:
        what: in words.
        tokens: computed in it.
        seconds: the median of several runs of each step, added up.
        tokens_per_second: of all rows together.
        limit_seconds: the least that this machine could do it in; see `milepost.llm.step_profile`.
    """

    what: str
    tokens: int
    seconds: float
    tokens_per_second: float
    limit_seconds: float


def planned_workloads(
    prefill: Sequence[int], decode: Sequence[int], context: int, config: ResolvedConfig, layout: Layout
) -> list[Workload]:
    """Prompts of several lengths, and decode steps of several batch sizes.

    Args:
        prefill: lengths of the prompts.
        decode: batch sizes.
        context: tokens before each decoded one.
        config: of the engine.
        layout: of its pages.

    Raises:
        ConfigError: one doesn't fit the engine, or there are none.
    """
    if not prefill and not decode:
        raise ConfigError("--prefill and --decode must name something to measure. Given: neither.")
    prompts = [_prefill(tokens, config, layout) for tokens in prefill]
    return prompts + [_decode(rows, context, config, layout) for rows in decode]


def _prefill(tokens: int, config: ResolvedConfig, layout: Layout) -> Workload:
    """A prompt, in chunks of the engine's token budget."""
    # First: a prompt that is far too long has more chunks than memory holds.
    _check_fit(f"a prompt of {tokens:,} tokens", 1, tokens, config, layout)
    budget = config.max_num_batched_tokens
    chunks = [(start, min(budget, tokens - start)) for start in range(0, tokens, budget)]
    steps = tuple(
        PlannedStep(
            what=f"prefill of {length:,} behind {start:,}",
            rows=((start, length),),
            samples=start + length == tokens,
        )
        for start, length in chunks
    )
    return Workload(what=f"prefill {tokens:,}", steps=steps, tokens=tokens)


def _decode(rows: int, context: int, config: ResolvedConfig, layout: Layout) -> Workload:
    """One step of a batch that decodes."""
    what = f"decode batch {rows:,} at {context:,}"
    _check_fit(what, rows, context + 1, config, layout)
    step = PlannedStep(what=what, rows=((context, 1),) * rows)
    return Workload(what=what, steps=(step,), tokens=rows)


def limits_cost(shape: ModelShape, limits: MachineLimits, config: ResolvedConfig) -> RooflineCost:
    """The roofline of the rates that this machine reached.

    Args:
        shape: the model, with its weights' bytes as they are stored here.
        limits: the rates.
        config: of the engine, for the sizes of its KV.
    """
    everything = Efficiency(
        compute=1.0, experts=1.0, attention=1.0, recurrence=1.0, memory=1.0, cache=1.0, network=1.0
    )
    hardware = Hardware(
        name="this machine",
        title="this machine, as measured",
        peak_flops=PeakFlops(bf16=limits.flops_per_second),
        memory_bytes=total_memory(),
        memory_bytes_per_second=limits.read_bytes_per_second,
        interconnect_bytes_per_second=limits.read_bytes_per_second,
        interconnect_latency_seconds=_NOTHING_SECONDS,
        domain_devices=1,
        scale_out_bytes_per_second=limits.read_bytes_per_second,
        scale_out_latency_seconds=_NOTHING_SECONDS,
        kernel_seconds=_NOTHING_SECONDS,
        step_seconds=_NOTHING_SECONDS,
        efficiency=everything,
        sources=("measured",),
        date=datetime.now(UTC).date().isoformat(),
    )
    return RooflineCost(hardware, shape, RankSizes(kv_itemsize=DTYPE_ITEMSIZE[config.kv_dtype]))


def measure_speeds(
    executor: Executor,
    layout: Layout,
    workloads: Sequence[Workload],
    cost: RooflineCost,
    *,
    vocab_size: int,
    repeats: int,
) -> tuple[Speed, ...]:
    """Time every workload's steps, in turns."""
    timer = StepTimer(executor, layout, vocab_size, repeats=repeats)
    measured = iter(timer.measure([step for workload in workloads for step in workload.steps]))
    found = []
    for workload in workloads:
        steps = [next(measured) for _ in workload.steps]
        seconds = sum(step.seconds for step in steps)
        found.append(
            Speed(
                what=workload.what,
                tokens=workload.tokens,
                seconds=seconds,
                tokens_per_second=workload.tokens / seconds,
                limit_seconds=sum(cost.seconds(step.work) for step in steps),
            )
        )
    return tuple(found)


def _check_fit(what: str, rows: int, tokens: int, config: ResolvedConfig, layout: Layout) -> None:
    blocks = layout.blocks_for(tokens) * layout.pages_per_block
    pages = rows * (blocks + layout.pages_per_state) + 1
    limits = (
        ("pages", pages, config.num_pages, "Raise --memory"),
        ("sequences", rows, config.max_num_seqs, "Raise --max-num-seqs"),
        (
            "tokens a sequence",
            tokens,
            config.max_model_len,
            "That is the context of model and engine",
        ),
    )
    for name, given, limit, advice in limits:
        if given > limit:
            raise ConfigError(
                f"{what[0].upper()}{what[1:]} must fit the engine: at most {limit:,} {name}. "
                f"Given: {given:,}. {advice}; or ask for less."
            )

"""From a question about memory to the plan: bytes, pages, what fits, the largest batch by context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from milepost.errors import ConfigError
from milepost.planner.deployment import check_ranks, check_types
from milepost.planner.figures import tokens_text
from milepost.planner.memory.device import Device
from milepost.planner.memory.fitting import note_of_groups, resolved_device
from milepost.planner.memory.layouts import PLAIN, LayoutPlan, lay_out, plan_layout
from milepost.planner.memory.measured import measured_slots, most_requests
from milepost.planner.memory.question import MemoryQuestion, check_question
from milepost.planner.memory.rank_sizes import RankBytes, rank_bytes, rank_shape
from milepost.planner.slots.batches import OTHERS_SLOTS
from milepost.planner.slots.state_slots import StateSlots
from milepost.planner.worksheet import Derivation, Worksheet
from milepost.shapes.names import find_shape
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.by_name import default_hardware
from milepost.sim.cost.hardware import find_hardware

if TYPE_CHECKING:
    from milepost.sim.traces.trace import Trace

__all__ = ["BatchRow", "MemoryPlan", "plan_memory", "plan_memory_of"]


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """Most requests of one length on one group of tensor-parallel ranks.

    Attributes:
        context_tokens: of each request.
        request_bytes: on a device: `slots` states and the KV.
        ideal: floor(free / request), without pages.
        others_slots: the same with five states a request, which others charge.
        all_attention: the same for a model of the same depth whose layers all keep rows; None where this one
            has no rows to compare with.
        by_layout: with whole pages, in the order of the plan's layouts.
    """

    context_tokens: int
    request_bytes: float
    ideal: int
    others_slots: int
    all_attention: int | None
    by_layout: tuple[int, ...]


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How states and KV of a model lie in memory, and how many fit. Sizes are of one device.

    Attributes:
        question: what was asked.
        model: its name.
        shape: its numbers.
        hardware: of a device.
        tensor_parallel: ranks that share the heads of a sequence.
        data_parallel: such groups.
        context_parallel: of a group's ranks, those that share a sequence's KV by tokens.
        expert_parallel: ranks that share one copy of the experts.
        kv_dtype: of cached KV.
        state_dtype: of recurrent matrices.
        device: what takes a device's memory.
        sizes: of a state and a token.
        slots: states that a request takes.
        slots_source: where that number is from.
        measured: on a trace; None without one.
        layouts: as asked.
        batches: by context.
        derivations: of every number.
        notes: what a reader must know.
    """

    question: MemoryQuestion
    model: str
    shape: ModelShape
    hardware: str
    tensor_parallel: int
    data_parallel: int
    context_parallel: int
    expert_parallel: int
    kv_dtype: str
    state_dtype: str
    device: Device
    sizes: RankBytes
    slots: float
    slots_source: str
    measured: StateSlots | None
    layouts: tuple[LayoutPlan, ...]
    batches: tuple[BatchRow, ...]
    derivations: tuple[Derivation, ...]
    notes: tuple[str, ...]


def plan_memory(question: MemoryQuestion, trace: Trace | None = None) -> MemoryPlan:
    """Answer a question about memory of a model that it names.

    Args:
        question: what is asked.
        trace: requests that are simulated to measure the states of a request, in place of the question's.

    Raises:
        ConfigError: an unknown name, a number out of range, ranks that don't divide the model, a layout that
            can't be, or a model that doesn't fit, with the nearest that does.
        CheckpointError: the model's config can't be read.
    """
    check_types(question)
    return plan_memory_of(*find_shape(question.deployment.model), question, trace)


def plan_memory_of(
    model: str, whole: ModelShape, question: MemoryQuestion, trace: Trace | None = None
) -> MemoryPlan:
    """Answer a question about memory of a model in numbers, whatever the question's deployment names.

    Args:
        model: what it is called.
        whole: its numbers.
        question: what is asked.
        trace: as `plan_memory`; the simulator knows the model by the deployment's name of it.

    Raises:
        ConfigError: as `plan_memory`.
    """
    check_question(question)
    deployment = question.deployment
    check_ranks(whole, deployment)
    hardware = find_hardware(deployment.hardware or default_hardware(whole))
    shape = rank_shape(whole, deployment, question.drafts)
    sheet = Worksheet()
    sizes = rank_bytes(sheet, model, shape, deployment)
    data_parallel, device = resolved_device(sheet, model, whole, hardware, question)
    grown = note_of_groups(sheet, whole, hardware, question, data_parallel)
    measured = None
    if trace is not None:
        measured = measured_slots(trace, question, hardware, device.budget_bytes)
    slots, source = _slots(sheet, question, measured)
    sheet.given("short_tokens", question.short_tokens, "tokens", "--short", "of the short request")
    layouts, notes = _layouts(sheet, shape, sizes, question)
    return MemoryPlan(
        question=question,
        model=model,
        shape=whole,
        hardware=hardware.name,
        tensor_parallel=deployment.tensor_parallel,
        data_parallel=data_parallel,
        context_parallel=deployment.context_parallel,
        expert_parallel=int(sheet["expert_ranks"]),
        kv_dtype=deployment.kv_dtype,
        state_dtype=deployment.state_dtype,
        device=device,
        sizes=sizes,
        slots=slots,
        slots_source=source,
        measured=measured,
        layouts=layouts,
        batches=tuple(
            _batch_row(sheet, context, place, layouts) for place, context in enumerate(question.contexts)
        ),
        derivations=sheet.derivations,
        notes=(
            *([grown] if grown else ()),
            *notes,
            *_notes(whole, question),
            *(measured.notes if measured else ()),
        ),
    )


def _slots(sheet: Worksheet, question: MemoryQuestion, measured: StateSlots | None) -> tuple[float, str]:
    """States of a request, and where the number is from."""
    slots, source = question.slots, "--slots"
    if measured is not None:
        slots, source = measured.needed_slots_mean, f"measured on {measured.trace}"
        sheet.given(
            "extra_slots",
            measured.extra_slots_p99,
            "states",
            source,
            "beyond one a request, of all together, not exceeded in 99 % of the time",
        )
    sheet.given("slots", int(slots) if float(slots).is_integer() else slots, "states", source, "of a request")
    sheet.given(
        "others_slots", OTHERS_SLOTS, "states", "aiconfigurator 0.12.0", "that others charge a request"
    )
    return slots, source


def _layouts(
    sheet: Worksheet, shape: ModelShape, sizes: RankBytes, question: MemoryQuestion
) -> tuple[tuple[LayoutPlan, ...], tuple[str, ...]]:
    """Every layout that was asked for; in a comparison one that can't be becomes a note."""
    plans: list[LayoutPlan] = []
    notes = []
    for name in question.layouts:
        try:
            layout = lay_out(name, shape, question)
        except ConfigError as error:
            if not question.compare:
                raise
            notes.append(f"{name}: {error}")
            continue
        plan = plan_layout(sheet, name, layout, sizes, question)
        if not plan.fits_one:
            notes.append(_too_small(plan, sheet))
        plans.append(plan)
        if plan.name == PLAIN:
            break  # the same pages whatever was asked
    if not any(plan.fits_one for plan in plans):
        raise ConfigError(notes[-1])
    return tuple(plans), tuple(notes)


def _too_small(plan: LayoutPlan, sheet: Worksheet) -> str:
    pages = plan.pages_per_state + bool(plan.blocks_per_page)
    need = f"{pages:,} pages of {plan.page_bytes:,} bytes, beside the one that padding points to"
    return (
        f"{plan.name}: not one sequence fits. It needs {need}. Given: {int(sheet['budget_bytes']):,} "
        "bytes for states and KV. Choose a shorter block, another layout, or more memory."
    )


def _batch_row(sheet: Worksheet, context: int, place: int, layouts: tuple[LayoutPlan, ...]) -> BatchRow:
    length = tokens_text(context)
    request = sheet.derive(
        f"request_bytes.{length}",
        f"slots * state_bytes + {context} * kv_bytes_per_token",
        "bytes",
        meaning=f"of {context:,} tokens, on a device",
    )
    ideal = sheet.derive(
        f"batch.ideal.{length}",
        most_requests(sheet, "budget_bytes", "state_bytes", f"{context} * kv_bytes_per_token"),
        "requests",
        meaning=f"of {context:,} tokens, if memory had no pages",
    )
    charged = sheet.derive(
        f"batch.others_slots.{length}",
        f"floor(budget_bytes / (others_slots * state_bytes + {context} * kv_bytes_per_token))",
        "requests",
        meaning=f"of {context:,} tokens, with as many states a request as others charge",
    )
    others = None
    if sheet["attention_layers"]:
        others = sheet.derive(
            f"batch.all_attention.{length}",
            f"floor(budget_bytes / ({context} * all_attention.kv_bytes_per_token))",
            "requests",
            meaning=f"of {context:,} tokens, if all layers kept rows",
        )
    return BatchRow(
        context_tokens=context,
        request_bytes=request,
        ideal=int(ideal),
        others_slots=int(charged),
        all_attention=None if others is None else int(others),
        by_layout=tuple(layout.batches[place] for layout in layouts),
    )


def _notes(shape: ModelShape, question: MemoryQuestion) -> tuple[str, ...]:
    notes = []
    if not shape.recurrent_layers:
        notes.append(
            "No layer of this model keeps a state, so there is nothing to lay out: pages are blocks."
        )
    if not shape.attention_layers:
        notes.append("No layer of this model keeps rows: a sequence takes one state, however long it is.")
    if not question.memory_bytes and question.reserve_bytes is None:
        notes.append(
            "The workspace is an estimate (--explain workspace_bytes). Measure it on the engine that is "
            "used, and give it as --reserve."
        )
    deployment, rows = question.deployment, shape.attention
    copies = (
        min(deployment.tensor_parallel // max(1, rows.kv_heads), deployment.tensor_parallel) if rows else 1
    )
    if copies > 1 and deployment.context_parallel == 1:
        notes.append(
            f"{copies} of the --tp ranks hold the same KV. --cp {copies} divides it among them by tokens."
        )
    if question.drafts:
        notes.append(
            f"{question.drafts} drafted tokens lengthen a state's convolution window by as many inputs. An "
            "engine that also keeps a state for each of them takes as many more slots a request: --slots."
        )
    longest = max(question.contexts)
    if shape.max_position and longest > shape.max_position:
        notes.append(
            f"The model's own limit is {shape.max_position:,} tokens; longer contexts are arithmetic."
        )
    return tuple(notes)

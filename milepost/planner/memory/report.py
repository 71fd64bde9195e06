"""A memory plan as sections: what a device holds, a state and a token, layouts with pictures, batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from milepost.planner.figures import bytes_text, tokens_text
from milepost.planner.memory.layouts import LayoutPlan
from milepost.planner.memory.pictures import pictures
from milepost.planner.memory.plan import MemoryPlan
from milepost.planner.report import Plot, Report, Section, Series, Table, columns
from milepost.planner.slots.batches import OTHERS_SLOTS

__all__ = ["memory_report"]

_RULE = (
    "Shortest shared prefix that is found: a hit needs a state at its end. Where an engine shares whole "
    "blocks only, a state stands at a block's end, so it is a block (of a sequence: times the ranks "
    "that share its context). With prefix keys at match units inside blocks (Milepost in every layout; "
    "vLLM's prefix_match_unit) it is the unit: the block that is filled in part is copied. A prompt's "
    "last token is always computed, so a prompt needs one more. A prompt that goes on where another "
    "ended is found at any length: its end has a key of its own."
)


def memory_report(plan: MemoryPlan) -> Report:
    """What the terminal, the page and `--explain` show of a plan."""
    return Report(
        title=_title(plan),
        headline=_headline(plan),
        sections=(
            _device_section(plan),
            _sizes_section(plan),
            _layouts_section(plan),
            _batches_section(plan),
            *_measured_section(plan),
        ),
        notes=plan.notes,
        derivations=plan.derivations,
    )


def _title(plan: MemoryPlan) -> str:
    devices = plan.tensor_parallel * plan.data_parallel
    ranks = f"TP {plan.tensor_parallel} x DP {plan.data_parallel}"
    if plan.context_parallel > 1:
        ranks += f", CP {plan.context_parallel}"
    return (
        f"Memory of {plan.model} on {devices:,} x {plan.hardware} ({ranks}; {plan.kv_dtype} KV, "
        f"{plan.state_dtype} states)"
    )


def _headline(plan: MemoryPlan) -> tuple[tuple[str, str], ...]:
    sizes, first = plan.sizes, plan.layouts[0]
    found = [("for states and KV, on a device", bytes_text(plan.device.budget_bytes))]
    if sizes.state_bytes:
        found.append(("a state, on a rank", bytes_text(sizes.state_bytes)))
    if sizes.kv_bytes_per_token:
        found.append(("a token's KV, on a rank", bytes_text(sizes.kv_bytes_per_token)))
    if sizes.state_bytes and sizes.kv_bytes_per_token:
        found.append(
            ("a state is as large as", f"{sizes.state_bytes / sizes.kv_bytes_per_token:,.0f} tokens")
        )
    if first.snapshots_that_fit is not None:
        found.append((f"states that fit ({first.name})", f"{first.snapshots_that_fit:,}"))
    if first.tokens_that_fit is not None:
        found.append((f"or tokens of KV ({first.name})", f"{first.tokens_that_fit:,}"))
    found += [
        (f"most requests of {tokens_text(row.context_tokens)}, a group", f"{row.by_layout[0]:,}")
        for row in plan.batches
        if row.context_tokens in (8_192, 131_072) or len(plan.batches) == 1
    ]
    return tuple(found)


def _device_section(plan: MemoryPlan) -> Section:
    device = plan.device
    rows = [
        (
            part.name,
            f"{part.parameters / 1e9:,.3f}",
            bytes_text(part.checkpoint_bytes),
            bytes_text(part.device_bytes),
        )
        for part in device.parts
        if part.parameters
    ]
    rows.append(
        (
            "all weights",
            f"{device.parameters / 1e9:,.3f}",
            bytes_text(device.checkpoint_bytes),
            bytes_text(device.weight_bytes),
        )
    )
    weights = Table(
        title="Weights",
        columns=columns("part", "parameters, 1e9", "whole model", "on a device", words=("part",)),
        rows=tuple(rows),
    )
    return Section(
        title="What takes a device's memory",
        lead="States and KV have what --memory says, whatever a device holds." if device.asked else "",
        tables=(weights, _budget_table(plan)),
        plots=() if device.asked else (_budget_plot(plan),),
    )


def _budget(plan: MemoryPlan) -> tuple[tuple[str, float], ...]:
    device = plan.device
    return (
        ("weights", device.weight_bytes),
        ("workspace of a step", device.workspace_bytes),
        ("states and KV", device.budget_bytes),
        ("left to driver and graphs", device.device_bytes - device.usable_bytes),
    )


def _budget_table(plan: MemoryPlan) -> Table:
    device = plan.device
    if device.asked:
        rows = [("states and KV (--memory)", bytes_text(device.budget_bytes), "")]
    else:
        rows = [(name, bytes_text(size), f"{size / device.device_bytes:.1%}") for name, size in _budget(plan)]
        rows.append(("the device", bytes_text(device.device_bytes), "100.0%"))
    return Table(
        title="One device",
        columns=columns("what", "bytes", "share", words=("what",)),
        rows=tuple(rows),
    )


def _budget_plot(plan: MemoryPlan) -> Plot:
    return Plot(
        title="Memory of one device",
        x_name="",
        y_name="GB",
        kind="bars",
        series=tuple(Series(name=name, x=(plan.hardware,), y=(size / 1e9,)) for name, size in _budget(plan)),
    )


def _sizes_section(plan: MemoryPlan) -> Section:
    sizes = plan.sizes
    rows = [
        ("state of one recurrent layer", f"{sizes.layer_state_bytes:,}", bytes_text(sizes.layer_state_bytes)),
        ("whole state", f"{sizes.state_bytes:,}", bytes_text(sizes.state_bytes)),
        ("token in one attention layer", f"{sizes.row_bytes:,}", bytes_text(sizes.row_bytes)),
        ("token in all of them", f"{sizes.token_bytes:,}", bytes_text(sizes.token_bytes)),
    ]
    if plan.context_parallel > 1:
        shared = sizes.kv_bytes_per_token
        rows.append(("the same, divided by tokens among ranks", f"{shared:,.0f}", bytes_text(shared)))
    if sizes.state_bytes and sizes.kv_bytes_per_token:
        others = sizes.all_attention_kv_bytes_per_token
        rows.append(("token, if all layers kept rows", f"{others:,.0f}", bytes_text(others)))
    headings = columns("on one rank", "bytes", "", words=("on one rank",))
    return Section(title="A state and a token", tables=(Table(columns=headings, rows=tuple(rows)),))


def _layouts_section(plan: MemoryPlan) -> Section:
    layouts = plan.layouts
    headings = columns("", *(layout.name for layout in layouts), words=("",))
    cells = [_layout_cells(layout) for layout in layouts]
    rows = tuple((name, *(cell[name] for cell in cells)) for name in cells[0])
    return Section(
        title="Layouts" if len(layouts) > 1 else f"Layout {layouts[0].name}",
        tables=(Table(columns=headings, rows=rows, note=_RULE),),
        drawings=tuple(pictures(plan)),
    )


def _layout_cells(layout: LayoutPlan) -> dict[str, str]:
    waste = layout.short_request_waste_bytes
    return {
        "page": bytes_text(layout.page_bytes),
        "tokens of a block, on a rank": f"{layout.block_tokens:,}",
        "tokens of a block, of a sequence": f"{layout.sequence_block_tokens:,}",
        "blocks of a page": f"{layout.blocks_per_page:,}",
        "pages of a state": f"{layout.pages_per_state:,}",
        "padding of a state": f"{bytes_text(layout.state_padding_bytes)} ({layout.state_padding_share:.2%})",
        "pages that fit": f"{layout.usable_pages:,}",
        "tokens that fit": _or_no_limit(layout.tokens_that_fit),
        "states that fit": "-" if layout.snapshots_that_fit is None else f"{layout.snapshots_that_fit:,}",
        "longest sequence alone": _or_no_limit(layout.longest_sequence_tokens),
        "shortest shared prefix, whole blocks": f"{layout.whole_block_prefix_tokens:,}",
        "shortest shared prefix, match units": f"{layout.unit_prefix_tokens:,}",
        "a short request takes": bytes_text(layout.short_request_bytes),
        "of it wasted": f"{bytes_text(waste)} ({layout.short_request_waste_share:.1%})",
    }


def _or_no_limit(count: int | None) -> str:
    return "no limit" if count is None else f"{count:,}"


def _batches_section(plan: MemoryPlan) -> Section:
    hybrid = bool(plan.sizes.state_bytes and plan.sizes.kv_bytes_per_token)
    names = [layout.name for layout in plan.layouts]
    headings = ["context", "a request", "ideal", *names]
    charged = plan.sizes.state_bytes > 0 and plan.slots != OTHERS_SLOTS
    if charged:
        headings.append(f"ideal, {OTHERS_SLOTS} states each")
    if plan.data_parallel > 1:
        headings.append(f"{names[0]}, all {plan.data_parallel:,} groups")
    if hybrid:
        headings.append("if all layers kept rows")
    rows = []
    for row in plan.batches:
        cells = [tokens_text(row.context_tokens), bytes_text(row.request_bytes), f"{row.ideal:,}"]
        cells += [f"{count:,}" for count in row.by_layout]
        if charged:
            cells.append(f"{row.others_slots:,}")
        if plan.data_parallel > 1:
            cells.append(f"{row.by_layout[0] * plan.data_parallel:,}")
        if hybrid:
            cells.append(f"{row.all_attention:,}")
        rows.append(tuple(cells))
    states = "a state" if plan.slots == 1 else f"{plan.slots:,.4g} states"
    ranks = f"{plan.tensor_parallel:,} rank{'s' if plan.tensor_parallel > 1 else ''}"
    return Section(
        title="Most requests at once, by context",
        lead=f"Of one group of {ranks}; a request takes {states} ({plan.slots_source}) and its KV. "
        "Ideal: floor(memory / (states + context x KV a token)).",
        tables=(Table(columns=columns(*headings), rows=tuple(rows)),),
        plots=(_batch_plot(plan, hybrid=hybrid),),
    )


def _measured_section(plan: MemoryPlan) -> Iterator[Section]:
    found = plan.measured
    if found is None:
        return
    rows = (
        ("requests", f"{found.requests:,}"),
        ("that ran at once, mean", f"{found.running_mean:,.2f}"),
        ("that ran at once, most", f"{found.running_peak:,}"),
        ("states a running request needed, mean", f"{found.needed_slots_mean:.3f}"),
        ("states beyond one each, of all, in 99 % of the time", f"{found.extra_slots_p99:,}"),
        ("snapshots kept for each, which go when memory is needed", f"{found.kept_slots_mean:,.2f}"),
        ("prompt tokens that were found", f"{found.hit_rate:.2%}"),
        ("tokens of a request, mean", f"{found.context_mean_tokens:,.0f}"),
    )
    yield Section(
        title=f"States of a request, measured on {found.trace}",
        lead="All of the trace, simulated on one group of ranks with the memory above for both.",
        tables=(Table(columns=columns("what", "", words=("what",)), rows=rows),),
    )


def _batch_plot(plan: MemoryPlan, *, hybrid: bool) -> Plot:
    lengths = [row.context_tokens for row in plan.batches]
    series = [_counts(layout.name, lengths, layout.batches) for layout in plan.layouts]
    series.append(_counts("ideal", lengths, [row.ideal for row in plan.batches]))
    if hybrid:
        rows = [row.all_attention or 0 for row in plan.batches]
        series.append(_counts("if all layers kept rows", lengths, rows))
    return Plot(
        title="Most requests at once",
        x_name="tokens of a request",
        y_name="requests, a group",
        series=tuple(series),
        log_x=True,
        log_y=True,
    )


def _counts(name: str, lengths: Sequence[int], counts: Sequence[int]) -> Series:
    """Without those that are 0, which a logarithmic axis lacks."""
    points = [(float(x), float(y)) for x, y in sorted(zip(lengths, counts, strict=True)) if y]
    return Series(name=name, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))

"""What a serving plan shows: speeds, where a step's time goes, memory, the search, drafts, costs."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.planner.figures import bytes_text, scaled_text, seconds_text
from milepost.planner.report import Column, Plot, Report, Section, Series, Table, columns
from milepost.planner.serve.plan import ServePlan, StepBreakdown
from milepost.planner.serve.refusals import arrangement_text
from milepost.planner.serve.search import keeps_limits
from milepost.planner.serve.steady import ServePoint
from milepost.sim.cost.roofline import PartCost

__all__ = ["serve_report"]

MOST_ROWS = 16
"""Of the front in a table; all points are in the plot and in JSON."""


def serve_report(plan: ServePlan) -> Report:
    """The sections of a plan."""
    point, times = plan.point, f"{plan.replicas} x " if plan.replicas > 1 else ""
    sections = [_speeds(plan), _roofline(plan), _memory(plan), _search(plan)]
    if plan.drafts:
        sections.append(_drafts(plan))
    return Report(
        title=(
            f"Serve {plan.model} on {plan.replicas * point.gpus} x {plan.hardware} "
            f"({times}{arrangement_text(point)})"
        ),
        headline=_headline(plan),
        sections=tuple(sections),
        notes=plan.notes,
        derivations=plan.derivations,
    )


def _headline(plan: ServePlan) -> tuple[tuple[str, str], ...]:
    point, costs = plan.point, plan.costs
    rows = [
        ("TTFT", seconds_text(point.ttft_seconds)),
        ("TPOT", seconds_text(point.tpot_seconds)),
        ("tokens/s/GPU", f"{point.tokens_per_second_per_gpu:,.1f}"),
        ("tokens/s/user", f"{point.tokens_per_second_per_user:,.1f}"),
        ("batch a group", f"{point.batch:,}"),
    ]
    if costs is not None:
        rows.append(("cost per million input tokens", f"{costs.cost_per_million_input_tokens:,.3g}"))
        rows.append(("cost per million output tokens", f"{costs.cost_per_million_output_tokens:,.3g}"))
    return tuple(rows)


# -- speeds -------------------------------------------------------------------------------------------


def _speeds(plan: ServePlan) -> Section:
    point, question = plan.point, plan.question
    rows = [
        ("replicas", f"{plan.replicas:,} of {point.gpus:,} device{'' if point.gpus == 1 else 's'}"),
        ("requests/s of all replicas", f"{plan.replicas * point.requests_per_second:,.4g}"),
        ("prompt on idle devices", f"{seconds_text(plan.prefill_seconds)} in {_steps(plan.prefill_steps)}"),
        ("step of decode alone", seconds_text(point.decode_step_seconds)),
        (
            "step with prompts",
            f"{seconds_text(point.mixed_step_seconds)}, {point.chunk_tokens:,} tokens of them",
        ),
        ("share of steps with prompts", f"{point.mixed_share:.1%}"),
        ("load of prefill", f"{point.prefill_load:.1%} of the room for prompts"),
        ("most tokens of a step", f"{point.token_budget_tokens:,}"),
    ]
    if plan.costs is not None:
        rows.append(("cost of a request", f"{plan.costs.cost_per_request:.3g}"))
        rows.append(("cost per million tokens, both kinds", f"{plan.costs.cost_per_million_tokens:.3g}"))
    hits = f", {question.hit_tokens:,} of them cached" if question.hit_tokens else ""
    return Section(
        title="Steady state",
        lead=(
            f"Requests of {question.input_tokens:,} tokens{hits}, answers of {question.output_tokens:,}; "
            "prefill and decode share the devices."
        ),
        tables=(Table(columns=(Column("", numeric=False), Column("")), rows=tuple(rows)),),
    )


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"


# -- where the time goes ------------------------------------------------------------------------------


def _roofline(plan: ServePlan) -> Section:
    point = plan.point
    context = plan.by_batch[0].context_tokens
    tables = (
        _parts_table(
            f"One step of decode: {point.batch:,} sequences of {context:,} tokens, one device",
            plan.decode_parts,
            plan.draft_seconds,
        ),
        _parts_table(
            f"One prompt on idle devices, the mean of {_steps(plan.prefill_steps)}, one device",
            plan.prefill_parts,
        ),
    )
    plots = (
        _bars(
            f"Decode by context, {point.batch:,} sequences",
            "tokens of each sequence",
            plan.by_context,
            "context_tokens",
        ),
        _bars(f"Decode by batch, {context:,} tokens each", "sequences of a group", plan.by_batch, "batch"),
    )
    return Section(
        title="Where the time goes",
        lead="Each part takes the longer of its FLOPs and its bytes; parts run one after the other.",
        tables=tables,
        plots=plots,
    )


def _parts_table(title: str, parts: Sequence[PartCost], draft_seconds: float = 0.0) -> Table:
    total = sum(part.seconds for part in parts) + draft_seconds
    rows = [
        (
            part.name,
            scaled_text(part.flops, "FLOP"),
            scaled_text(part.bytes, "B"),
            seconds_text(part.seconds),
            f"{part.seconds / total:.1%}",
            part.bound,
        )
        for part in parts
        if part.seconds
    ]
    if draft_seconds:
        rows.append(("drafts", "", "", seconds_text(draft_seconds), f"{draft_seconds / total:.1%}", ""))
    rows.append(("all", "", "", seconds_text(total), "100.0%", ""))
    names = ("part", "FLOPs", "bytes", "time", "share", "bound")
    return Table(title=title, columns=columns(*names, words=("part", "bound")), rows=tuple(rows))


def _bars(title: str, x_name: str, steps: Sequence[StepBreakdown], field: str) -> Plot:
    names = dict.fromkeys(part.name for step in steps for part in step.parts if part.seconds)
    x = tuple(f"{getattr(step, field):,}" for step in steps)
    series = []
    for name in names:
        found = [{part.name: part.seconds for part in step.parts}.get(name, 0.0) for step in steps]
        series.append(Series(name=name, x=x, y=tuple(1e3 * seconds for seconds in found)))
    return Plot(title=title, x_name=x_name, y_name="ms a step", series=tuple(series), kind="bars")


# -- memory -------------------------------------------------------------------------------------------


def _memory(plan: ServePlan) -> Section:
    memory, request = plan.memory, plan.request
    rows = [
        ("device", bytes_text(memory.device_bytes)),
        ("of it usable", bytes_text(memory.usable_bytes)),
        ("weights", bytes_text(memory.weight_bytes)),
        ("workspace of a step", bytes_text(memory.workspace_bytes)),
        ("free for requests", bytes_text(memory.free_bytes)),
        ("states of a request", bytes_text(request.state_bytes)),
        ("KV of a request", bytes_text(request.kv_bytes)),
    ]
    if request.draft_weight_bytes:
        rows.insert(3, ("weights of the draft model", bytes_text(request.draft_weight_bytes)))
    rows.append(("left for cached prefixes", bytes_text(plan.left_bytes)))
    rows.append(("largest batch a group", f"{plan.largest_batch:,}"))
    slots = f"{plan.question.slots:.4g} state{'' if plan.question.slots == 1 else 's'}"
    return Section(
        title="Memory of one device",
        lead=f"{slots} a request ({plan.question.slots_source}).",
        tables=(Table(columns=(Column("", numeric=False), Column("")), rows=tuple(rows)),),
    )


# -- search -------------------------------------------------------------------------------------------


def _search(plan: ServePlan) -> Section:
    front = plan.search.front
    shown = _thinned(front, plan.point)
    best = next((place for place, point in enumerate(shown) if point == plan.point), None)
    rows = tuple(_point_row(plan, point) for point in shown)
    names = ["devices", "ranks", "step tokens", "batch", "TTFT", "TPOT", "tokens/s/GPU", "tokens/s/user"]
    if _limited(plan):
        names.append("limits")
    more = (
        f" {len(front) - len(shown):,} more are in the plot and in JSON." if len(front) > len(shown) else ""
    )
    table = Table(
        title="Speed of the machine against speed for a user: none of these is beaten in both",
        columns=columns(*names, words=("ranks", "limits")),
        rows=rows,
        note=_refusals(plan) + more,
        best=best,
    )
    plot = Plot(
        title="Tokens/s/GPU against tokens/s/user",
        x_name="tokens/s/user",
        y_name="tokens/s/GPU",
        series=tuple(_front_series(plan, front)),
        kind="points",
    )
    searched = plan.question.gpus is not None
    tables = (table, _counts(plan)) if len(plan.search.by_count) > 1 else (table,)
    return Section(
        title="Search" if searched else "Other batches",
        tables=tables,
        plots=(plot,),
    )


def _counts(plan: ServePlan) -> Table:
    """The best for each number of devices of a range."""
    rows = tuple(
        (
            f"{one.gpus:,}",
            f"{one.replicas} x {arrangement_text(one.point)}",
            f"{one.point.batch:,}",
            seconds_text(one.point.ttft_seconds),
            seconds_text(one.point.tpot_seconds),
            f"{one.point.tokens_per_second_per_gpu:,.1f}",
            f"{one.gpus * one.point.tokens_per_second_per_gpu:,.0f}",
            f"{one.replicas * one.point.requests_per_second:,.4g}",
        )
        for one in plan.search.by_count
    )
    names = ("devices", "replicas", "batch", "TTFT", "TPOT", "tokens/s/GPU", "tokens/s", "requests/s")
    return Table(
        title="The best under the limits by number of devices",
        columns=columns(*names, words=("replicas",)),
        rows=rows,
    )


def _thinned(front: Sequence[ServePoint], chosen: ServePoint) -> list[ServePoint]:
    """Some of the points, evenly, the chosen one and both ends among them."""
    points = list(front)
    if len(points) > MOST_ROWS:
        places = {round(n * (len(points) - 1) / (MOST_ROWS - 1)) for n in range(MOST_ROWS)}
        points = [points[place] for place in sorted(places)]
    if chosen not in points:
        points.append(chosen)
        points.sort(key=lambda point: point.tokens_per_second_per_user)
    return points


def _point_row(plan: ServePlan, point: ServePoint) -> tuple[str, ...]:
    return (
        f"{point.gpus:,}",
        arrangement_text(point),
        f"{point.token_budget_tokens:,}",
        f"{point.batch:,}",
        seconds_text(point.ttft_seconds),
        seconds_text(point.tpot_seconds),
        f"{point.tokens_per_second_per_gpu:,.1f}",
        f"{point.tokens_per_second_per_user:,.1f}",
        *(("kept" if keeps_limits(plan.question, point) else "exceeded",) if _limited(plan) else ()),
    )


def _limited(plan: ServePlan) -> bool:
    return plan.question.ttft_limit_seconds is not None or plan.question.tpot_limit_seconds is not None


def _front_series(plan: ServePlan, front: Sequence[ServePoint]) -> list[Series]:
    groups: dict[str, list[ServePoint]] = {}
    for point in front:
        kept = "within the limits" if keeps_limits(plan.question, point) else "beyond the limits"
        groups.setdefault(kept, []).append(point)
    groups["chosen"] = [plan.point]
    return [
        Series(
            name=name,
            x=tuple(point.tokens_per_second_per_user for point in points),
            y=tuple(point.tokens_per_second_per_gpu for point in points),
            labels=tuple(
                f"{point.gpus} devices, {arrangement_text(point)}, batch {point.batch}, steps of "
                f"{point.token_budget_tokens:,}, TTFT {seconds_text(point.ttft_seconds)}"
                for point in points
            ),
        )
        for name, points in groups.items()
    ]


def _refusals(plan: ServePlan) -> str:
    counts = plan.search.refusals
    reasons = (
        (counts.memory, "do not fit in memory"),
        (counts.prefill, "have steps too short for the prompts"),
        (counts.tpot, "miss the TPOT limit even at batch 1"),
        (counts.ttft, "miss the TTFT limit even at batch 1"),
    )
    refused = "; ".join(f"{count:,} {why}" for count, why in reasons if count)
    tried = f"{counts.considered:,} divisions with token budgets were tried"
    return f"{tried}: {refused}." if refused else f"{tried}."


# -- drafts -------------------------------------------------------------------------------------------


def _drafts(plan: ServePlan) -> Section:
    spec = plan.question.speculation
    rows = tuple(
        (
            design.states,
            bytes_text(design.state.running_bytes),
            bytes_text(design.state.step_extra_bytes),
            seconds_text(design.step_extra_seconds),
            f"{design.largest_batch:,}",
            seconds_text(design.tpot_seconds) if design.tpot_seconds is not None else "",
        )
        for design in plan.drafts
    )
    names = ("states", "of a sequence", "moved a step and sequence", "time a step", "largest batch", "TPOT")
    chosen = next((n for n, design in enumerate(plan.drafts) if spec and design.states == spec.states), None)
    accepted = f"{spec.accepted_length:.4g} of {spec.verified} tokens" if spec else ""
    return Section(
        title="States with drafts",
        lead=f"A step yields {accepted} a sequence; a state must be able to go back to any of them.",
        tables=(Table(columns=columns(*names, words=("states",)), rows=rows, best=chosen),),
    )

"""What a plan of expert parallelism shows: bytes, degrees and balance; overlap and tails stand apart."""

from __future__ import annotations

from milepost.planner.figures import bytes_text
from milepost.planner.moe.balance import SAMPLES
from milepost.planner.moe.degree import ANY_PLACEMENT, PHASES, DegreePlan, Phase
from milepost.planner.moe.overlap_sections import overlap_section, waves_section
from milepost.planner.moe.plan import MoePlan
from milepost.planner.moe.tail_section import tail_section
from milepost.planner.moe.wording import PHASE_NAMES, microseconds
from milepost.planner.report import Plot, Report, Section, Series, Table, columns
from milepost.sim.cost.parallel import division_text

__all__ = ["moe_report"]


def moe_report(plan: MoePlan) -> Report:
    """Sections from the bytes of a token to the tails."""
    sections = [_bytes(plan), _memory(plan)]
    sections += [_degrees(plan, phase) for phase in PHASES]
    sections += [_balance(plan), overlap_section(plan), waves_section(plan)]
    if plan.tails:
        sections.append(tail_section(plan))
    layout = division_text(plan.tensor_parallel, plan.data_parallel)
    return Report(
        title=f"Expert parallelism: {plan.model} on {plan.ranks} x {plan.hardware} ({layout})",
        headline=_headline(plan),
        sections=tuple(sections),
        notes=plan.notes,
        derivations=plan.derivations,
    )


def _headline(plan: MoePlan) -> tuple[tuple[str, str], ...]:
    found = []
    for phase in PHASES:
        best = plan.best(phase)
        layer = plan.degree(best).at(phase)
        name = PHASE_NAMES[phase]
        found.append((f"expert parallel degree for {name}", f"{best}"))
        found.append((f"a layer in {name}", f"{microseconds(layer.layer_seconds)} us"))
        found.append((f"all layers in {name}", f"{layer.layer_seconds * plan.moe_layers * 1e3:,.2f} ms"))
    found.append(("dispatched and combined, a token and layer", bytes_text(plan.token_layer_bytes)))
    return tuple(found)


# -- bytes of a token -----------------------------------------------------------------------------------


def _bytes(plan: MoePlan) -> Section:
    what = "of a token in one layer"
    table = Table(
        columns=columns(what, "bytes", "hides below FLOP/byte", words=(what,)),
        rows=(
            (
                "dispatch and combine, at the experts' width",
                bytes_text(plan.token_layer_bytes),
                f"{plan.balance_flops_per_byte:,.0f}",
            ),
            (
                "the same at the hidden size",
                bytes_text(plan.token_layer_bytes_at_hidden),
                f"{plan.balance_flops_per_byte / plan.latent_saving:,.0f}",
            ),
        ),
        note=f"The device computes {plan.device_flops_per_byte:,.0f} FLOP for each byte of a link of its "
        f"domain, {plan.scale_out_flops_per_byte:,.0f} for each byte beyond it. Where that is less, "
        "communication hides behind computing; where reading weights binds, computing takes longer still.",
    )
    lead = (
        f"{plan.num_experts} experts of {bytes_text(plan.expert_bytes)} in each of {plan.moe_layers} layers; "
        f"a token takes {plan.top_k}."
    )
    if plan.latent_saving != 1:
        lead += f" The latent divides bytes between ranks and bytes of experts by {plan.latent_saving:g}."
    return Section(title="Bytes", lead=lead, tables=(table,))


def _memory(plan: MoePlan) -> Section:
    rows = tuple(
        (
            str(degree.ranks),
            str(degree.copies),
            str(degree.experts_per_rank),
            "yes" if degree.even else "no",
            bytes_text(degree.expert_weight_bytes),
            bytes_text(degree.weight_bytes),
            bytes_text(degree.free_bytes),
            "yes" if degree.fits else "no",
            f"{degree.ranks_reached:.2f}",
        )
        for degree in plan.degrees
    )
    names = (
        "EP",
        "copies",
        "experts a rank",
        "even",
        "experts",
        "all weights",
        "left",
        "fits",
        "ranks a token",
    )
    table = Table(
        columns=columns(*names, words=("even", "fits")),
        rows=rows,
        note="Of one rank. left: of the share of its memory, after weights and one step's activations. "
        "ranks a token: that hold some of its experts, in the mean.",
    )
    return Section(title="What a rank holds", tables=(table,))


# -- degrees --------------------------------------------------------------------------------------------


def _degrees(plan: MoePlan, phase: Phase) -> Section:
    name = PHASE_NAMES[phase]
    best = next(place for place, degree in enumerate(plan.degrees) if degree.ranks == plan.best(phase))
    layer, layer_degree = plan.degrees[best].at(phase), plan.degrees[best].ranks
    moved = Table(
        title="Bytes",
        columns=columns(
            "EP", "touched", "touched, all ranks", "dispatch", "combine", "stay", "domain", "cross"
        ),
        rows=tuple(_moved_row(degree, phase) for degree in plan.degrees),
        note="Of one rank but where it says all. touched: experts read, on the rank that touches most. "
        "stay, domain, cross: of dispatch and combine, what stays on the rank, in its domain, or leaves it.",
    )
    times = Table(
        title="Microseconds of a layer",
        columns=columns(
            "EP", "max/mean", "experts", "exchange", "in order", "halves", "waves", "whole layer"
        ),
        rows=tuple(_times_row(degree, phase) for degree in plan.degrees),
        note=f"max/mean: load of the busiest rank. whole layer: with router, latent projections, "
        f"shared experts and sums ({microseconds(layer.rest_seconds)} us at EP {layer_degree}).",
        best=best,
    )
    return Section(
        title=f"Degrees in {name}",
        lead=f"{layer.rank_tokens:,.4g} tokens a rank and step.",
        tables=(moved, times),
        plots=(_time_plot(plan, phase),),
    )


def _moved_row(degree: DegreePlan, phase: Phase) -> tuple[str, ...]:
    layer = degree.at(phase)
    return (
        str(degree.ranks),
        bytes_text(layer.touched_bytes),
        bytes_text(layer.all_touched_bytes),
        bytes_text(layer.dispatch_bytes),
        bytes_text(layer.combine_bytes),
        bytes_text(layer.stay_bytes),
        bytes_text(layer.domain_bytes),
        bytes_text(layer.cross_bytes),
    )


def _times_row(degree: DegreePlan, phase: Phase) -> tuple[str, ...]:
    layer = degree.at(phase)
    return (
        str(degree.ranks) if degree.fits else f"{degree.ranks} (does not fit)",
        f"{layer.max_over_mean:.3f}",
        microseconds(layer.experts_seconds),
        microseconds(layer.exchange_seconds),
        microseconds(layer.serial_seconds),
        microseconds(layer.halves_seconds),
        microseconds(layer.waved_seconds),
        microseconds(layer.layer_seconds),
    )


def _time_plot(plan: MoePlan, phase: Phase) -> Plot:
    parts = (
        ("experts", "experts_seconds"),
        ("dispatch and combine", "exchange_seconds"),
        ("the rest", "rest_seconds"),
    )
    return Plot(
        title=f"Time of a layer in {PHASE_NAMES[phase]}, one part after the other",
        x_name="expert parallel degree",
        y_name="microseconds",
        kind="bars",
        series=tuple(
            Series(
                name=name,
                x=tuple(str(degree.ranks) for degree in plan.degrees),
                y=tuple(getattr(degree.at(phase), field) * 1e6 for degree in plan.degrees),
            )
            for name, field in parts
        ),
    )


# -- balance --------------------------------------------------------------------------------------------


def _balance(plan: MoePlan) -> Section:
    known = {(one.ranks, one.phase, one.placement): one for one in plan.balance}
    rows = []
    for degree in filter(lambda one: one.fits, plan.degrees):
        for phase in PHASES:
            even, *drawn = (known[degree.ranks, phase, placement] for placement in ANY_PLACEMENT)
            loads = (f"{one.max_over_mean:.3f}" for one in drawn)
            lost = (f"{one.serial_seconds / even.serial_seconds - 1:+.1%}" for one in drawn)
            rows.append((str(degree.ranks), PHASE_NAMES[phase], *loads, *lost))
    names = ANY_PLACEMENT[1:]
    table = Table(
        columns=columns("EP", "step", *names, *(f"{name} time" for name in names), words=("step",)),
        rows=tuple(rows),
        note=f"Load of the busiest rank over the mean, drawn over {SAMPLES} steps; and time of experts and "
        "exchange against ranks that are all as busy. numbered: experts lie by their numbers; balanced: by "
        "their load; replicated: the hottest lie on more ranks than one.",
    )
    return Section(
        title="Balance",
        lead=f"Load of the experts: {plan.load}. Degrees above are priced with experts {plan.placement}.",
        tables=(table,),
    )

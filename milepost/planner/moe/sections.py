"""What a plan of expert parallelism shows: its tables and plots."""

from __future__ import annotations

from milepost.planner.moe.degree import PHASES, DegreePlan, Phase
from milepost.planner.moe.plan import MoePlan
from milepost.planner.moe.published import PUBLISHED_GAINS, tail_check
from milepost.planner.moe.question import PLACEMENTS
from milepost.planner.moe.tails import TAILS, TailTimes
from milepost.planner.report import Column, Plot, Report, Section, Series, Table

__all__ = ["moe_report"]

_PHASE_NAMES = {"decode": "decoding", "prefill": "prefill"}


def moe_report(plan: MoePlan) -> Report:
    """Sections from the bytes of a token to the tails."""
    sections = [_bytes(plan)]
    sections += [_degrees(plan, phase) for phase in PHASES]
    sections += [_balance(plan), _overlap(plan), _waves(plan)]
    if plan.tails:
        sections.append(_tails(plan))
    layout = f"TP{plan.tensor_parallel} x DP{plan.data_parallel}"
    return Report(
        title=f"Expert parallelism: {plan.model} on {plan.ranks} x {plan.hardware} ({layout})",
        headline=_headline(plan),
        sections=tuple(sections),
        notes=plan.notes,
        derivations=plan.derivations,
    )


def _headline(plan: MoePlan) -> tuple[tuple[str, str], ...]:
    found = [
        ("expert parallel degree for decoding", f"{plan.best_decode}"),
        ("expert parallel degree for prefill", f"{plan.best_prefill}"),
    ]
    for phase, best in (("decode", plan.best_decode), ("prefill", plan.best_prefill)):
        layer = plan.degree(best).at(phase)
        found.append((f"a layer in {_PHASE_NAMES[phase]}", f"{_us(layer.layer_seconds)} us"))
    found.append(("dispatched and combined, a token and layer", _size(plan.token_layer_bytes)))
    return tuple(found)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"


def _size(count: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= factor:
            return (
                f"{count / factor:.3g} {unit}"
                if abs(count) < 1e3 * factor
                else f"{count / factor:,.0f} {unit}"
            )
    return f"{count:.0f} B"


def _columns(*names: str, words: tuple[str, ...] = ()) -> tuple[Column, ...]:
    return tuple(Column(name, numeric=name not in words) for name in names)


# -- bytes of a token -----------------------------------------------------------------------------------


def _bytes(plan: MoePlan) -> Section:
    rows = [
        (
            "dispatch and combine, at the experts' width",
            _size(plan.token_layer_bytes),
            f"{plan.balance_flops_per_byte:,.0f}",
        ),
        (
            "the same at the hidden size",
            _size(plan.token_layer_bytes_at_hidden),
            f"{plan.balance_flops_per_byte / plan.latent_saving:,.0f}",
        ),
    ]
    table = Table(
        columns=_columns(
            "of a token in one layer", "bytes", "hides below FLOP/byte", words=("of a token in one layer",)
        ),
        rows=tuple(rows),
        note=f"The device computes {plan.device_flops_per_byte:,.0f} FLOP for each byte of a link of its domain, "
        f"{plan.scale_out_flops_per_byte:,.0f} for each byte beyond it; where that is less, communication hides "
        "behind computing (when computing is what binds).",
    )
    lead = (
        f"{plan.num_experts} experts of {_size(plan.expert_bytes)} in each of {plan.moe_layers} layers; "
        f"a token takes {plan.top_k}."
    )
    if plan.latent_saving != 1:
        lead += f" The latent divides bytes between ranks and bytes of experts by {plan.latent_saving:g}."
    return Section(title="Bytes", lead=lead, tables=(table,))


# -- degrees --------------------------------------------------------------------------------------------


def _degrees(plan: MoePlan, phase: Phase) -> Section:
    best = plan.best_decode if phase == "decode" else plan.best_prefill
    names = (
        *("EP", "experts a rank", "weights a rank", "fits", "touched", "stay", "domain", "cross", "max/mean"),
        *("experts us", "exchange us", "in order us", "waves us", "layer us"),
    )
    rows = [_degree_row(degree, phase) for degree in plan.degrees]
    index = next(i for i, degree in enumerate(plan.degrees) if degree.ranks == best)
    any_layer = plan.degrees[index].at(phase)
    table = Table(
        columns=_columns(*names, words=("fits",)),
        rows=tuple(rows),
        note=f"Of one layer and rank. touched: bytes of experts on the rank that touches most. stay, domain, cross: "
        f"dispatched and combined, by where it goes. layer: with {_us(any_layer.rest_seconds)} us of router, "
        "projections, shared experts and sums, which are the same at every degree.",
        best=index,
    )
    plot = Plot(
        title=f"Time of a layer in {_PHASE_NAMES[phase]}",
        x_name="expert parallel degree",
        y_name="microseconds",
        kind="bars",
        series=tuple(
            Series(
                name=name,
                x=tuple(str(degree.ranks) for degree in plan.degrees),
                y=tuple(getattr(degree.at(phase), field) * 1e6 for degree in plan.degrees),
            )
            for name, field in (
                ("experts", "experts_seconds"),
                ("dispatch and combine", "exchange_seconds"),
                ("the rest", "rest_seconds"),
            )
        ),
    )
    return Section(
        title=f"Degrees in {_PHASE_NAMES[phase]}",
        lead=f"{any_layer.rank_tokens:,.4g} tokens a rank and step.",
        tables=(table,),
        plots=(plot,),
    )


def _degree_row(degree: DegreePlan, phase: Phase) -> tuple[str, ...]:
    layer = degree.at(phase)
    fits = "no" if not degree.fits else "yes" if degree.even else "yes, uneven"
    return (
        str(degree.ranks),
        str(degree.experts_per_rank),
        _size(degree.weight_bytes),
        fits,
        _size(layer.touched_bytes),
        _size(layer.stay_bytes),
        _size(layer.domain_bytes),
        _size(layer.cross_bytes),
        f"{layer.max_over_mean:.3f}",
        _us(layer.experts_seconds),
        _us(layer.exchange_seconds),
        _us(layer.serial_seconds),
        _us(layer.waved_seconds),
        _us(layer.layer_seconds),
    )


# -- balance --------------------------------------------------------------------------------------------


def _balance(plan: MoePlan) -> Section:
    known = {(one.ranks, one.phase, one.placement): one.max_over_mean for one in plan.balance}
    rows = tuple(
        (
            str(degree.ranks),
            *(f"{known[degree.ranks, phase, placement]:.3f}" for phase in PHASES for placement in PLACEMENTS),
        )
        for degree in plan.degrees
    )
    names = [f"{_PHASE_NAMES[phase]}, {placement}" for phase in PHASES for placement in PLACEMENTS]
    table = Table(
        columns=_columns("EP", *names),
        rows=rows,
        note="Load of the busiest rank over the mean, drawn. numbered: experts lie by their numbers; balanced: by "
        "their load; replicated: the hottest lie on more ranks than one.",
    )
    return Section(title="Balance", lead=f"Load of the experts: {plan.load}.", tables=(table,))


# -- overlap and waves ----------------------------------------------------------------------------------


def _overlap(plan: MoePlan) -> Section:
    rows = []
    for degree in plan.degrees:
        for phase in PHASES:
            layer = degree.at(phase)
            rows.append(
                (
                    str(degree.ranks),
                    _PHASE_NAMES[phase],
                    layer.experts_bound,
                    f"{layer.exchange_ratio:.2f}",
                    "yes" if layer.exchange_ratio <= 1 else "no",
                    f"{layer.serial_seconds / layer.halves_seconds:.2f}x",
                    f"{layer.serial_seconds / layer.waved_seconds:.2f}x",
                )
            )
    words = ("step", "experts bound by", "hidden")
    table = Table(
        columns=_columns(
            "EP", "step", "experts bound by", "r", "hidden", "halves (Comet)", "waves", words=words
        ),
        rows=tuple(rows),
        note="r: exchange over experts. In order takes 1 + r, waves max(1, r) + min(1, r) / waves. "
        + PUBLISHED_GAINS,
    )
    return Section(title="Overlap", tables=(table,))


def _waves(plan: MoePlan) -> Section:
    tokens = list(dict.fromkeys(point.rank_tokens for point in plan.waves))
    by_point = {(point.ranks, point.rank_tokens): point.shape for point in plan.waves}
    rows = []
    for degree in plan.degrees:
        shapes = [by_point[degree.ranks, count] for count in tokens]
        cells = (f"{shape.experts_per_wave} ({shape.waves})" for shape in shapes)
        rows.append((str(degree.ranks), str(degree.experts_per_rank), *cells))
    table = Table(
        columns=_columns("EP", "experts a rank", *(f"{count:,}" for count in tokens)),
        rows=tuple(rows),
        note="Experts of a wave (and waves), by tokens of a rank.",
    )
    return Section(title="Waves", tables=(table,))


# -- tails ----------------------------------------------------------------------------------------------


def _tails(plan: MoePlan) -> Section:
    group = plan.tensor_parallel if plan.tensor_parallel > 1 else 8
    chosen = [tail for tail in plan.tails if tail.ranks == group]
    tables = [_tail_times(chosen, group), _tail_work(chosen, group), _tail_winners(plan)]
    check = tail_check(plan)
    if check is not None:
        tables.append(check)
    plot = Plot(
        title=f"The three tails at TP{group}",
        x_name="tokens of a step",
        y_name="microseconds",
        log_x=True,
        log_y=True,
        series=tuple(
            Series(
                name=name,
                x=tuple(float(tail.tokens) for tail in chosen),
                y=tuple(next(one.seconds for one in tail.tails if one.name == name) * 1e6 for tail in chosen),
            )
            for name in TAILS
        ),
    )
    lead = " ".join(f"{name}: {what}." for name, what in TAILS.items())
    return Section(title="Tails under tensor parallelism", lead=lead, tables=tuple(tables), plots=(plot,))


def _tail_times(chosen: list[TailTimes], group: int) -> Table:
    rows = tuple(
        (f"{tail.tokens:,}", *(f"{one.seconds * 1e6:,.2f}" for one in tail.tails), tail.best)
        for tail in chosen
    )
    return Table(
        title=f"Microseconds at TP{group}",
        columns=_columns("tokens", *TAILS, "quickest", words=("quickest",)),
        rows=rows,
    )


def _tail_work(chosen: list[TailTimes], group: int) -> Table:
    rows = []
    for tail in chosen[:: max(1, len(chosen) // 5)]:
        for one in tail.tails:
            rows.append(
                (
                    f"{tail.tokens:,}",
                    one.name,
                    _size(one.network_bytes),
                    f"{one.flops / 1e9:,.3g}",
                    _size(one.memory_bytes),
                )
            )
    return Table(
        title=f"Work of a rank at TP{group}",
        columns=_columns("tokens", "tail", "received", "GFLOP", "memory", words=("tail",)),
        rows=tuple(rows),
    )


def _tail_winners(plan: MoePlan) -> Table:
    rows = tuple(
        (f"{one.ranks}", f"{one.first_tokens:,}", f"{one.last_tokens:,}", one.best)
        for one in plan.tail_ranges
    )
    return Table(
        title="The quickest tail",
        columns=_columns("TP", "from tokens", "to tokens", "tail", words=("tail",)),
        rows=rows,
    )

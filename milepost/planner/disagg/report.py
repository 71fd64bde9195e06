"""What a disaggregation plan shows: bytes, the balance, who prefills what, published figures."""

from __future__ import annotations

import math

from milepost.planner.disagg.exports import checked_error
from milepost.planner.disagg.offload import Fleet
from milepost.planner.disagg.plan import DisaggPlan, FleetPlan
from milepost.planner.disagg.transfers import EXPORT_TOKENS
from milepost.planner.figures import bytes_text, seconds_text, tokens_text
from milepost.planner.report import Plot, Report, Section, Series, Table, columns
from milepost.sim.cost.parallel import division_text

__all__ = ["disagg_report"]


def disagg_report(plan: DisaggPlan) -> Report:
    """Tables and plots of a plan."""
    sections = [_transfers(plan), _balance(plan), _choices(plan), _remote(plan)]
    if plan.spot is not None:
        sections.append(_spot(plan))
    if plan.fleet is not None:
        sections.append(_fleet(plan.fleet))
    sections.append(_models(plan))
    return Report(
        title=f"{plan.model}: prefill on {plan.prefill.hardware}, decode on {plan.decode.hardware}",
        headline=_headline(plan),
        sections=tuple(section for section in sections if section.tables or section.plots),
        notes=plan.notes,
        derivations=plan.derivations,
    )


def _headline(plan: DisaggPlan) -> tuple[tuple[str, str], ...]:
    balance = plan.balance
    found = [
        ("prefill : decode instances", f"{balance.prefill_instances} : {balance.decode_instances}"),
        ("devices", f"{balance.devices:,}"),
        ("requests a second", _rate(balance.requests_per_second)),
        ("tokens/s a device", f"{balance.output_tokens_per_second_per_device:,.1f}"),
        ("over prefill and decode together", f"{plan.colocated.gain_ratio:.2f} x"),
        ("sent a request", bytes_text(plan.mix.sent_bytes)),
        ("sent in all", _bandwidth(balance.sent_bytes_per_second)),
    ]
    if balance.cost_per_million_output_tokens is not None:
        found.append(("a million output tokens", _money(balance.cost_per_million_output_tokens)))
    return tuple(found)


# -- bytes --------------------------------------------------------------------------------------------


def _transfers(plan: DisaggPlan) -> Section:
    rows = tuple(
        (
            tokens_text(one.prompt_tokens) + ("" if one.fits_model else " *"),
            bytes_text(one.sent_bytes),
            bytes_text(one.all_attention_bytes),
            f"{one.all_attention_bytes / one.sent_bytes:.2f} x" if one.sent_bytes else "-",
            seconds_text(one.transfer_seconds),
            seconds_text(one.prefill_seconds),
            _bandwidth(one.kv_bytes_per_second),
            seconds_text(one.exposed_whole_seconds),
            seconds_text(one.exposed_chunk_wise_seconds),
            seconds_text(one.exposed_layer_wise_seconds),
        )
        for one in plan.transfers
    )
    names = (
        "prompt",
        "sent",
        "all attention",
        "saved",
        "transfer",
        "prefill",
        "exports",
        "exposed: whole",
        "by chunks",
        "by layers",
    )
    division = division_text(plan.prefill.tensor_parallel, plan.prefill.data_parallel)
    lead = (
        f"State and KV of one request, at {_bandwidth(plan.network_bytes_per_second)} from a prefill "
        f"instance ({division}). Exports: what an instance sends that never rests. Exposed: what a request "
        "waits for of its transfer when it leaves after prefill, chunk by chunk, or layer by layer."
    )
    note = ""
    if not all(one.fits_model for one in plan.transfers):
        note = "* longer than the model reads."
    lengths = tuple(float(one.prompt_tokens) for one in plan.transfers)
    plot = Plot(
        title="Bytes from prefill to decode",
        x_name="prompt tokens",
        y_name="GB",
        series=(
            Series(name=plan.model, x=lengths, y=tuple(one.sent_bytes / 1e9 for one in plan.transfers)),
            Series(
                name="all layers attention",
                x=lengths,
                y=tuple(one.all_attention_bytes / 1e9 for one in plan.transfers),
            ),
        ),
        log_x=True,
        log_y=True,
    )
    exports = tuple(one.kv_bytes_per_second / 1e9 for one in plan.transfers)
    network = plan.network_bytes_per_second / 1e9
    throughput = Plot(
        title="KV throughput of a prefill instance",
        x_name="prompt tokens",
        y_name="GB/s",
        series=(
            Series(name="exports, never resting", x=lengths, y=exports),
            Series(name="network", x=lengths, y=(network,) * len(lengths)),
        ),
        log_x=True,
        log_y=True,
    )
    table = Table(columns=columns(*names, words=names[:1]), rows=rows, note=note)
    return Section(title="Bytes of a request", lead=lead, tables=(table,), plots=(plot, throughput))


def _bandwidth(bytes_per_second: float) -> str:
    return f"{bytes_text(bytes_per_second)}/s"


def _rate(per_second: float) -> str:
    """Requests a second, with three digits."""
    return f"{per_second:,.2f}" if per_second >= 1 else f"{per_second:.3g}"


# -- balance ------------------------------------------------------------------------------------------


def _balance(plan: DisaggPlan) -> Section:
    balance = plan.balance
    sides = tuple(
        (
            name,
            side.hardware,
            division_text(side.tensor_parallel, side.data_parallel),
            f"{side.devices}",
            bytes_text(side.rank_weight_bytes),
            bytes_text(side.rank_free_bytes),
            _rate(requests),
            f"{count:,}",
        )
        for name, side, requests, count in (
            ("prefill", plan.prefill, balance.prefill_requests_per_second, balance.prefill_instances),
            ("decode", plan.decode, balance.decode_requests_per_second, balance.decode_instances),
        )
    )
    side_columns = ("side", "hardware", "ranks", "devices", "weights", "free", "requests/s", "instances")
    facts = [
        ("prefill instances for each decode instance", f"{balance.prefill_per_decode_ratio:.3f}"),
        ("requests a second", _rate(balance.requests_per_second)),
        ("output tokens a second", f"{balance.output_tokens_per_second:,.0f}"),
        ("output tokens a second, a device", f"{balance.output_tokens_per_second_per_device:,.1f}"),
        (
            "the same, prefill and decode together",
            f"{plan.colocated.output_tokens_per_second_per_device:,.1f}",
        ),
        ("decode batch of a group", f"{balance.batch_per_group:,}"),
        ("TPOT", seconds_text(balance.tpot_seconds)),
        ("prefill instances are busy", f"{balance.prefill_busy_share:.0%}"),
        (f"TTFT at p{balance.ttft_percentile:g}, with the mean wait", _ttft(balance.ttft_seconds)),
        (
            "sent a second, each prefill instance",
            _bandwidth(balance.sent_bytes_per_second_per_prefill_instance),
        ),
        ("what keeps it from more", balance.bound),
    ]
    if balance.cost_per_million_output_tokens is not None:
        facts.append(("a million output tokens cost", _money(balance.cost_per_million_output_tokens)))
    return Section(
        title="How many of each",
        lead=f"Prompts of {plan.mix.prompt_tokens:,.0f} tokens in the mean, {plan.mix.cached_tokens:,.0f} of "
        f"them cached, and outputs of {plan.mix.output_tokens:,.0f}.",
        tables=(
            Table(
                columns=columns(*side_columns, words=side_columns[:3]),
                rows=sides,
                note="Weights and free bytes are a device's.",
            ),
            Table(columns=columns("figure", "value", words=("figure",)), rows=tuple(facts)),
        ),
    )


def _ttft(value: float) -> str:
    return seconds_text(value) if math.isfinite(value) else "without end: prefill has no room"


def _choices(plan: DisaggPlan) -> Section:
    priced = any(one.cost_per_million_output_tokens is not None for one in plan.choices)
    names = ["hardware", "ranks", "devices", "prefill", "requests/s a device", "tokens/s a device"]
    if priced:
        names += ["a million tokens", "even price"]
    rows = []
    for one in plan.choices:
        ranks = division_text(one.tensor_parallel, one.data_parallel)
        row = [one.hardware, ranks, f"{one.devices}", seconds_text(one.prefill_seconds)]
        row.append(one.refused or f"{one.requests_per_second_per_device:.3f}")
        row.append("-" if one.refused else f"{one.output_tokens_per_second_per_device:,.1f}")
        if priced:
            row += [_money(one.cost_per_million_output_tokens), _money(one.even_price_per_device_hour)]
        rows.append(tuple(row))
    note = "Tokens a second of all devices of both sides, balanced exactly."
    if priced:
        note += " Even price: of a device-hour, at which prefill costs what it does on the decode side's."
    table = Table(columns=columns(*names, words=names[:2]), rows=tuple(rows), note=note, best=_chosen(plan))
    return Section(title="Prefill instances that were looked at", tables=(table,))


def _chosen(plan: DisaggPlan) -> int | None:
    side = plan.prefill
    chosen = (side.hardware, side.tensor_parallel, side.data_parallel)
    rows = ((one.hardware, one.tensor_parallel, one.data_parallel) for one in plan.choices)
    return next((place for place, row in enumerate(rows) if row == chosen), None)


def _money(value: float | None) -> str:
    """An amount in the currency of the prices."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if value >= 0.1 else f"{value:.4f}"


# -- who prefills what --------------------------------------------------------------------------------


def _remote(plan: DisaggPlan) -> Section:
    rule = plan.remote
    said = _from(rule.threshold_tokens, rule.longest_tokens)
    if rule.threshold_tokens is not None:
        said += f", {rule.remote_share:.0%} of the requests"
    rows = [
        ("sooner for the request itself", _from(rule.own_threshold_tokens, rule.longest_tokens)),
        ("less waiting of all", said),
        ("there: first token, prefilled here", seconds_text(rule.local_seconds)),
        (f"there: delay of each of {rule.batch:,} others", seconds_text(rule.local_delay_seconds)),
        ("there: queue, prefill, exposed transfer", seconds_text(rule.remote_seconds)),
    ]
    if rule.link_threshold_tokens is not None:
        rows.append(
            (
                "least threshold that fits the link",
                f"{rule.link_threshold_tokens:,} uncached tokens, {rule.link_share:.0%} of the requests",
            )
        )
    lead = (
        "Prefilled within the decode steps of its own instance, a request makes the others wait; elsewhere "
        "it waits for queue, prefill and transfer itself. There: at the threshold at which all wait alike."
    )
    table = Table(columns=columns("figure", "value", words=("figure", "value")), rows=tuple(rows))
    return Section(title="When to prefill remotely", lead=lead, tables=(table,))


def _from(threshold: int | None, longest: int) -> str:
    return (
        f"from {threshold:,} uncached tokens on" if threshold else f"never, up to {longest:,} uncached tokens"
    )


def _spot(plan: DisaggPlan) -> Section:
    spot = plan.spot
    assert spot is not None
    rows = (
        ("instances lost within an hour", f"{spot.loss.loss_rate_per_hour:.1%}"),
        ("prefills that are hit", f"{spot.loss.lost_prefill_share:.4%}"),
        ("work done again", f"{spot.loss.redone_share:.4%}"),
        ("tokens computed again", f"{spot.redone_tokens_per_second:,.1f} a second"),
        ("time in which an instance serves", f"{spot.loss.availability_share:.2%}"),
        ("prefill instances without losses", f"{spot.needed_instances:.2f}"),
        ("prefill instances with losses", f"{spot.instances} ({spot.extra_instances} more)"),
    )
    lead = (
        "Prefill starts anew when its instance is lost; what has been sent stays valid. A lost instance is "
        f"back after {seconds_text(spot.loss.restart_seconds)}."
    )
    return Section(
        title="Spot instances",
        lead=lead,
        tables=(Table(columns=columns("figure", "value", words=("figure",)), rows=rows),),
    )


def _fleet(fleet: FleetPlan) -> Section:
    rows = (
        _fleet_row("long prompts remote", fleet.offloaded, fleet.gain_ratio),
        _fleet_row("every prompt remote", fleet.all_remote, fleet.naive_gain_ratio),
        _fleet_row("decode hardware alone", fleet.local_only, 1.0),
    )
    names = (
        "use",
        "threshold",
        "remote",
        "remote : prefill : decode",
        "requests/s",
        "gain",
        "sent",
        "bound by",
    )
    lead = (
        "The threshold on uncached tokens and the division of the decode hardware that serve most "
        "(Prefill-as-a-Service, arXiv:2604.15039); the last row has as many devices of decode hardware alone."
    )
    return Section(
        title="A fleet of both kinds",
        lead=lead,
        tables=(Table(columns=columns(*names, words=names[:1]), rows=rows, best=0),),
    )


def _fleet_row(name: str, fleet: Fleet, gain: float) -> tuple[str, ...]:
    division = f"{fleet.remote_instances} : {fleet.local_prefill_instances} : {fleet.decode_instances}"
    return (
        name,
        f"{fleet.threshold_tokens:,}",
        f"{fleet.remote_share:.1%}",
        division,
        _rate(fleet.requests_per_second),
        f"{gain:.2f} x",
        _bandwidth(fleet.sent_bytes_per_second),
        fleet.bound,
    )


# -- other models -------------------------------------------------------------------------------------


def _models(plan: DisaggPlan) -> Section:
    tables = []
    if plan.other_models:
        own = next(one for one in plan.transfers if one.prompt_tokens == plan.other_models[0].prompt_tokens)
        rows = [
            (
                plan.model,
                f"{plan.prefill.devices}",
                bytes_text(own.sent_bytes),
                seconds_text(own.prefill_seconds),
                _bandwidth(own.kv_bytes_per_second),
                _bandwidth(own.kv_bytes_per_second / plan.prefill.devices),
            )
        ]
        rows += [
            (
                one.model,
                f"{one.devices}",
                bytes_text(one.sent_bytes),
                seconds_text(one.prefill_seconds),
                _bandwidth(one.kv_bytes_per_second),
                _bandwidth(one.kv_bytes_per_second / one.devices),
            )
            for one in plan.other_models
        ]
        names = ("model", "devices", "sent", "prefill", "exports", "a device")
        length = tokens_text(plan.other_models[0].prompt_tokens)
        tables.append(
            Table(
                title=f"At {length} tokens on {plan.prefill.hardware}",
                columns=columns(*names, words=names[:1]),
                rows=tuple(rows),
            )
        )
    if plan.published:
        tables.append(_published(plan))
    return Section(title="Other models", tables=tuple(tables))


def _published(plan: DisaggPlan) -> Table:
    rows = tuple(
        (
            one.model,
            tokens_text(one.prompt_tokens),
            f"{one.published_bytes_per_second * 8 / 1e9:.2f}",
            f"{one.predicted_bytes_per_second * 8 / 1e9:.2f}",
            f"{one.ratio:.2f}",
            f"{one.with_overhead_ratio:.2f}",
            seconds_text(one.published_prefill_seconds),
            seconds_text(one.predicted_prefill_seconds),
        )
        for one in plan.published
        if one.prompt_tokens >= EXPORT_TOKENS
    )
    names = ("model", "prompt", "Gbit/s", "ours", "ratio", "with overhead", "prefill", "ours")
    error = checked_error(plan.published)
    overhead = next(one.value for one in plan.derivations if one.name == "published.overhead_seconds")
    note = (
        "At TP8; prefill is what our bytes and the published throughput come to. With overhead: "
        f"{seconds_text(overhead)} a prompt, fitted to the rows of 1k tokens"
    )
    note += f"; mean error on all others, 8k to 128k: {error:.0%}." if error is not None else "."
    return Table(
        title="KV throughput of 8 H200: published (arXiv:2604.15039, table 3), and by our roofline",
        columns=columns(*names, words=names[:1]),
        rows=rows,
        note=note,
    )

"""Plans prefill and decode on machines of their own; see `plan_disagg`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from milepost.errors import ConfigError
from milepost.planner.deployment import check_types
from milepost.planner.disagg.balancing import balance_of, colocated_of
from milepost.planner.disagg.choices import best_choice, choice_rows
from milepost.planner.disagg.exports import published_exports
from milepost.planner.disagg.instances import Instance
from milepost.planner.disagg.lengths import Mix, mix_of, parse_lengths
from milepost.planner.disagg.losses import note_losses, spot_of, with_losses
from milepost.planner.disagg.plan import Balance, DisaggPlan, MixFacts, PrefillChoice, SideFacts
from milepost.planner.disagg.question import DisaggQuestion, check_question
from milepost.planner.disagg.rates import DecodeRate, PrefillRate
from milepost.planner.disagg.routing import fleet_of, remote_rule
from milepost.planner.disagg.sheets import note_decode, note_mix, note_prefill, note_sizes
from milepost.planner.disagg.sides import Sides, choose_prefill, decode_side, prefill_instances, read_sides
from milepost.planner.disagg.trace_mix import trace_mix
from milepost.planner.disagg.transfers import other_models, transfers
from milepost.planner.worksheet import Worksheet
from milepost.sim.traces.trace import Trace

__all__ = ["plan_disagg", "read_mix"]


def plan_disagg(question: DisaggQuestion, trace: Trace | None = None) -> DisaggPlan:
    """Sizes a deployment that prefills and decodes on machines of their own.

    Args:
        question: the model, both sides, the requests, the limits.
        trace: requests to take lengths from, in place of the question's.

    Raises:
        ConfigError: a value is wrong, something does not fit, or a limit can't be met; with the nearest that
            can.
        CheckpointError: the model's config can't be read.
        InputError: a trace that does not tell what is needed.
    """
    ask = question
    check_types(ask)
    check_question(ask)
    if ask.simulated_bytes and trace is None:
        raise ConfigError("--simulate replays a trace for its hits. Give --trace as well.")
    sides = read_sides(ask)
    mix = read_mix(ask, sides, trace)
    instances = prefill_instances(ask, sides, sides.prefill_hardware, mix.longest_tokens)
    prefill, looked = choose_prefill(ask, sides, mix, instances)
    decode = decode_side(ask, sides, mix)

    sheet = Worksheet()
    note_sizes(sheet, sides, ask)
    note_mix(sheet, mix)
    note_prefill(sheet, prefill, ask)
    note_decode(sheet, decode, sides, ask)
    rows = transfers(sheet, sides, prefill.instance, ask)
    counted, loss = with_losses(prefill, mix, ask)
    note_losses(sheet, counted, loss, ask)
    balance = balance_of(sheet, counted, decode, ask)
    spot = spot_of(sheet, loss, balance)
    remote = remote_rule(sheet, sides, prefill, decode, mix, balance, ask)
    fleet = fleet_of(sheet, sides, prefill, decode, mix, ask)
    colocated = colocated_of(sheet, decode, mix, ask)
    others, published = other_models(sheet, sides, ask), published_exports(sheet)
    choices = choice_rows(sheet, ask, sides, mix, looked)
    return DisaggPlan(
        model=sides.model,
        prefill=_side(prefill.instance, ask.prefill_price or None),
        decode=_side(decode.instance, ask.decode_price or None),
        mix=_facts(mix, sheet),
        network_bytes_per_second=ask.network_bytes_per_second,
        transfers=rows,
        other_models=others,
        published=published,
        balance=balance,
        colocated=colocated,
        choices=choices,
        remote=remote,
        spot=spot,
        fleet=fleet,
        derivations=sheet.derivations,
        notes=(
            *_notes(ask, mix, prefill, decode, balance),
            *_better_hardware(sides, choices),
        ),
    )


def read_mix(ask: DisaggQuestion, sides: Sides, trace: Trace | None = None) -> Mix:
    """The requests of a question; prompts are cut to the model's longest.

    Raises:
        ConfigError: wrong lengths.
        InputError: a trace that does not tell what is needed.
    """
    if trace is not None:
        return trace_mix(trace, ask, sides.shape.max_position)
    prompts, outputs = parse_lengths("--lengths", ask.lengths), parse_lengths("--outputs", ask.outputs)
    longest = sides.shape.max_position
    given = prompts.points()
    cut = [min(tokens, longest) for tokens in given]
    source = f"--lengths {prompts.text}, --outputs {outputs.text}"
    if ask.hit_rate:
        source += f", {ask.hit_rate:.1%} of each prompt cached"
    mix = mix_of(cut, outputs.points(), hit_rate=ask.hit_rate, source=source)
    if over := sum(tokens > longest for tokens in given):
        share = over / len(given)
        note = f"{share:.1%} of the prompts are longer than the model reads and count as {longest:,} tokens."
        return msgspec.structs.replace(mix, notes=(note,))
    return mix


def _side(instance: Instance, price: float | None) -> SideFacts:
    return SideFacts(
        hardware=instance.hardware.name,
        tensor_parallel=instance.sizes.tensor_parallel,
        data_parallel=instance.sizes.data_parallel,
        devices=instance.devices,
        rank_weight_bytes=instance.weight_bytes,
        rank_free_bytes=instance.free_bytes,
        price_per_device_hour=price,
    )


def _facts(mix: Mix, sheet: Worksheet) -> MixFacts:
    return MixFacts(
        source=mix.source,
        prompt_tokens=mix.prompt_tokens,
        cached_tokens=mix.cached_tokens,
        output_tokens=mix.output_tokens,
        decode_context_tokens=mix.decode_context_tokens,
        held_tokens=mix.held_tokens,
        sent_bytes=sheet["mix.sent_bytes"],
    )


def _notes(
    ask: DisaggQuestion, mix: Mix, prefill: PrefillRate, decode: DecodeRate, balance: Balance
) -> tuple[str, ...]:
    notes = [
        f"Requests: {mix.source}.",
        *mix.notes,
        "Each request's state and KV cross once: ranks that all hold MLA's rows copy them in their domain.",
        "Every request sends its whole KV, cached or not: the decode side is taken to keep none of it.",
        "Waits for prefill are means, of Poisson arrivals at each instance, first come, first served.",
        "Times are the roofline's: no imbalance between experts or ranks, no overlap of parts.",
    ]
    if not balance.fits_link:
        notes.append(
            f"What every request sends does not fit the link: {balance.sent_bytes_per_second / 1e9:,.2f} of "
            f"{ask.link_bytes_per_second / 1e9:,.2f} GB/s. Only prompts above the link's threshold may be "
            "sent; --fleet divides the machines for that."
        )
    if not ask.ttft_limit_seconds:
        notes.append("Without --ttft the prefill instance is the one that takes most requests a device.")
    if ask.loss_rate_per_hour and mix.cached_tokens:
        notes.append("A lost instance's prefix cache is gone with it; hits are not lowered for that.")
    if prefill.bound == "network":
        notes.append("The network keeps prefill instances idle: they can't send what they could compute.")
    if decode.bound == "memory":
        notes.append("Memory bounds the decode batch, not the TPOT limit: fp8 KV or more devices would help.")
    if ask.hit_rate:
        notes.append(
            "Cached tokens are a share of every prompt alike; a trace would tell which prompts share."
        )
    return tuple(notes)


def _better_hardware(sides: Sides, choices: Sequence[PrefillChoice]) -> tuple[str, ...]:
    """What to know where the decode side's hardware would prefill better than what was named for it."""
    place = best_choice(choices)
    if place is None or choices[place].hardware == sides.prefill_hardware.name:
        return ()
    best = choices[place]
    own = [one for one in choices if one.hardware == sides.prefill_hardware.name]
    costs = [one.cost_per_million_output_tokens for one in own if one.cost_per_million_output_tokens]
    if best.cost_per_million_output_tokens and costs:
        least = min(costs)
        how = f"{best.cost_per_million_output_tokens:,.2f} instead of {least:,.2f} a million output tokens"
    else:
        most = max(one.output_tokens_per_second_per_device for one in own)
        how = f"{best.output_tokens_per_second_per_device:,.1f} instead of {most:,.1f} tokens/s a device"
    return (f"Prefill on {best.hardware}, as decode, would do better: {how}.",)

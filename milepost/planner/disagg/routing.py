"""Which requests a plan's sides prefill where; the rules are those of `offload`."""

from __future__ import annotations

import math
from typing import NamedTuple

from milepost.planner.disagg.balance import wait_seconds
from milepost.planner.disagg.lengths import Mix, Share
from milepost.planner.disagg.offload import Fleet, OffloadPoint, best_fleet, crossing, network_threshold
from milepost.planner.disagg.plan import Balance, FleetPlan, RemoteRule
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.rates import DecodeRate, PrefillRate, exposed_of
from milepost.planner.disagg.sides import Sides
from milepost.planner.worksheet import Worksheet

__all__ = ["fleet_of", "remote_rule"]


class _Waits(NamedTuple):
    """Of one request: its own way to the first token here, what others lose by it, and its way elsewhere."""

    local: float
    delay: float
    remote: float


def remote_rule(
    sheet: Worksheet,
    sides: Sides,
    prefill: PrefillRate,
    decode: DecodeRate,
    mix: Mix,
    balance: Balance,
    ask: DisaggQuestion,
) -> RemoteRule:
    """From which uncached length on everybody waits less when a request is prefilled elsewhere."""
    # Without any room prefill's queue has no end; then the rule is for an instance 90 % busy.
    utilization = min(balance.prefill_busy_share, 0.9)
    queue = wait_seconds(utilization, prefill.instance.groups, prefill.residual_seconds)
    batch = decode.batch
    cached = round(mix.cached_tokens)
    step = decode.instance.step_seconds(batch, mix.decode_context_tokens)

    def waits(uncached: int) -> _Waits:
        mixed = decode.instance.mixed_seconds(batch, mix.decode_context_tokens, uncached, cached)
        steps = math.ceil(uncached / ask.chunk_tokens)
        share = Share(weight=1.0, prompt_tokens=uncached + cached, cached_tokens=cached)
        exposed = exposed_of(prefill.instance, sides.sizes, share, ask.network_bytes_per_second)
        alone = prefill.instance.prefill_seconds(uncached, cached)
        return _Waits(mixed, mixed - steps * step, queue + alone + exposed.by(ask.streaming))

    def better_for_all(uncached: int) -> bool:
        one = waits(uncached)
        return one.remote <= one.local + batch * one.delay

    def better_for_itself(uncached: int) -> bool:
        one = waits(uncached)
        return one.remote <= one.local

    longest = max(1, sides.shape.max_position - cached)
    threshold = crossing(better_for_all, longest)
    at = waits(threshold or longest)
    sheet.given(
        "remote.queue_seconds",
        queue,
        "seconds",
        f"the wait of prefill instances that are {utilization:.0%} busy",
    )
    sheet.given("remote.threshold_tokens", threshold or longest, "tokens", "where waiting of all is the same")
    sheet.given("remote.local_seconds", at.local, "seconds", "roofline of steps that decode and prefill")
    sheet.given(
        "remote.delay_seconds", at.delay, "seconds", "the same, less plain decode steps", "of each other"
    )
    sheet.derive(
        "remote.local_cost_seconds",
        "remote.local_seconds + decode.batch * remote.delay_seconds",
        "request-seconds",
        meaning="waiting of the request and of all others, prefilled here",
    )
    sheet.given(
        "remote.remote_seconds",
        at.remote,
        "request-seconds",
        "queue, prefill alone, exposed transfer",
        "elsewhere",
    )
    link, link_share = _link_threshold(sides, prefill, decode, mix, ask)
    return RemoteRule(
        batch=batch,
        own_threshold_tokens=crossing(better_for_itself, longest),
        threshold_tokens=threshold,
        longest_tokens=longest,
        local_seconds=at.local,
        local_delay_seconds=at.delay,
        remote_seconds=at.remote,
        remote_share=_share_from(mix, threshold),
        link_threshold_tokens=link,
        link_share=link_share,
    )


def _share_from(mix: Mix, threshold: int | None) -> float:
    if threshold is None:
        return 0.0
    return math.fsum(share.weight for share in mix.shares if share.uncached_tokens >= threshold)


def _points(sides: Sides, prefill: PrefillRate, decode: DecodeRate, mix: Mix) -> list[OffloadPoint]:
    remote, local = prefill.instance, decode.instance
    return [
        OffloadPoint(
            weight=share.weight,
            uncached_tokens=share.uncached_tokens,
            remote_seconds=remote.filled_seconds(share.uncached_tokens, share.cached_tokens) / remote.groups,
            local_seconds=local.filled_seconds(share.uncached_tokens, share.cached_tokens) / local.groups,
            sent_bytes=sides.sizes.sent(share.prompt_tokens),
        )
        for share in mix.shares
    ]


def _link_threshold(
    sides: Sides, prefill: PrefillRate, decode: DecodeRate, mix: Mix, ask: DisaggQuestion
) -> tuple[int | None, float]:
    if not (ask.link_bytes_per_second and ask.requests_per_second):
        return None, 0.0
    return network_threshold(
        _points(sides, prefill, decode, mix), ask.requests_per_second, ask.link_bytes_per_second
    )


def _note_fleet(sheet: Worksheet, key: str, fleet: Fleet) -> None:
    searched, over = "the one that serves most, of all that part the mix", "over all requests of the mix"
    sheet.given(f"{key}.threshold_tokens", fleet.threshold_tokens, "tokens", searched)
    sheet.given(f"{key}.decode_instances", fleet.decode_instances, "instances", searched)
    terms = [f"{key}.decode_instances * decode.requests_per_second"]
    if fleet.remote_seconds > 0:
        sheet.given(f"{key}.remote_instances", fleet.remote_instances, "instances", "--fleet")
        sheet.given(f"{key}.remote_seconds", fleet.remote_seconds, "seconds", f"roofline; {over}", "above it")
        sheet.given(f"{key}.sent_bytes", fleet.sent_bytes, "bytes", over, "above it")
        terms += [
            f"{key}.remote_instances / {key}.remote_seconds",
            f"fleet.link_bytes_per_second / {key}.sent_bytes",
        ]
    if fleet.local_seconds > 0:
        count = fleet.local_prefill_instances
        sheet.given(f"{key}.local_prefill_instances", count, "instances", searched)
        sheet.given(f"{key}.local_seconds", fleet.local_seconds, "seconds", f"roofline; {over}", "up to it")
        terms.append(f"{key}.local_prefill_instances / {key}.local_seconds")
    formula = f"min({', '.join(terms)})" if len(terms) > 1 else terms[0]
    source = "arXiv:2604.15039, equations 3 to 6"
    sheet.derive(f"{key}.requests_per_second", formula, "requests/s", source=source)
    sheet.check(f"{key}.requests_per_second", fleet.requests_per_second)


def fleet_of(
    sheet: Worksheet, sides: Sides, prefill: PrefillRate, decode: DecodeRate, mix: Mix, ask: DisaggQuestion
) -> FleetPlan | None:
    """A fleet of both kinds of hardware at its best, beside two plain ones; None if none is asked about."""
    if ask.fleet is None:
        return None
    remote, local = ask.fleet
    link = min(ask.link_bytes_per_second or math.inf, remote * ask.network_bytes_per_second)
    points = _points(sides, prefill, decode, mix)
    rate = decode.requests_per_second
    offloaded = best_fleet(
        points,
        remote_instances=remote,
        local_instances=local,
        decode_requests=rate,
        link_bytes_per_second=link,
    )
    all_remote = best_fleet(
        points,
        remote_instances=remote,
        local_instances=local,
        decode_requests=rate,
        link_bytes_per_second=link,
        everything_remote=True,
    )
    # As many devices, all of the decode side's hardware.
    more = remote * prefill.instance.devices // decode.instance.devices
    local_only = best_fleet(points, remote_instances=0, local_instances=local + more, decode_requests=rate)
    if math.isfinite(link):
        sheet.given("fleet.link_bytes_per_second", link, "bytes/s", "--link, or --network of all remote ones")
    for name, fleet in (("offloaded", offloaded), ("all_remote", all_remote), ("local_only", local_only)):
        _note_fleet(sheet, f"fleet.{name}", fleet)
    sheet.derive(
        "fleet.gain", "fleet.offloaded.requests_per_second / fleet.local_only.requests_per_second", "times"
    )
    sheet.derive(
        "fleet.naive_gain",
        "fleet.all_remote.requests_per_second / fleet.local_only.requests_per_second",
        "times",
    )
    return FleetPlan(
        offloaded=offloaded,
        all_remote=all_remote,
        local_only=local_only,
        gain_ratio=sheet["fleet.gain"],
        naive_gain_ratio=sheet["fleet.naive_gain"],
    )

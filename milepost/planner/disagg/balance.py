"""How many prefill instances feed how many decode instances, and what that serves.

    prefill        g_p u / E[S] requests a second of an instance: g groups, u of their time, S the time that a
                   request takes of a busy group; and at most network / E[bytes]
    TTFT limit     wait + prefill + exposed transfer <= limit at a percentile of the requests. A group with
                   Poisson arrivals waits u / (1 - u) R in the mean, R = E[S^2] / (2 E[S]) (Pollaczek and
                   Khinchine), so u = W / (W + R) with W what the limit leaves
    decode         g_d B / (step(B) E[output]) requests a second: B is the largest batch whose step meets the
                   TPOT limit and whose states and KV fit
    ratio          decode's requests a second over prefill's: prefill instances for each decode instance

The formulas of prefill and decode are those of Prefill-as-a-Service (arXiv:2604.15039, equations 3 to 6).
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Counts", "best_counts", "colocated_requests", "utilization_within", "wait_seconds"]

MOST_OF_A_SIDE = 16
"""Instances of a side, at most, where a ratio alone is asked."""


class Counts(NamedTuple):
    """Instances of both sides, and the requests a second that they serve together."""

    prefill: int
    decode: int
    requests_per_second: float


def wait_seconds(utilization: float, residual_seconds: float) -> float:
    """Mean wait before a group whose time is taken to that share; infinite at 1."""
    if utilization >= 1.0:
        return math.inf
    return utilization / (1.0 - utilization) * residual_seconds


def utilization_within(wait_limit_seconds: float, residual_seconds: float) -> float:
    """The share of a group's time at which requests wait so long in the mean."""
    return wait_limit_seconds / (wait_limit_seconds + residual_seconds)


def best_counts(
    prefill_requests: float,
    decode_requests: float,
    weight_of_prefill: float,
    weight_of_decode: float,
    budget: float = 0.0,
) -> Counts | None:
    """The numbers of instances that serve most for what they weigh.

    Args:
        prefill_requests: requests a second of a prefill instance.
        decode_requests: the same of a decode instance.
        weight_of_prefill: of an instance: its devices, or what they cost.
        weight_of_decode: the same.
        budget: most that all may weigh; 0 for a small ratio.

    Returns:
        the best, the smallest where several are; with a budget those that serve most, and of these the
        lightest. None if the budget does not hold one of each.
    """
    found: list[tuple[float, float, Counts]] = []
    for decode in range(1, _most(budget - weight_of_prefill, weight_of_decode, budget) + 1):
        # More prefill than feeds the decode side serves nobody.
        enough = math.ceil(decode * decode_requests / prefill_requests - 1e-9)
        room = _most(budget - decode * weight_of_decode, weight_of_prefill, budget)
        for prefill in {max(1, min(enough, room)), max(1, min(enough - 1, room))}:
            weight = prefill * weight_of_prefill + decode * weight_of_decode
            if prefill > room or (budget and weight > budget * (1 + 1e-12)):
                continue
            served = min(prefill * prefill_requests, decode * decode_requests)
            worth = served if budget else served / weight
            found.append((worth, weight, Counts(prefill, decode, served)))
    if not found:
        return None
    most = max(worth for worth, _, _ in found)
    return min((one for one in found if one[0] >= most * (1 - 1e-9)), key=lambda one: one[1])[2]


def _most(left: float, weight: float, budget: float) -> int:
    return math.floor(left / weight + 1e-9) if budget else MOST_OF_A_SIDE


def colocated_requests(
    batches: list[tuple[int, float]], groups: int, filled_seconds: float, output_tokens: float, tpot: float
) -> tuple[float, int]:
    """Requests a second of an instance that prefills and decodes, and its batch.

    Prefill takes f of a group's time, so tokens come every step / (1 - f): f = 1 - step / TPOT is left for
    it. The best batch gives prefill and decode the same requests.

    Args:
        batches: (batch, seconds of its decode step).
        groups: of the instance.
        filled_seconds: mean of what a prefill takes of a busy group.
        output_tokens: mean of the outputs.
        tpot: limit, seconds.
    """
    best = (0.0, 0)
    for batch, step in batches:
        if step > tpot:
            continue
        by_decode = groups * batch / (tpot * output_tokens)
        by_prefill = groups * (1.0 - step / tpot) / filled_seconds
        best = max(best, (min(by_decode, by_prefill), batch))
    return best

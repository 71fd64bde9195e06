"""How many prefill instances feed how many decode instances, and what that serves.

    prefill        g_p u / E[S] requests a second of an instance: g groups, u of their time, S the time that a
                   request takes of a busy group; and at most network / E[bytes]
    TTFT limit     wait + prefill + exposed transfer <= limit at a percentile of the requests. With Poisson
                   arrivals at an instance whose g groups share a queue, the mean wait is

                       u^(sqrt(2 (g + 1)) - 1) / (g (1 - u)) R        R = E[S^2] / (2 E[S])

                   exact for one group (Pollaczek and Khinchine), else the approximation of H. Sakasegawa
                   (Annals of the Institute of Statistical Mathematics 29, 1977)
    decode         g_d B / (step(B) E[output]) requests a second: B is the largest batch whose step meets the
                   TPOT limit and whose states and KV fit
    ratio          decode's requests a second over prefill's: prefill instances for each decode instance

The formulas of prefill and decode are those of Prefill-as-a-Service (arXiv:2604.15039, equations 3 to 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Counts", "best_counts", "colocated_requests", "utilization_within", "wait_seconds"]

MOST_OF_A_SIDE = 16
"""Instances of a side, at most, where a ratio alone is asked."""
_ROUGHLY = 0.03
_FULL = 1e-9


class Counts(NamedTuple):
    """Instances of both sides, and the requests a second that they serve together."""

    prefill: int
    decode: int
    requests_per_second: float


def wait_seconds(utilization: float, groups: int, residual_seconds: float) -> float:
    """Mean wait for one of the groups of an instance whose time is taken to that share; infinite at 1."""
    if utilization >= 1.0 - _FULL:
        return math.inf
    power = math.sqrt(2.0 * (groups + 1)) - 1.0
    return math.pow(utilization, power) / (groups * (1.0 - utilization)) * residual_seconds


def utilization_within(wait_limit_seconds: float, groups: int, residual_seconds: float) -> float:
    """The largest share of an instance's time at which requests wait no longer in the mean; 0 for no wait."""
    if wait_limit_seconds <= 0.0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if wait_seconds(middle, groups, residual_seconds) <= wait_limit_seconds:
            low = middle
        else:
            high = middle
    return low


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
        without a budget, the lightest ratio of those within 3 % of the best; with one, those that serve
        most, and of these the lightest. None if the budget does not hold one of each.
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
    least = max(worth for worth, _, _ in found) * (1.0 - (1e-9 if budget else _ROUGHLY))
    return min((one for one in found if one[0] >= least), key=lambda one: one[1])[2]


def _most(left: float, weight: float, budget: float) -> int:
    return math.floor(left / weight + 1e-9) if budget else MOST_OF_A_SIDE


def colocated_requests(
    step_seconds: Callable[[int], float],
    most: int,
    groups: int,
    filled_seconds: float,
    output_tokens: float,
    tpot: float,
) -> tuple[float, int]:
    """Requests a second of an instance that prefills and decodes, and its batch.

    Prefill takes f of a group's time, so tokens come every step / (1 - f): f = 1 - step / TPOT is left for
    it. The best batch gives prefill and decode the same requests.

    Args:
        step_seconds: of a decode step by its batch.
        most: largest batch, whose step meets the limit.
        groups: of the instance.
        filled_seconds: mean of what a prefill takes of a busy group.
        output_tokens: mean of the outputs.
        tpot: limit, seconds.
    """

    def by_decode(batch: int) -> float:
        return groups * batch / (tpot * output_tokens)

    def by_prefill(batch: int) -> float:
        return groups * max(0.0, 1.0 - step_seconds(batch) / tpot) / filled_seconds

    # Decode gains by the batch what prefill loses: the best one is where they meet.
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        if by_decode(middle) <= by_prefill(middle):
            low = middle
        else:
            high = middle
    return max((min(by_decode(batch), by_prefill(batch)), batch) for batch in (low, high))

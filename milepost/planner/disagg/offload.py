"""Which requests are prefilled elsewhere: those whose uncached length is above a threshold.

Three questions, three thresholds:

    worth        one request: computing n tokens within the decode steps of its own instance makes B others
                 wait for (mixed step - step); elsewhere it waits for queue, prefill and exposed transfer. The
                 threshold is where waiting of all together is the same
    network      a link of limited bandwidth: the least threshold at which what crosses it fits
    fleet        R instances only prefill, L others prefill or decode (Prefill-as-a-Service, arXiv:2604.15039,
                 equations 3 to 8): threshold t and the L's division that serve most requests,

                     min( R / E[T_r; n > t],  link / E[bytes; n > t],  L_p / E[T_l; n <= t],  L_d * decode )

                 E[x; condition] the mean over all requests of x where the condition holds, else 0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

__all__ = ["Fleet", "OffloadPoint", "best_fleet", "crossing", "network_threshold"]


class OffloadPoint(NamedTuple):
    """Requests that are alike.

    Attributes:
        weight: their share of all requests.
        uncached_tokens: tokens to compute.
        remote_seconds: of one remote instance, for each request.
        local_seconds: of one local instance.
        sent_bytes: to the decode side, from a remote instance.
    """

    weight: float
    uncached_tokens: int
    remote_seconds: float
    local_seconds: float
    sent_bytes: float


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Who does what.

    Attributes:
        threshold_tokens: uncached lengths above it are prefilled remotely.
        remote_share: of the requests, prefilled remotely.
        remote_instances: that only prefill.
        local_prefill_instances: of the others.
        decode_instances: of the others.
        remote_requests_per_second: that the remote instances could take.
        local_prefill_requests_per_second: that the local ones could take.
        decode_requests_per_second: that the decode instances could take.
        requests_per_second: that all serve together.
        sent_bytes_per_second: over the link at that rate.
        bound: what decides it: "remote prefill", "link", "local prefill" or "decode".
        remote_seconds: of a remote instance for those above the threshold, mean over all requests.
        local_seconds: of a local instance for the others, mean over all requests.
        sent_bytes: by those above the threshold, mean over all requests.
    """

    threshold_tokens: int
    remote_share: float
    remote_instances: int
    local_prefill_instances: int
    decode_instances: int
    remote_requests_per_second: float
    local_prefill_requests_per_second: float
    decode_requests_per_second: float
    requests_per_second: float
    sent_bytes_per_second: float
    bound: str
    remote_seconds: float = 0.0
    local_seconds: float = 0.0
    sent_bytes: float = 0.0


class _Sums(NamedTuple):
    """Of the requests up to a threshold (local), and of those above (remote)."""

    threshold: int
    local_share: float
    local_seconds: float
    remote_seconds: float
    sent_bytes: float


def _sums(points: Sequence[OffloadPoint]) -> list[_Sums]:
    """For each threshold that makes a difference, the first one below all requests."""
    ordered = sorted(points, key=lambda point: point.uncached_tokens)
    share = [0.0, *accumulate(point.weight for point in ordered)]
    share[-1] = 1.0  # of all requests; sums of weights miss it by a rounding
    local = [0.0, *accumulate(point.weight * point.local_seconds for point in ordered)]
    remote = [0.0, *accumulate(point.weight * point.remote_seconds for point in reversed(ordered))]
    sent = [0.0, *accumulate(point.weight * point.sent_bytes for point in reversed(ordered))]
    count = len(ordered)
    found = []
    for kept in range(count + 1):
        if 0 < kept < count and ordered[kept].uncached_tokens == ordered[kept - 1].uncached_tokens:
            continue  # no threshold parts equal lengths
        threshold = ordered[kept - 1].uncached_tokens if kept else 0
        found.append(_Sums(threshold, share[kept], local[kept], remote[count - kept], sent[count - kept]))
    return found


def best_fleet(
    points: Sequence[OffloadPoint],
    *,
    remote_instances: int,
    local_instances: int,
    decode_requests: float,
    link_bytes_per_second: float = math.inf,
    everything_remote: bool = False,
) -> Fleet:
    """The threshold and the division of the local instances that serve most.

    Args:
        points: the requests.
        remote_instances: that only prefill; 0 for none.
        local_instances: that prefill or decode; one at least decodes.
        decode_requests: requests a second of one decoding instance.
        link_bytes_per_second: of the link from the remote instances.
        everything_remote: no local instance prefills.
    """
    best: Fleet | None = None
    for sums in _sums(points):
        if everything_remote and sums.local_share > 0:
            continue
        if not remote_instances and sums.remote_seconds > 0:
            continue
        for prefill in range(local_instances):
            if (prefill == 0) != (sums.local_share == 0.0):
                continue  # nobody to do the work, or no work
            found = _fleet(
                sums,
                remote_instances,
                prefill,
                local_instances - prefill,
                decode_requests,
                link_bytes_per_second,
            )
            if best is None or found.requests_per_second > best.requests_per_second * (1 + 1e-12):
                best = found
    if best is None:
        return _nothing(remote_instances, local_instances)
    return best


def _fleet(sums: _Sums, remote: int, prefill: int, decode: int, decode_requests: float, link: float) -> Fleet:
    share = 1.0 - sums.local_share if sums.sent_bytes > 0 else 0.0
    limits = {
        "remote prefill": _over(remote, sums.remote_seconds),
        "link": _over(link, sums.sent_bytes),
        "local prefill": _over(prefill, sums.local_seconds),
        "decode": decode * decode_requests,
    }
    bound = min(limits, key=limits.__getitem__)
    served = limits[bound]
    return Fleet(
        threshold_tokens=sums.threshold,
        remote_share=max(0.0, share),
        remote_instances=remote,
        local_prefill_instances=prefill,
        decode_instances=decode,
        remote_requests_per_second=share * min(limits["remote prefill"], limits["link"])
        if share > 0
        else 0.0,
        local_prefill_requests_per_second=(1 - share) * limits["local prefill"] if prefill else 0.0,
        decode_requests_per_second=limits["decode"],
        requests_per_second=served,
        sent_bytes_per_second=served * sums.sent_bytes,
        bound=bound,
        remote_seconds=sums.remote_seconds,
        local_seconds=sums.local_seconds,
        sent_bytes=sums.sent_bytes,
    )


def _over(above: float, below: float) -> float:
    return above / below if below > 0 else math.inf


def _nothing(remote: int, local: int) -> Fleet:
    return Fleet(
        threshold_tokens=0,
        remote_share=0.0,
        remote_instances=remote,
        local_prefill_instances=0,
        decode_instances=local,
        remote_requests_per_second=0.0,
        local_prefill_requests_per_second=0.0,
        decode_requests_per_second=0.0,
        requests_per_second=0.0,
        sent_bytes_per_second=0.0,
        bound="local prefill",
    )


def network_threshold(
    points: Sequence[OffloadPoint], requests_per_second: float, link_bytes_per_second: float
) -> tuple[int, float]:
    """The least threshold at which what crosses a link fits, and the share of the requests above it."""
    for sums in _sums(points):
        if requests_per_second * sums.sent_bytes <= link_bytes_per_second:
            return sums.threshold, 1.0 - sums.local_share
    last = _sums(points)[-1]
    return last.threshold, 0.0


def crossing(is_remote_better: Callable[[int], bool], longest: int) -> int | None:
    """The least length from which on something is better, of lengths up to `longest`; None for none.

    Lengths are tried in powers of two first; between two of them the change is taken to be the only one.
    """
    low, high = 0, 1
    while not is_remote_better(high):
        if high >= longest:
            return None
        low, high = high, min(2 * high, longest)
    while high - low > 1:
        middle = (low + high) // 2
        if is_remote_better(middle):
            high = middle
        else:
            low = middle
    return high

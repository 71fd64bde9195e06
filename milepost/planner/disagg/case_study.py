"""Published deployments by this planner's formulas: what comes out of their own measurements, and of ours.

**Prefill-as-a-Service**: `prfaas_case` puts the measured profile of that paper (prefill seconds and bytes by
length on 8 H200) through `offload.best_fleet`. What the paper does not say is how long prefill takes on H20:
one number, the ratio of both machines, is taken from the throughput of its baseline's prefill side. So the
baseline's rate is no result; threshold, division and both gains are.

**aiconfigurator**: `aiconfigurator_case` asks `plan_disagg` for the very division of that tool's best answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from milepost.planner.deployment import Deployment
from milepost.planner.disagg.lengths import POINTS, truncated_log_normal
from milepost.planner.disagg.offload import Fleet, OffloadPoint, best_fleet
from milepost.planner.disagg.plan import DisaggPlan, FleetPlan
from milepost.planner.disagg.planning import plan_disagg
from milepost.planner.disagg.published import PRFAAS
from milepost.planner.disagg.question import DisaggQuestion

__all__ = ["PrfaasCase", "aiconfigurator_case", "prfaas_case"]


class PrfaasCase(msgspec.Struct, frozen=True, kw_only=True):
    """The case study as it comes out here.

    Attributes:
        fleet: the three uses of the machines.
        local_over_remote: prefill seconds on H20 over those on H200; fitted to the baseline.
        prompt_tokens: mean.
    """

    fleet: FleetPlan
    local_over_remote: float
    prompt_tokens: float


def prfaas_case(points: int = 10 * POINTS) -> PrfaasCase:
    """The fleet of Prefill-as-a-Service from its own profile; between its lengths prefill is linear."""
    case = PRFAAS
    quantile = truncated_log_normal(case.mu, case.sigma, case.least_tokens, case.most_tokens)
    lengths = [quantile((place + 0.5) / points) for place in range(points)]
    remote = [_between(length, case.profile_tokens, case.profile_seconds) for length in lengths]
    sent = [_between(length, case.profile_tokens, case.profile_bytes) for length in lengths]
    baseline = case.baseline_prefill_instances / case.baseline_prefill_requests_per_second
    slower = baseline / (sum(remote) / points)
    requests = [
        OffloadPoint(1.0 / points, length, seconds, slower * seconds, size)
        for length, seconds, size in zip(lengths, remote, sent, strict=True)
    ]
    decoding = case.baseline_instances - case.baseline_prefill_instances
    decode = case.baseline_decode_requests_per_second / decoding

    def fleet(remote_instances: int, local_instances: int, *, everything_remote: bool = False) -> Fleet:
        return best_fleet(
            requests,
            remote_instances=remote_instances,
            local_instances=local_instances,
            decode_requests=decode,
            link_bytes_per_second=case.link_bytes_per_second,
            everything_remote=everything_remote,
        )

    offloaded = fleet(case.remote_instances, case.local_instances)
    all_remote = fleet(case.remote_instances, case.local_instances, everything_remote=True)
    local_only = fleet(0, case.baseline_instances)
    return PrfaasCase(
        fleet=FleetPlan(
            offloaded=offloaded,
            all_remote=all_remote,
            local_only=local_only,
            gain_ratio=offloaded.requests_per_second / local_only.requests_per_second,
            naive_gain_ratio=all_remote.requests_per_second / local_only.requests_per_second,
        ),
        local_over_remote=slower,
        prompt_tokens=sum(lengths) / points,
    )


def _between(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Linear between the points and along the last piece beyond; never below a tenth of the first."""
    place = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    slope = (ys[place + 1] - ys[place]) / (xs[place + 1] - xs[place])
    return max(0.1 * ys[0], ys[place] + (x - xs[place]) * slope)


def aiconfigurator_case() -> DisaggPlan:
    """Kimi K3 on 32 GB300 as aiconfigurator divides them: 2 x (TP2 x DP4) prefill, TP2 x DP8 decode.

    Without the shares of 0.9 and 0.92 by which that tool lowers both sides for their imperfect match.
    """
    return plan_disagg(
        DisaggQuestion(
            deployment=Deployment(model="kimi-k3", hardware="gb300", tensor_parallel=2, data_parallel=8),
            prefill_tensor_parallel=2,
            prefill_data_parallel=4,
            lengths="8k",
            outputs="1k",
            tpot_limit_seconds=0.05,
            utilization=1.0,
            devices=32,
        )
    )

"""What running requests took of states, as a simulation counted them."""

from __future__ import annotations

import math

import msgspec

from milepost.sim.runs import RunSpec

__all__ = ["StateSlots"]


class StateSlots(msgspec.Struct, frozen=True, kw_only=True):
    """What running requests took of a state's size each, and what the cache kept, on one rank.

    A slot is the memory of one recurrent state. *Needed* are those that can't be evicted: the live state of
    each running request, and, for the step that does it, a snapshot that is written or copied from. *Kept*
    are all cached snapshots; they go when memory is needed. Means and shares are of simulated time in which
    requests ran.

    Attributes:
        trace: name of the trace.
        spec: what was simulated, with a queue.
        requests: requests served.
        refused: requests that could never fit.
        running_mean: requests that ran at once.
        running_peak: the same, most.
        needed_slots_mean: for each running request.
        needed_slots_p99: the same, not exceeded in 99 % of the time; high where few run.
        needed_slots_peak: the same, most.
        extra_slots_mean: needed beyond one for each running request, of all together.
        extra_slots_p99: the same, not exceeded in 99 % of the time.
        extra_slots_peak: the same, most.
        kept_slots_mean: for each running request.
        kept_slots_peak: of all together, most.
        context_mean_tokens: prompt and output of a request.
        context_p50_tokens: the same.
        context_p90_tokens: the same.
        hit_rate: share of the prompt tokens that were not computed, 0 .. 1.
        ttft_p90_seconds: to the first token, waiting included.
        tpot_p50_seconds: from one output token to the next; None when nobody drew two.
        arrival_seconds: from the first arrival to the last.
        simulated_seconds: until the last request ended.
        hardware: of which ranks.
        notes: what a reader must know, such as that the load was more than the hardware could carry.
    """

    trace: str
    spec: RunSpec
    requests: int
    refused: int
    running_mean: float
    running_peak: int
    needed_slots_mean: float
    needed_slots_p99: float
    needed_slots_peak: float
    extra_slots_mean: float
    extra_slots_p99: int
    extra_slots_peak: int
    kept_slots_mean: float
    kept_slots_peak: int
    context_mean_tokens: float
    context_p50_tokens: float
    context_p90_tokens: float
    hit_rate: float
    ttft_p90_seconds: float
    tpot_p50_seconds: float | None
    arrival_seconds: float
    simulated_seconds: float
    hardware: str
    notes: tuple[str, ...] = ()

    def slots_for(self, batch: int) -> int:
        """Slots that `batch` running requests need together.

        One for each, and beyond it what was not exceeded in 99 % of the time, or, where the batch is larger
        than what ran, the measured mean for each.
        """
        return batch + max(self.extra_slots_p99, math.ceil(batch * (self.needed_slots_mean - 1)))

    @property
    def slots_per_request(self) -> float:
        """What a plan charges each request: `slots_for` of the most that ran at once, shared among them."""
        return self.slots_for(self.running_peak) / self.running_peak

    @property
    def source(self) -> str:
        """Where the numbers are from, in words."""
        policy, requests = self.spec.preset or self.spec.policy, f"{self.requests:,} requests"
        return f"measured on {requests} of {self.trace}, {policy}, at most {self.running_peak:,} at once"

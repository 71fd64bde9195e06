"""States that requests took in a simulated run of a trace, in place of a number that is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from milepost.errors import ConfigError
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.memory.rank_sizes import CONV_ITEMSIZE
from milepost.planner.worksheet import Worksheet
from milepost.sim.cost.hardware import Hardware

if TYPE_CHECKING:
    from milepost.sim.traces.trace import Trace

__all__ = ["MeasuredSlots", "measured_slots", "most_requests"]


class MeasuredSlots(msgspec.Struct, frozen=True, kw_only=True):
    """What running requests took of a state's size each; see `milepost.planner.slots.measure.StateSlots`.

    Attributes:
        trace: name of it.
        requests: that were served.
        running_mean: requests that ran at once.
        running_peak: the same, most.
        needed_slots_mean: states that can't be evicted, for each running request.
        extra_slots_p99: states beyond one a request, of all together, not exceeded in 99 % of the time.
        kept_slots_mean: cached snapshots for each running request; they go when memory is needed.
        hit_rate: share of the prompt tokens that were not computed.
        context_mean_tokens: prompt and output of a request.
        notes: what a reader must know of the run.
    """

    trace: str
    requests: int
    running_mean: float
    running_peak: int
    needed_slots_mean: float
    extra_slots_p99: int
    kept_slots_mean: float
    hit_rate: float
    context_mean_tokens: float
    notes: tuple[str, ...]


def measured_slots(
    trace: Trace, question: MemoryQuestion, hardware: Hardware, budget_bytes: int
) -> MeasuredSlots:
    """Simulate a trace on one group of ranks, with all of `budget_bytes` on each for requests and cache.

    Raises:
        ConfigError: the model or the layout can't be simulated, or context is divided among ranks.
        InputError: the trace has no requests, or none that fits.
    """
    from milepost.planner.slots.measure import slots_of
    from milepost.sim.runs import RunSpec

    deployment = question.deployment
    if deployment.context_parallel > 1:
        raise ConfigError(
            "context_parallel must be 1 with a trace: the simulator doesn't divide KV by tokens. "
            f"Given: {deployment.context_parallel}. Give slots in the trace's place."
        )
    spec = RunSpec(
        model=deployment.model,
        budget_bytes=budget_bytes,
        layout=question.layout,
        tensor_parallel=deployment.tensor_parallel,
        kv_itemsize=deployment.kv_itemsize,
        conv_itemsize=CONV_ITEMSIZE,
        state_itemsize=deployment.state_itemsize,
        token_budget=question.step_tokens,
        hardware=deployment.hardware or hardware.name,
    )
    found = slots_of(trace, spec)
    return MeasuredSlots(
        trace=found.trace,
        requests=found.requests,
        running_mean=found.running_mean,
        running_peak=found.running_peak,
        needed_slots_mean=found.needed_slots_mean,
        extra_slots_p99=found.extra_slots_p99,
        kept_slots_mean=found.kept_slots_mean,
        hit_rate=found.hit_rate,
        context_mean_tokens=found.context_mean_tokens,
        notes=found.notes,
    )


def most_requests(sheet: Worksheet, room: str, state: str, kv: str) -> str:
    """The formula of the largest batch in `room`, with "slots" states of `state` and `kv` a request.

    Where the sheet has "extra_slots", the room for so many states, which some requests need for a moment,
    is never used up by a batch whose mean would allow it.
    """
    plain = f"floor({room} / (slots * {state} + {kv}))"
    if "extra_slots" not in sheet:
        return plain
    return f"max(0, min({plain}, floor(({room} - extra_slots * {state}) / ({state} + {kv}))))"

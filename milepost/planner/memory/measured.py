"""States that requests took in a simulated run of a trace, in place of a number that is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from milepost.errors import ConfigError
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.slots.state_slots import StateSlots
from milepost.planner.worksheet import Worksheet
from milepost.sim.cost.hardware import Hardware

if TYPE_CHECKING:
    from milepost.sim.traces.trace import Trace

__all__ = ["measured_slots", "most_requests"]


def measured_slots(
    trace: Trace, question: MemoryQuestion, hardware: Hardware, budget_bytes: int
) -> StateSlots:
    """Simulate a trace on one group of ranks, with all of `budget_bytes` on each for requests and cache.

    Raises:
        ConfigError: the model or the layout can't be simulated, or context is divided among ranks.
        InputError: the trace has no requests, or none that fits.
    """
    from milepost.planner.slots.measure import slots_of, spec_of

    deployment = question.deployment
    if deployment.context_parallel > 1:
        raise ConfigError(
            "context_parallel must be 1 with a trace: the simulator doesn't divide KV by tokens. "
            f"Given: {deployment.context_parallel}. Give slots in the trace's place."
        )
    spec = spec_of(
        deployment, hardware, budget_bytes, token_budget=question.step_tokens, layout=question.layout
    )
    return slots_of(trace, spec)


def most_requests(sheet: Worksheet, room: str, state: str, kv: str) -> str:
    """The formula of the largest batch in `room`, with "slots" states of `state` and `kv` a request.

    Where the sheet has "extra_slots", the room for so many states, which some requests need for a moment,
    is never used up by a batch whose mean would allow it.
    """
    plain = f"floor({room} / (slots * {state} + {kv}))"
    if "extra_slots" not in sheet:
        return plain
    return f"max(0, min({plain}, floor(({room} - extra_slots * {state}) / ({state} + {kv}))))"

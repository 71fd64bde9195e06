"""Requests of a plan from recorded traffic: lengths, the cache's hits, the states that requests take.

The trace is simulated in a queue by the scheduler and the cache that serve, on one rank with the memory that
it has free, so that state slots are measured instead of guessed.
"""

from __future__ import annotations

import msgspec

from milepost.errors import InputError
from milepost.memory.layout import DEFAULT_BLOCK_SIZE
from milepost.planner.deployment import Deployment, check_ranks
from milepost.planner.device_memory import free_memory
from milepost.planner.figures import bytes_text
from milepost.planner.slots.measure import slots_of, spec_of
from milepost.shapes.names import find_shape
from milepost.sim.cost.by_name import default_hardware, ranks_that_fit
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.part_work import RankSizes, StepParts
from milepost.sim.replay.setup import MAX_PAGES
from milepost.sim.runs import TOKEN_BUDGET
from milepost.sim.traces.trace import Trace

__all__ = ["TraceRequests", "requests_of_trace"]

_UNDIVIDED = (
    "The trace was simulated with contexts that no ranks divide: the cache had less room than it will have."
)


class TraceRequests(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace says of its requests; means.

    Attributes:
        source: for derivations.
        input_tokens: of a prompt.
        output_tokens: of an answer.
        hit_tokens: of a prompt, those that the simulated cache had.
        slots: states that a running request needed.
        notes: what a reader must know.
    """

    source: str
    input_tokens: int
    output_tokens: int
    hit_tokens: int
    slots: float
    notes: tuple[str, ...]


def requests_of_trace(trace: Trace, deployment: Deployment, token_budget: int = 0) -> TraceRequests:
    """Simulate a trace on one rank of a deployment.

    Args:
        trace: the traffic.
        deployment: its model, hardware, tensor parallelism and dtypes.
        token_budget: most tokens of a step; 0 for 8,192.

    Raises:
        ConfigError: the simulator can't run the model, or a device has no memory left for requests.
        InputError: the trace has no requests, or none that fits.
    """
    if not trace.requests:
        raise InputError(f"{trace.name} has no requests. Give another trace.")
    _, shape = find_shape(deployment.model)
    hardware = find_hardware(deployment.hardware or default_hardware(shape))
    check_ranks(shape, deployment)
    tensor = deployment.tensor_parallel
    ranks = ranks_that_fit(hardware, shape, tensor)
    sizes = RankSizes(
        tensor_parallel=tensor,
        data_parallel=deployment.data_parallel or ranks // tensor,
        kv_itemsize=deployment.kv_itemsize,
        state_itemsize=deployment.state_itemsize,
    )
    budget = token_budget or TOKEN_BUDGET
    free = free_memory(shape, hardware, sizes, memory_share=deployment.memory_share, tokens_per_step=budget)
    page = (trace.block_size or DEFAULT_BLOCK_SIZE) * StepParts(shape, sizes).kv_bytes_per_token
    # Of a small model a large device holds more pages than a trace could ever fill.
    most = MAX_PAGES * page if page else free.free_bytes
    room = min(max(0, free.free_bytes), most)
    found = slots_of(trace, spec_of(deployment, hardware, room, token_budget=budget))
    count = len(trace.requests)
    prompt = round(sum(request.num_prompt for request in trace.requests) / count)
    output = max(1, round(sum(request.num_output for request in trace.requests) / count))
    note = (
        f"Of {count:,} requests of {trace.name}, simulated on one rank with {bytes_text(free.free_bytes)}: "
        f"{found.needed_slots_mean:.3f} states needed a running request, {found.kept_slots_mean:,.1f} kept "
        f"as snapshots, {found.hit_rate:.1%} of the prompts' tokens hit; 90 % are at most "
        f"{found.context_p90_tokens:,.0f} tokens long, while the plan takes means."
    )
    return TraceRequests(
        source=f"simulated: {count:,} requests of {trace.name}",
        input_tokens=max(1, prompt),
        output_tokens=output,
        hit_tokens=min(int(prompt * found.hit_rate), max(1, prompt) - 1),
        slots=max(1.0, found.needed_slots_mean),
        notes=(note, *found.notes, *([_UNDIVIDED] if deployment.context_parallel > 1 else [])),
    )

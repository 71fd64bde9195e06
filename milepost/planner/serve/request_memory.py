"""Bytes of a running request on a device, and how many of them fit.

    request   = (slots - 1) S + running + (I + O) kv / c
    fits(B)   : (B + begun) request <= free(B v) - draft weights,   begun = ceil(max(1, B a / O))

S is a state, `running` what the running sequence needs of it with drafts, kv the bytes a token (a draft
model's own rows among them), c the ranks that share a context; every request is given room for its whole
length. `begun` prompts are computed beside the B sequences that decode. free(n) is
`milepost.planner.device_memory` with n rows that sample. Pages add less than one page a state and one block a
sequence, which ``milepost plan memory`` counts.
"""

from __future__ import annotations

import math

import msgspec

from milepost.planner.device_memory import FreeMemory, free_memory
from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.steady import Arrangement

__all__ = ["RequestMemory", "begun_prompts", "fits", "free_of", "largest_batch", "request_memory"]


class RequestMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Of one running request on one device.

    Attributes:
        state_bytes: of all its slots.
        kv_bytes: of its whole length.
        request_bytes: of both.
        draft_weight_bytes: of the draft model, once a device.
    """

    state_bytes: float
    kv_bytes: float
    request_bytes: float
    draft_weight_bytes: float


def request_memory(arrangement: Arrangement, question: ServeQuestion) -> RequestMemory:
    """What a request takes; see the module."""
    sizes, shape, spec = arrangement.sizes, arrangement.shape, question.speculation
    states = arrangement.states
    state = (question.slots - 1.0) * states.slot_bytes + states.running_bytes
    kv = float(arrangement.parts.kv_bytes_per_token)
    draft = 0.0
    if spec:
        if shape.attention_layers:
            kv *= 1.0 + spec.draft_layers / shape.attention_layers
        draft = 2.0 * spec.draft_parameters / sizes.tensor_parallel
    kept = question.length_tokens * kv / sizes.context_parallel
    return RequestMemory(
        state_bytes=state, kv_bytes=kept, request_bytes=state + kept, draft_weight_bytes=draft
    )


def begun_prompts(batch: int, question: ServeQuestion) -> int:
    """Prompts that are computed at a time beside the decoding sequences."""
    accepted = question.speculation.accepted_length if question.speculation else 1.0
    return math.ceil(max(1.0, batch * accepted / question.output_tokens))


def free_of(arrangement: Arrangement, question: ServeQuestion, budget: int, batch: int) -> FreeMemory:
    """What a device has for requests in steps of `budget` tokens with `batch` rows that decode."""
    return free_memory(
        arrangement.shape,
        arrangement.hardware,
        arrangement.sizes,
        memory_share=question.deployment.memory_share,
        tokens_per_step=budget,
        logit_rows=batch * arrangement.verified,
    )


def fits(arrangement: Arrangement, question: ServeQuestion, budget: int, batch: int) -> bool:
    """Whether `batch` decoding sequences and the prompts beside them fit."""
    needed = request_memory(arrangement, question)
    free = free_of(arrangement, question, budget, batch).free_bytes - needed.draft_weight_bytes
    return (batch + begun_prompts(batch, question)) * needed.request_bytes <= free


def largest_batch(arrangement: Arrangement, question: ServeQuestion, budget: int) -> int:
    """Most decoding sequences of a group that fit, found by halving, as less always fits; 0 for none."""
    most = (budget - 1) // arrangement.verified  # a step must have room for prompts too
    needed = request_memory(arrangement, question)
    base = free_of(arrangement, question, budget, 1)
    # From two workspaces to a straight line: asking for each batch would take most of a search's time.
    per_row = max(0, free_of(arrangement, question, budget, 2).workspace_bytes - base.workspace_bytes)
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        free = base.free_bytes - (middle - 1) * per_row - needed.draft_weight_bytes
        if (middle + begun_prompts(middle, question)) * needed.request_bytes <= free:
            low = middle
        else:
            high = middle - 1
    return low

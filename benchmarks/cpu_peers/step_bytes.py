"""The bytes that a decode step can't avoid to move: weights once, KV once, states in and out."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.model_spec import ModelSpec
from milepost.models.summary import count_parameters

__all__ = ["BYTES_PER_WEIGHT", "StepBytes", "distinct_experts", "step_bytes"]

BYTES_PER_WEIGHT = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "mxfp4": 17 / 32}
"""MXFP4: 32 codes of half a byte and one byte of scale. The scales of int8, one a row, are left out."""

STATE_ITEM = 4
"""States are float32 in every engine."""


@dataclass(frozen=True)
class StepBytes:
    """Bytes of one step, by what they are."""

    weights: float
    experts: float
    kv: float
    states: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.experts + self.kv + self.states


def distinct_experts(num_experts: int, top_k: int, tokens: int) -> float:
    """Experts that a layer's tokens choose together: expected, when every choice is as likely.

    Exact for one token; tokens that prefer the same experts touch fewer.
    """
    return num_experts * (1 - (1 - top_k / num_experts) ** tokens)


def step_bytes(
    spec: ModelSpec, *, weights: str, experts: str, batch: int, context: float, kv_item: int = 4
) -> StepBytes:
    """Count one decode step.

    Activations, logits and what stays in a cache between layers are left out, so that the real traffic is
    at least this. Vectors (norms, biases, convolutions) are counted as if stored like matrices: they are
    under a hundredth.

    Args:
        spec: the model.
        weights: format of everything but the routed experts, a key of `BYTES_PER_WEIGHT`.
        experts: format of the routed experts.
        batch: sequences.
        context: tokens before the step, of each sequence.
        kv_item: bytes of a cached number; convolution windows are stored alike.
    """
    parts = dict(count_parameters(spec).by_part)
    # Of the embedding a step reads one row a sequence.
    rows = parts.pop("embedding") / spec.vocab_size * batch
    share = distinct_experts(spec.moe.num_experts, spec.moe.top_k, batch) / spec.moe.num_experts
    expert_parameters = parts.pop("routed experts", 0) * share
    row = spec.mla.row_dim * kv_item * len(spec.mla_layers)
    kda = spec.kda
    recurrent = kda.channels * kda.head_dim * STATE_ITEM
    window = 3 * kda.channels * kda.conv_window * kv_item
    return StepBytes(
        weights=(sum(parts.values()) + rows) * BYTES_PER_WEIGHT[weights],
        experts=expert_parameters * BYTES_PER_WEIGHT[experts],
        kv=batch * (context + 1) * row,
        states=2 * batch * len(spec.kda_layers) * (recurrent + window),
    )

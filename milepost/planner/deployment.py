"""What every plan starts from: a model on hardware, divided among ranks, in certain dtypes."""

from __future__ import annotations

import msgspec

from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.shapes.shape import ModelShape

__all__ = ["KV_DTYPES", "STATE_DTYPES", "Deployment", "check_ranks", "itemsize"]

KV_DTYPES = {"bf16": 2, "fp8": 1, "fp32": 4}
"""Bytes of a cached KV element."""
STATE_DTYPES = {"fp32": 4, "bf16": 2}
"""Bytes of an element of the recurrent matrices."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica of a model. Sizes of 0 stand for what fits.

    Attributes:
        model: a name (see `milepost.shapes.names.SHAPES`), or the path of a config.json or of its folder.
        hardware: a name or the path of a JSON file; "" for what suits the model.
        tensor_parallel: ranks that share the heads of one sequence.
        data_parallel: such groups, each with sequences of its own; 0 for the fewest that hold the weights.
        expert_parallel: ranks among which one copy of the experts is divided; 0 for all.
        context_parallel: of the tensor-parallel ranks, those that share a sequence's KV by tokens
            (vLLM's decode context parallel); its state is divided by heads all the same.
        kv_dtype: of `KV_DTYPES`.
        state_dtype: of `STATE_DTYPES`.
        memory_share: of a device's memory, what weights, states and KV may take together.
    """

    model: str = "kimi-k3"
    hardware: str = ""
    tensor_parallel: int = 1
    data_parallel: int = 0
    expert_parallel: int = 0
    context_parallel: int = 1
    kv_dtype: str = "bf16"
    state_dtype: str = "fp32"
    memory_share: float = 0.9


def itemsize(option: str, dtype: str, known: dict[str, int]) -> int:
    """Bytes of an element.

    Raises:
        ConfigError: an unknown dtype.
    """
    if dtype not in known:
        raise ConfigError(one_of(option, dtype, known))
    return known[dtype]


def check_ranks(shape: ModelShape, deployment: Deployment) -> None:
    """Refuse ranks that can't divide a model.

    Raises:
        ConfigError: a number is below 1 (below 0 where 0 has a meaning), `tensor_parallel` does not divide
            the heads, or `context_parallel` does not divide `tensor_parallel`; with the nearest that does.
    """
    lowest = {"tensor_parallel": 1, "context_parallel": 1, "data_parallel": 0, "expert_parallel": 0}
    for name, least in lowest.items():
        if (value := getattr(deployment, name)) < least:
            raise ConfigError(f"{name} must be at least {least}. Given: {value}.")
    heads = {}
    if shape.recurrent is not None:
        heads[f"{shape.recurrent.heads} {shape.recurrent.kind.value} heads"] = shape.recurrent.heads
    if shape.attention is not None:
        heads[f"{shape.attention.heads} {shape.attention.kind.value} heads"] = shape.attention.heads
    _must_divide("tensor_parallel", deployment.tensor_parallel, heads)
    ranks = {f"{deployment.tensor_parallel} tensor-parallel ranks": deployment.tensor_parallel}
    _must_divide("context_parallel", deployment.context_parallel, ranks)


def _must_divide(option: str, given: int, wholes: dict[str, int]) -> None:
    counts = wholes.values()
    if not any(count % given for count in counts):
        return
    fitting = [n for n in range(1, min(counts) + 1) if not any(count % n for count in counts)]
    near = min(fitting, key=lambda n: abs(n - given))
    raise ConfigError(
        f"{option} must divide the {' and the '.join(wholes)}. Given: {given}. The nearest that does: {near}."
    )

"""What every plan starts from: a model on hardware, divided among ranks, in certain dtypes."""

from __future__ import annotations

import msgspec

from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.parallel import check_parallel

__all__ = ["KV_DTYPES", "STATE_DTYPES", "Deployment", "check_ranks", "check_types"]

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

    @property
    def kv_itemsize(self) -> int:
        """Bytes of a cached KV element.

        Raises:
            ConfigError: an unknown dtype.
        """
        return _itemsize("kv_dtype", self.kv_dtype, KV_DTYPES)

    @property
    def state_itemsize(self) -> int:
        """Bytes of an element of the recurrent matrices.

        Raises:
            ConfigError: an unknown dtype.
        """
        return _itemsize("state_dtype", self.state_dtype, STATE_DTYPES)


def _itemsize(option: str, dtype: str, known: dict[str, int]) -> int:
    if dtype not in known:
        raise ConfigError(one_of(option, dtype, known))
    return known[dtype]


def check_ranks(shape: ModelShape, deployment: Deployment) -> None:
    """Refuse ranks that can't divide a model.

    Raises:
        ConfigError: see `milepost.sim.cost.parallel.check_parallel`.
    """
    check_parallel(
        shape,
        deployment.tensor_parallel,
        deployment.data_parallel or None,
        expert_parallel=deployment.expert_parallel,
        context_parallel=deployment.context_parallel,
    )


def check_types(question: msgspec.Struct) -> None:
    """Refuse a question whose fields are not of their types, which a struct made in Python doesn't check.

    Raises:
        ConfigError: what was expected, what was given, and the path of the field ("$" is the question).
    """
    try:
        msgspec.convert(msgspec.to_builtins(question), type(question))
    except (TypeError, ValueError, OverflowError) as error:  # msgspec's own errors are among them
        name = type(question).__name__
        raise ConfigError(
            f"The fields of {name} must be of their types. Given: one that isn't ({error})."
        ) from None

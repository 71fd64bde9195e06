"""Which kernels a model runs on: the compiled ones, unless they are missing or do not know it."""

from __future__ import annotations

from milepost.config import EngineConfig
from milepost.errors import ConfigError
from milepost.kernels.native import HOW_TO_BUILD, available, native, why_not_available
from milepost.model_spec import ModelSpec

__all__ = ["choose_kernels"]


def choose_kernels(config: EngineConfig, spec: ModelSpec) -> tuple[str, tuple[str, ...]]:
    """The kernels that run, and what the user should know of the choice.

    Args:
        config: what the user asked for.
        spec: of the model.

    Raises:
        ConfigError: compiled kernels are asked for, and the model is beyond them.
    """
    if config.kernels == "reference":
        return config.kernels, ()
    limit = _limit(spec) if available() else ""
    if config.kernels == "cpu":
        if limit:
            raise ConfigError(f"kernels cpu take {limit}. Choose kernels reference (slow).")
        return config.kernels, ()
    if config.wants_float64:
        return "reference", ("The reference kernels run, slowly: the compiled ones do not know float64.",)
    if not available():
        return "reference", (f"The reference kernels run, slowly: {why_not_available()} {HOW_TO_BUILD}",)
    if limit:
        return "reference", (f"The reference kernels run, slowly: the compiled ones take {limit}.",)
    return "cpu", ()


def _limit(spec: ModelSpec) -> str:
    """What the compiled kernels take and the model is beyond; empty if they take it."""
    if spec.kda.conv_size > native.MOST_TAPS:
        return f"convolutions of at most {native.MOST_TAPS} taps, and this model's have {spec.kda.conv_size}"
    banks = 0 if spec.attn_res_block is None else -(-len(spec.layers) // spec.attn_res_block)
    if banks >= native.MOST_SOURCES:
        return (
            f"residuals of at most {native.MOST_SOURCES} sums, and this model's layers bank {banks} beside "
            "the running one"
        )
    return ""

"""A model of time by the name of hardware, and how many devices a model takes there."""

from __future__ import annotations

from pathlib import Path

from milepost.errors import ConfigError
from milepost.model_spec import ModelSpec
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.calibration import CalibratedCost, Calibration, read_measured
from milepost.sim.cost.hardware import Hardware, find_hardware, is_path, read_json
from milepost.sim.cost.parallel import check_parallel
from milepost.sim.cost.part_weights import EXPERTS, rank_weight_bytes, weights_of
from milepost.sim.cost.part_work import RankSizes
from milepost.sim.cost.roofline import RooflineCost
from milepost.sim.cost.step_work import CostModel

__all__ = ["default_hardware", "find_cost_model", "ranks_that_fit"]

WEIGHT_SHARE = 0.85
"""Most of a device's memory that weights may take when the number of devices is chosen."""
MOST_RANKS = 64
"""Most devices that are chosen for a model."""
_SMALL_BYTES = 1e9


def default_hardware(model: ModelSpec | ModelShape) -> str:
    """What runs a model when nobody says.

    "cpu" for weights below 1 GB, "h200" when one of them holds the weights with a share free
    (`WEIGHT_SHARE`), as Kimi-Linear's, else "gb300", as for Kimi K3.
    """
    total = rank_weight_bytes(model, 1, 1)
    if total < _SMALL_BYTES:
        return "cpu"
    return "h200" if total <= WEIGHT_SHARE * find_hardware("h200").memory_bytes else "gb300"


def ranks_that_fit(hardware: Hardware, model: ModelSpec | ModelShape, tensor_parallel: int) -> int:
    """Fewest devices, `tensor_parallel` times a power of two, whose memory holds the weights.

    Weights take at most `WEIGHT_SHARE` of each. Kimi K3 on GB300: 8 at tensor parallel 8, and 16 at 1, where
    attention is data-parallel and the experts are divided among all.

    Raises:
        ConfigError: not even 64 devices do.
    """
    limit = WEIGHT_SHARE * hardware.memory_bytes
    ranks = tensor_parallel
    while rank_weight_bytes(model, tensor_parallel, ranks) > limit:
        ranks *= 2
        if ranks > max(MOST_RANKS, tensor_parallel):
            held = f"{_dense_bytes(model, tensor_parallel):,.0f} bytes and a share of the experts"
            raise ConfigError(
                f"Weights must take at most {WEIGHT_SHARE:.0%} of the {hardware.memory_bytes:,} bytes of a "
                f"device, with {MOST_RANKS} devices at most. Given: {hardware.name} at tensor_parallel "
                f"{tensor_parallel}, where each holds {held}. Raise tensor_parallel, or choose hardware with "
                "more memory."
            )
    return ranks


def _dense_bytes(model: ModelSpec | ModelShape, tensor_parallel: int) -> float:
    experts = weights_of(model).get(EXPERTS)
    routed = experts.routed * experts.bytes_per_parameter if experts else 0.0
    return rank_weight_bytes(model, tensor_parallel, 1) - routed


def find_cost_model(
    hardware: str,
    model: ModelSpec,
    *,
    tensor_parallel: int = 1,
    kv_itemsize: int = 2,
    page_bytes: int = 0,
    data_parallel: int | None = None,
    state_itemsize: int = 4,
) -> CostModel:
    """A model of time for hardware that is named.

    Args:
        hardware: a name (see `milepost.sim.cost.hardware.hardware_names`), the path of a JSON file with such
            a description or with what ``milepost calibrate`` has measured, or "" for `default_hardware`.
        model: the model.
        tensor_parallel: ranks that share the heads.
        kv_itemsize: bytes of a cached KV element.
        page_bytes: of a page of the rank; 0 for a block of 64 tokens.
        data_parallel: groups of ranks that share the experts; None for as many as `ranks_that_fit`.
        state_itemsize: bytes of an element of the recurrent matrices.

    Raises:
        ConfigError: unknown hardware, a wrong file, a calibration of another model or with tensor_parallel,
            a tensor_parallel that does not divide the heads, or weights that don't fit.
    """
    name = hardware or default_hardware(model)
    if is_path(name):
        path = Path(name)
        measured = read_measured(read_json(path), path)
        if isinstance(measured, Calibration):
            return _calibrated(measured, path, model, tensor_parallel)
        described = measured
    else:
        described = find_hardware(name)
    check_parallel(model, tensor_parallel, data_parallel)
    if data_parallel is None:
        data_parallel = ranks_that_fit(described, model, tensor_parallel) // tensor_parallel
    sizes = RankSizes(
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        kv_itemsize=kv_itemsize,
        page_bytes=page_bytes,
        state_itemsize=state_itemsize,
    )
    return RooflineCost(described, model, sizes)


def _calibrated(measured: Calibration, path: Path, model: ModelSpec, tensor_parallel: int) -> CalibratedCost:
    measured.check_model(model, path)
    if tensor_parallel != 1:
        raise ConfigError(
            f"{path} was measured on one device, so tensor_parallel must be 1. Given: {tensor_parallel}. "
            "Leave it out, or name hardware instead."
        )
    return CalibratedCost(measured)

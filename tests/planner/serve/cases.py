"""Models, devices and arrangements that the tests of serving plans share."""

from __future__ import annotations

from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.steady import Arrangement
from milepost.shapes.names import find_shape
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.part_work import RankSizes

__all__ = ["arranged"]


def arranged(
    question: ServeQuestion,
    *,
    model: str = "kimi-k3",
    hardware: str = "gb300",
    tensor_parallel: int = 8,
    data_parallel: int = 1,
) -> Arrangement:
    """A model divided so."""
    sizes = RankSizes(tensor_parallel=tensor_parallel, data_parallel=data_parallel)
    return Arrangement(find_shape(model)[1], find_hardware(hardware), sizes, question)

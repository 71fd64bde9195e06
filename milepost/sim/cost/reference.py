"""Times that others published, beside which the roofline is held: `read_references` and `predicted_seconds`.

The rows lie in ``milepost/assets/references``, each with its source, the division among ranks that it is of,
and its role: *fit* rows are those that efficiency factors are fitted to (`milepost.sim.cost.fitting`);
*check* rows never are, and the mean error that is stated is theirs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from milepost.shapes.names import find_shape
from milepost.sim.cost.hardware import Hardware, find_hardware
from milepost.sim.cost.parallel import division_text
from milepost.sim.cost.part_work import RankSizes
from milepost.sim.cost.roofline import RooflineCost
from milepost.sim.cost.step_work import StepWork, causal_pairs

__all__ = [
    "Reference",
    "References",
    "cost_of_row",
    "mean_error",
    "predicted_seconds",
    "read_references",
    "work_of_row",
]

_FOLDER = Path(__file__).parents[2] / "assets" / "references"


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step's time by somebody else.

    Attributes:
        source: of `References.sources`.
        hardware: as `find_hardware` knows it.
        tensor_parallel: ranks that share the heads.
        data_parallel: such groups; the experts are divided among all ranks.
        phase: what the step does.
        batch: sequences of each group.
        context: decode: tokens cached before the step; prefill: tokens of a prompt.
        cached: of a prompt's tokens, those that were there already.
        seconds: of the step.
        role: whether factors are fitted to it, or checked by it.
        parts: seconds of parts that take much of the step, as the roofline's breakdown names them; of fit
            rows of a tool that tells them.
        asked: what the tool was asked for besides, so that the row can be asked for again.
        note: what else a reader must know, such as what was taken to be meant.
    """

    source: str
    hardware: str
    tensor_parallel: int
    data_parallel: int
    phase: Literal["decode", "prefill"]
    batch: int
    context: int
    cached: int = 0
    seconds: float
    role: Literal["fit", "check"]
    parts: dict[str, float] = {}
    asked: dict[str, str | int] = {}
    note: str = ""

    @property
    def division(self) -> str:
        """Such as "TP2 x DP8"."""
        return division_text(self.tensor_parallel, self.data_parallel)

    @property
    def step(self) -> str:
        """What the step does, in words."""
        if self.phase == "decode":
            return f"decode, {self.batch:,} at {self.context:,}"
        many = f"{self.batch} x " if self.batch > 1 else ""
        behind = f" behind {self.cached:,}" if self.cached else ""
        return f"prefill, {many}{self.context - self.cached:,}{behind}"


class References(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of one model, and where they are from.

    Attributes:
        model: a name that `find_shape` knows.
        date: when they were gathered.
        sources: what each short name of a source stands for.
        rows: all of them.
    """

    model: str
    date: str
    sources: dict[str, str]
    rows: tuple[Reference, ...]


@cache
def read_references(name: str = "kimi-k3") -> References:
    """Rows that come with Milepost."""
    return msgspec.json.decode((_FOLDER / f"{name}.json").read_bytes(), type=References)


def work_of_row(row: Reference) -> StepWork:
    """What one group's step computes and reads."""
    n = row.batch
    if row.phase == "decode":
        context = n * (row.context + 1)
        return StepWork(tokens=n, rows=n, sampled=n, context=context, pairs=context)
    new = row.context - row.cached
    pairs = n * causal_pairs(new, row.cached)
    return StepWork(tokens=n * new, rows=n, sampled=n, context=n * row.context, pairs=pairs)


def predicted_seconds(row: Reference, model: str = "kimi-k3", hardware: Hardware | None = None) -> float:
    """The roofline's time for the same step on the same ranks.

    Args:
        row: what is predicted.
        model: of the row.
        hardware: in place of that which the row names.
    """
    return cost_of_row(row, model, hardware).seconds(work_of_row(row))


def cost_of_row(row: Reference, model: str, hardware: Hardware | None = None) -> RooflineCost:
    """The roofline of the ranks that a row is of."""
    sizes = RankSizes(tensor_parallel=row.tensor_parallel, data_parallel=row.data_parallel)
    return RooflineCost(hardware or find_hardware(row.hardware), find_shape(model)[1], sizes)


def mean_error(references: References, role: str) -> float:
    """Mean of |predicted / published - 1| over the rows of a role."""
    rows = [row for row in references.rows if row.role == role]
    return sum(abs(predicted_seconds(row, references.model) / row.seconds - 1.0) for row in rows) / len(rows)

"""Worksheets with a model's and a device's facts, as the parts of a plan find them."""

from __future__ import annotations

from milepost.planner.moe.exchange import note_links, note_token_bytes
from milepost.planner.moe.facts import note_facts
from milepost.planner.moe.question import MoeQuestion
from milepost.planner.worksheet import Worksheet
from milepost.shapes.names import find_shape
from milepost.sim.cost.hardware import find_hardware

__all__ = ["facts"]


def facts(
    model: str = "kimi-k3", hardware: str = "gb300", question: MoeQuestion | None = None, ranks: int = 0
) -> Worksheet:
    """A sheet with everything that comes from outside; with `ranks` also the links of such a degree."""
    sheet = Worksheet()
    note_facts(sheet, model, find_shape(model)[1], find_hardware(hardware), question or MoeQuestion(sms=148))
    note_token_bytes(sheet)
    if ranks:
        note_links(sheet, f"ep{ranks}", ranks)
    return sheet

"""The drawings of a memory plan: a state over the pages of each layout, and the steps of alignment."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.memory.aligned import AlignedLayout
from milepost.planner.memory.draw_state import draw_state
from milepost.planner.memory.draw_steps import draw_steps
from milepost.planner.memory.layouts import lay_out
from milepost.planner.memory.plan import MemoryPlan
from milepost.planner.memory.rank_sizes import CONV_ITEMSIZE, rank_shape
from milepost.planner.memory.spans import state_picture
from milepost.planner.report import Drawing

__all__ = ["pictures"]


def pictures(plan: MemoryPlan) -> Iterator[Drawing]:
    """Each of the plan's layouts, drawn; nothing of a model with one kind of layer only."""
    question = plan.question
    shape = rank_shape(plan.shape, question.deployment, question.drafts)
    recurrent = shape.recurrent
    for planned in plan.layouts:
        layout = lay_out(planned.name, shape, question) if recurrent else None
        if layout is None or recurrent is None:
            return
        if isinstance(layout, AlignedLayout):
            yield draw_steps(layout.steps, shape.attention_layers, shape.recurrent_layers)
        channels = recurrent.conv_channels(question.deployment.tensor_parallel)
        window = recurrent.conv_window * channels * CONV_ITEMSIZE
        yield draw_state(planned.name, state_picture(layout, plan.sizes.layer_state_bytes, window))

"""What each layout makes of a model's bytes: pages, padding, what fits, the largest batch."""

from __future__ import annotations

from typing import cast

import msgspec

from milepost.memory.aligned import AlignedLayout, AlignmentSteps
from milepost.memory.layout import PagedLayout
from milepost.memory.lcm import LcmLayout
from milepost.memory.named_layout import simulated_layout
from milepost.planner.memory.pages import add_batch, add_pages, add_what_fits
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.memory.rank_sizes import CONV_ITEMSIZE, RankBytes
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import ModelShape

__all__ = ["PLAIN", "AnyLayout", "LayoutPlan", "lay_out", "plan_layout"]

PLAIN = "plain"
"""What the pages of a model with one kind of layer only are called: there is nothing to lay out."""

AnyLayout = PagedLayout | AlignedLayout | LcmLayout | None


class LayoutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One layout in numbers, on one device. Pages are what its allocator hands out.

    Attributes:
        name: "paged", "lcm", "aligned", or "plain" where a model keeps only states or only rows.
        page_bytes: of a page; of ``lcm``, of a large page.
        block_tokens: of a KV block, on the rank.
        sequence_block_tokens: of a sequence, that such a block stands for: times `context_parallel`.
        blocks_per_page: KV blocks that a page holds; 0 without attention layers.
        pages_per_state: that a state takes; 0 without recurrent layers.
        state_padding_bytes: of a state's pages, what holds nothing.
        state_padding_share: the same, as a share of the state's own bytes.
        num_pages: that fit into the free memory, those of no use included.
        usable_pages: of them, that requests can have: one is the page that padding points to.
        tokens_that_fit: of KV, if no state took memory; None without attention layers: no limit.
        snapshots_that_fit: states, if no KV took memory; None without recurrent layers.
        longest_sequence_tokens: of one sequence alone, with its state; None without attention layers.
        whole_block_prefix_tokens: shortest shared prefix that is hit where only whole blocks are shared.
        unit_prefix_tokens: the same where prefixes are found at match units inside blocks.
        short_request_bytes: that the short request takes.
        short_request_waste_bytes: of them, what holds nothing.
        short_request_waste_share: the same, as a share of them.
        batches: most requests at each of the question's contexts, with whole pages.
        steps: of ``aligned``, how its block came to be.
    """

    name: str
    page_bytes: int
    block_tokens: int
    sequence_block_tokens: int
    blocks_per_page: int
    pages_per_state: int
    state_padding_bytes: int
    state_padding_share: float
    num_pages: int
    usable_pages: int
    tokens_that_fit: int | None
    snapshots_that_fit: int | None
    longest_sequence_tokens: int | None
    whole_block_prefix_tokens: int
    unit_prefix_tokens: int
    short_request_bytes: float
    short_request_waste_bytes: float
    short_request_waste_share: float
    batches: tuple[int, ...]
    steps: AlignmentSteps | None = None

    @property
    def fits_one(self) -> bool:
        """Whether one sequence fits: its state and a block."""
        return self.usable_pages >= self.pages_per_state + bool(self.blocks_per_page)


def lay_out(name: str, shape: ModelShape, question: MemoryQuestion) -> AnyLayout:
    """The layout of a name; None for a model with one kind of layer only.

    Args:
        name: "paged", "lcm" or "aligned".
        shape: the model as `milepost.planner.memory.rank_sizes.rank_shape` gives it.
        question: dtypes, block, alignment.

    Raises:
        ConfigError: sizes that can't be laid out, with what to change.
    """
    if not (shape.recurrent_layers and shape.attention_layers):
        return None
    deployment = question.deployment
    layout = simulated_layout(
        name,
        shape,
        block_size=question.kernel_alignment if name == "aligned" else question.block_size,
        kv_itemsize=deployment.kv_itemsize,
        conv_itemsize=CONV_ITEMSIZE,
        recurrent_itemsize=deployment.state_itemsize,
        tensor_parallel=deployment.tensor_parallel,
    )
    return cast(AnyLayout, layout)


def plan_layout(
    sheet: Worksheet, name: str, layout: AnyLayout, sizes: RankBytes, question: MemoryQuestion
) -> LayoutPlan:
    """What fits in a layout.

    Args:
        sheet: has `rank_bytes`'s and `device_memory`'s numbers and "slots"; gets this layout's.
        name: of the layout.
        layout: as `lay_out` gives it.
        sizes: bytes before any layout.
        question: contexts and the rest.
    """
    name = PLAIN if layout is None else name
    add_pages(sheet, name, layout, question)
    add_what_fits(sheet, name)
    held = sheet[f"{name}.short_request_bytes"]
    return LayoutPlan(
        name=name,
        page_bytes=_int(sheet, f"{name}.page_bytes"),
        block_tokens=_int(sheet, f"{name}.block_tokens"),
        sequence_block_tokens=_int(sheet, f"{name}.sequence_block_tokens"),
        blocks_per_page=_int(sheet, f"{name}.blocks_per_page"),
        pages_per_state=_int(sheet, f"{name}.pages_per_state"),
        state_padding_bytes=_int(sheet, f"{name}.state_padding_bytes"),
        state_padding_share=sheet[f"{name}.state_padding_bytes"] / max(1, sizes.state_bytes),
        num_pages=_int(sheet, f"{name}.pages"),
        usable_pages=_int(sheet, f"{name}.usable_pages"),
        tokens_that_fit=_known(sheet, f"{name}.tokens"),
        snapshots_that_fit=_known(sheet, f"{name}.snapshots"),
        longest_sequence_tokens=_known(sheet, f"{name}.longest_sequence_tokens"),
        whole_block_prefix_tokens=_int(sheet, f"{name}.whole_block_prefix_tokens"),
        unit_prefix_tokens=_int(sheet, f"{name}.unit_prefix_tokens"),
        short_request_bytes=held,
        short_request_waste_bytes=sheet[f"{name}.short_request_waste_bytes"],
        short_request_waste_share=sheet[f"{name}.short_request_waste_bytes"] / held,
        batches=tuple(add_batch(sheet, name, context) for context in question.contexts),
        steps=layout.steps if isinstance(layout, AlignedLayout) else None,
    )


def _int(sheet: Worksheet, name: str) -> int:
    return int(sheet[name])


def _known(sheet: Worksheet, name: str) -> int | None:
    return int(sheet[name]) if name in sheet else None

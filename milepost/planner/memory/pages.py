"""The arithmetic of pages: each layout's formulas, held against what the engine or simulator lays out."""

from __future__ import annotations

from milepost.memory.aligned import AlignedLayout
from milepost.memory.layout import PagedLayout
from milepost.memory.lcm import LcmLayout
from milepost.planner.figures import tokens_text
from milepost.planner.memory.measured import most_requests
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.worksheet import Worksheet

__all__ = ["add_batch", "add_pages", "add_what_fits"]

_KV_PAGES = "ceil(ceil({1} / {0}.sequence_block_tokens) / {0}.blocks_per_page)"


def add_pages(
    sheet: Worksheet,
    name: str,
    layout: PagedLayout | AlignedLayout | LcmLayout | None,
    question: MemoryQuestion,
) -> None:
    """Derive a layout's pages and how many fit; `name` is the prefix of the numbers' names."""
    match layout:
        case AlignedLayout():
            _aligned(sheet, name, layout)
        case PagedLayout():
            _paged(sheet, name, layout)
        case LcmLayout():
            _lcm(sheet, name, layout)
        case None:
            _plain(sheet, name, question.block_size)
    sheet.derive(
        f"{name}.sequence_block_tokens",
        f"{name}.block_tokens * context_parallel",
        "tokens",
        meaning="of a sequence, behind one block of each rank",
    )
    padding = f"{name}.pages_per_state * {name}.page_bytes - state_bytes"
    if not sheet["recurrent_layers"]:
        padding = f"0 * {name}.page_bytes"
    sheet.derive(f"{name}.state_padding_bytes", padding, "bytes", meaning="of a state's pages: holds nothing")
    if layout is not None:
        sheet.check(f"{name}.state_padding_bytes", layout.state_padding_bytes)
    _prefixes(sheet, name, question)


def _paged(sheet: Worksheet, name: str, layout: PagedLayout) -> None:
    sheet.given(f"{name}.block_tokens", layout.block_size, "tokens", "--block-size")
    sheet.derive(
        f"{name}.page_bytes",
        f"{name}.block_tokens * token_bytes",
        "bytes",
        meaning="one block of all attention layers",
    )
    sheet.given(f"{name}.blocks_per_page", 1, "blocks", "this layout", "a page is a block")
    sheet.given(
        f"{name}.tile_rows",
        layout.tile_rows,
        "rows",
        "this layout",
        "of a head's matrix in a tile: the most, up to 16, that divide both it and a page",
    )
    sheet.derive(f"{name}.tile_bytes", f"{name}.tile_rows * state.row_dim * state.itemsize", "bytes")
    sheet.derive(
        f"{name}.state_tiles",
        f"recurrent_layers * (state.heads // tensor_parallel * state.rows // {name}.tile_rows"
        f" + ceil(conv.window * conv.channels * conv.itemsize / {name}.tile_bytes))",
        "tiles",
        meaning="of matrices and windows, each layer's window in tiles of its own",
    )
    sheet.derive(f"{name}.tiles_per_page", f"{name}.page_bytes // {name}.tile_bytes", "tiles")
    sheet.derive(f"{name}.pages_per_state", f"ceil({name}.state_tiles / {name}.tiles_per_page)", "pages")
    sheet.check(f"{name}.page_bytes", layout.page_bytes)
    sheet.check(f"{name}.state_tiles", layout.state_tiles)
    sheet.check(f"{name}.pages_per_state", layout.pages_per_state)
    _dummy(sheet, name)


def _aligned(sheet: Worksheet, name: str, layout: AlignedLayout) -> None:
    steps = layout.steps
    sheet.given(f"{name}.kernel_alignment", layout.kernel_alignment, "tokens", "--alignment")
    sheet.derive(
        f"{name}.grown_block_tokens",
        f"ceil(layer_state_bytes / (row_bytes * {name}.kernel_alignment)) * {name}.kernel_alignment",
        "tokens",
        meaning="shortest block that holds a layer's state",
    )
    sheet.check(f"{name}.grown_block_tokens", steps.grown_block)
    if layout.block_size == steps.grown_block:
        sheet.derive(f"{name}.block_tokens", f"{name}.grown_block_tokens", "tokens")
    else:
        sheet.given(
            f"{name}.block_tokens",
            layout.block_size,
            "tokens",
            "this layout",
            "the next one whose slots are whole tiles",
        )
    sheet.derive(
        f"{name}.slot_bytes",
        f"{name}.block_tokens * row_bytes",
        "bytes",
        meaning="one layer's block, and one layer's padded state",
    )
    sheet.derive(f"{name}.layer_padding_bytes", f"{name}.slot_bytes - layer_state_bytes", "bytes")
    sheet.derive(f"{name}.page_bytes", f"attention_layers * {name}.slot_bytes", "bytes")
    sheet.given(f"{name}.blocks_per_page", 1, "blocks", "this layout", "a page is a block")
    sheet.derive(
        f"{name}.pages_per_state",
        "ceil(recurrent_layers / attention_layers)",
        "pages",
        meaning="a slot for each recurrent layer",
    )
    sheet.check(f"{name}.page_bytes", layout.page_bytes)
    sheet.check(f"{name}.layer_padding_bytes", steps.layer_padding_bytes)
    sheet.check(f"{name}.pages_per_state", layout.pages_per_state)
    _dummy(sheet, name)


def _lcm(sheet: Worksheet, name: str, layout: LcmLayout) -> None:
    sheet.given(f"{name}.block_tokens", layout.block_size, "tokens", "--block-size")
    sheet.derive(f"{name}.small_page_bytes", f"{name}.block_tokens * token_bytes", "bytes")
    sheet.check(f"{name}.small_page_bytes", layout.page_bytes)
    sheet.given(
        f"{name}.page_bytes",
        layout.large_bytes,
        "bytes",
        "milepost.memory.lcm",
        "a large page: the common multiple of a layer's block and a layer's state that wastes least",
    )
    sheet.derive(
        f"{name}.blocks_per_page",
        f"{name}.page_bytes // {name}.small_page_bytes",
        "blocks",
        meaning="whole ones",
    )
    sheet.check(f"{name}.blocks_per_page", layout.pages_per_large)
    sheet.given(
        f"{name}.slot_bytes",
        layout.slot_bytes,
        "bytes",
        "milepost.memory.lcm",
        "a layer's state, padded to whole blocks of a layer where that wastes less",
    )
    sheet.derive(
        f"{name}.pages_per_state",
        f"ceil(recurrent_layers / ({name}.page_bytes // {name}.slot_bytes))",
        "large pages",
    )
    sheet.check(f"{name}.pages_per_state", layout.large_per_state)
    sheet.derive(
        f"{name}.pages", f"floor(budget_bytes / {name}.page_bytes)", "large pages", meaning="in free memory"
    )
    sheet.derive(
        f"{name}.usable_pages",
        f"max(0, (budget_bytes - {name}.small_page_bytes) // {name}.page_bytes)",
        "large pages",
        meaning="beside one small page that padding points to",
    )


def _plain(sheet: Worksheet, name: str, block_size: int) -> None:
    """Pages of a model with one kind of layer: blocks as asked, or whole states."""
    if sheet["attention_layers"]:
        sheet.given(f"{name}.block_tokens", block_size, "tokens", "--block-size")
        sheet.derive(f"{name}.page_bytes", f"{name}.block_tokens * token_bytes", "bytes")
        sheet.given(f"{name}.blocks_per_page", 1, "blocks", "this layout", "a page is a block")
        sheet.given(f"{name}.pages_per_state", 0, "pages", "config.json", "no layer keeps a state")
    else:
        sheet.given(f"{name}.block_tokens", 0, "tokens", "config.json", "no layer keeps rows")
        sheet.derive(f"{name}.page_bytes", "state_bytes", "bytes", meaning="a page is a state")
        sheet.given(f"{name}.blocks_per_page", 0, "blocks", "config.json", "no layer keeps rows")
        sheet.given(f"{name}.pages_per_state", 1, "pages", "this layout", "a page is a state")
    _dummy(sheet, name)


def _dummy(sheet: Worksheet, name: str) -> None:
    sheet.derive(
        f"{name}.pages", f"floor(budget_bytes / {name}.page_bytes)", "pages", meaning="in free memory"
    )
    sheet.derive(
        f"{name}.usable_pages",
        f"max(0, {name}.pages - 1)",
        "pages",
        meaning="without the one that padding points to",
    )


def _prefixes(sheet: Worksheet, name: str, question: MemoryQuestion) -> None:
    sheet.given(f"{name}.unit_prefix_tokens", question.match_unit, "tokens", "--match-unit")
    if sheet["attention_layers"]:
        sheet.derive(
            f"{name}.whole_block_prefix_tokens",
            f"{name}.sequence_block_tokens",
            "tokens",
            meaning="shortest shared prefix where only whole blocks are shared",
        )
    else:
        sheet.derive(f"{name}.whole_block_prefix_tokens", f"{name}.unit_prefix_tokens", "tokens")


def add_what_fits(sheet: Worksheet, name: str) -> None:
    """Derive what fits if it had all memory, and what the short request takes."""
    if sheet["attention_layers"]:
        blocks = f"{name}.blocks_per_page * {name}.sequence_block_tokens"
        sheet.derive(
            f"{name}.tokens",
            f"{name}.usable_pages * {blocks}",
            "tokens",
            meaning="of KV that fit, without any state",
        )
        sheet.derive(
            f"{name}.longest_sequence_tokens",
            f"max(0, {name}.usable_pages - {name}.pages_per_state) * {blocks}",
            "tokens",
            meaning="of one sequence alone, with its state",
        )
    if sheet["recurrent_layers"]:
        sheet.derive(
            f"{name}.snapshots",
            f"{name}.usable_pages // {name}.pages_per_state",
            "states",
            meaning="that fit, without any KV",
        )
    pages = f"{name}.pages_per_state"
    if sheet["attention_layers"]:
        pages += f" + ceil(ceil(short_tokens / {name}.sequence_block_tokens) / {name}.blocks_per_page)"
    sheet.derive(f"{name}.short_request_bytes", f"({pages}) * {name}.page_bytes", "bytes")
    sheet.derive(
        f"{name}.short_request_waste_bytes",
        f"{name}.short_request_bytes - state_bytes - short_tokens * kv_bytes_per_token",
        "bytes",
        meaning="of the short request's pages: holds nothing",
    )


def add_batch(sheet: Worksheet, name: str, context: int) -> int:
    """Derive the most requests of `context` tokens that whole pages hold."""
    kv = _KV_PAGES.format(name, context) if sheet["attention_layers"] else "0"
    return int(
        sheet.derive(
            f"batch.{name}.{tokens_text(context)}",
            most_requests(sheet, f"{name}.usable_pages", f"{name}.pages_per_state", kv),
            "requests",
            meaning=f"of {context:,} tokens, in whole pages",
        )
    )

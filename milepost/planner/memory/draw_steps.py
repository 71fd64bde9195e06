"""A picture of the four steps in which the aligned layout's block grows."""

from __future__ import annotations

from html import escape

from milepost.memory.aligned import AlignmentSteps
from milepost.planner.figures import bytes_text
from milepost.planner.memory.draw_state import COLOURS
from milepost.planner.report import Drawing

__all__ = ["draw_steps"]

_COLUMNS = 60
_TITLES = ("raw sizes", "grow the block", "pad the state", "one page")
_LEFT, _WIDTH, _RIGHT, _STEP, _BAR = 120, 600, 320, 62, 18
_MOST_MARKS = 64


def draw_steps(steps: AlignmentSteps, attention_layers: int, recurrent_layers: int) -> Drawing:
    """Draw the steps to scale: the longest bar is a layer's block.

    Args:
        steps: in numbers.
        attention_layers: slots of a page.
        recurrent_layers: slots that a state fills.
    """
    return Drawing(
        title="How the aligned layout's block comes to be as long as it is",
        text=_text(steps, attention_layers, recurrent_layers),
        svg=_svg(steps, attention_layers, recurrent_layers),
    )


def _share(steps: AlignmentSteps) -> float:
    """Of a layer's block, what its state fills."""
    return steps.layer_state_bytes / (steps.layer_state_bytes + steps.layer_padding_bytes)


def _grown(steps: AlignmentSteps) -> str:
    count = steps.block_size // steps.kernel_alignment
    return f"{count:,} x {steps.kernel_alignment:,} = {steps.block_size:,} tokens"


def _text(steps: AlignmentSteps, attention_layers: int, recurrent_layers: int) -> str:
    filled = max(1, round(_share(steps) * _COLUMNS))
    block = steps.block_size * steps.token_bytes
    state = "\u2588" * filled
    blank = " " * 12
    rows = f"{steps.state_rows:,} rows"
    lines = [
        f"(1) raw     |\u2502{' ' * (_COLUMNS - 1)} a token's row {steps.token_bytes:,} B",
        f"{blank}|{state:<{_COLUMNS}} a layer's state {bytes_text(steps.layer_state_bytes)}, {rows}",
        f"(2) grow    |{_marks(steps)}| {_grown(steps)}",
        f"(3) pad     |{state:\u00b7<{_COLUMNS}}| slot {bytes_text(block)}, padding {_padding(steps)}",
    ]
    pages = _page_rows(steps, attention_layers, recurrent_layers)
    for row, (full, empty, count) in enumerate(pages):
        head = "(4) page    " if row == 0 else blank
        times = f" x {count:,}" if count > 1 else ""
        lines.append(
            f"{head}|{_slots(full, empty)}|{times} {full:,} layers" + (f", {empty:,} empty" * bool(empty))
        )
    lines.append(
        f"{blank} a page is {attention_layers:,} slots, {bytes_text(steps.page_bytes)}; "
        f"a state takes {steps.pages_per_state:,}"
    )
    return "\n".join(lines)


def _marks(steps: AlignmentSteps) -> str:
    """The block with a mark at each step of the kernel's alignment, where marks can be told apart."""
    count = steps.block_size // steps.kernel_alignment
    if count > _COLUMNS // 3:
        return "=" * _COLUMNS
    cells = ["="] * _COLUMNS
    for mark in range(1, count):
        cells[round(mark * _COLUMNS / count)] = "|"
    return "".join(cells)


def _page_rows(
    steps: AlignmentSteps, attention_layers: int, recurrent_layers: int
) -> list[tuple[int, int, int]]:
    """(full slots, empty slots, pages that are so), for at most two kinds of pages."""
    whole, rest = divmod(recurrent_layers, attention_layers)
    rows = [(attention_layers, 0, whole)] if whole else []
    if rest:
        rows.append((rest, steps.empty_slots, 1))
    return rows


def _slots(full: int, empty: int) -> str:
    """Slots of one page, alternating; as many columns each as there is room for."""
    width = max(1, _COLUMNS // (full + empty))
    if full + empty > _COLUMNS:
        shown = round(full / (full + empty) * _COLUMNS)
        return "\u2588" * shown + "\u00b7" * (_COLUMNS - shown)
    cells = "".join(("\u2592" if slot % 2 else "\u2588") * width for slot in range(full))
    return cells + "\u00b7" * (width * empty)


def _svg(steps: AlignmentSteps, attention_layers: int, recurrent_layers: int) -> str:
    share, block = _share(steps), bytes_text(steps.block_size * steps.token_bytes)
    token = _bar(0, max(0.002, 1 / steps.block_size), COLOURS["window"])
    rows = (
        (_bar(0, share, COLOURS["even"]) + token, _raw_line(steps)),
        (_grown_bars(steps), f"{_grown(steps)}: the shortest block that holds a layer's state"),
        (
            _bar(0, share, COLOURS["even"]) + _bar(share, 1, COLOURS["padding"]),
            f"padded by {_padding(steps)} to a slot of {block}",
        ),
        (_page_bars(attention_layers, recurrent_layers), _page_line(steps, attention_layers)),
    )
    head = f'viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {4 * _STEP}" font-family="sans-serif" font-size="12"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {head}>']
    for place, (bars, about) in enumerate(rows):
        parts.append(
            f'<g transform="translate(0 {place * _STEP})">'
            f'<text x="0" y="24" fill="currentColor">{place + 1}. {_TITLES[place]}</text>{bars}'
            f'<text x="{_LEFT}" y="50" fill="currentColor">{escape(about)}</text></g>'
        )
    return "".join(parts) + "</svg>"


def _raw_line(steps: AlignmentSteps) -> str:
    state = bytes_text(steps.layer_state_bytes)
    rows = f"{steps.state_rows:,} rows of {steps.token_bytes:,} B"
    return f"a layer's state, {state}, is {rows}: one is what a token takes in a layer (orange)"


def _padding(steps: AlignmentSteps) -> str:
    return f"{bytes_text(steps.layer_padding_bytes)} ({steps.layer_padding_share:.2%})"


def _page_line(steps: AlignmentSteps, attention_layers: int) -> str:
    page = f"a page is {attention_layers:,} slots, {bytes_text(steps.page_bytes)}"
    return (
        f"{page}; a state takes {steps.pages_per_state:,}, the last (shown) with {steps.empty_slots:,} empty"
    )


def _bar(start: float, end: float, colour: str) -> str:
    left, width = _LEFT + start * _WIDTH, (end - start) * _WIDTH
    return (
        f'<rect x="{left:.2f}" y="10" width="{width:.2f}" height="{_BAR}" fill="{colour}" stroke="#fff" '
        f'stroke-width="0.5"/>'
    )


def _grown_bars(steps: AlignmentSteps) -> str:
    count = steps.block_size // steps.kernel_alignment
    if count > _MOST_MARKS:
        return _bar(0, 1, COLOURS["odd"])
    return "".join(_bar(mark / count, (mark + 1) / count, COLOURS["odd"]) for mark in range(count))


def _page_bars(attention_layers: int, recurrent_layers: int) -> str:
    """The last page of a state."""
    full = recurrent_layers % attention_layers or attention_layers
    colours = [COLOURS["odd" if slot % 2 else "even"] for slot in range(full)]
    colours += [COLOURS["padding"]] * (attention_layers - full)
    return "".join(
        _bar(slot / attention_layers, (slot + 1) / attention_layers, colour)
        for slot, colour in enumerate(colours)
    )

"""A picture of a state laid over pages: which layer's matrices, windows and padding lie where."""

from __future__ import annotations

from html import escape

from milepost.planner.figures import bytes_text
from milepost.planner.memory.spans import Span, StatePicture, page_spans
from milepost.planner.report import Drawing

__all__ = ["COLOURS", "draw_state"]

COLOURS = {"even": "#4c78a8", "odd": "#9ecae9", "window": "#f58518", "padding": "#d0d0d0"}
"""Of matrices of even and odd layers, windows, padding."""
_SIGNS = {"even": "\u2588", "odd": "\u2592", "window": "w", "padding": "\u00b7"}
_MOST_PAGES = 10
_COLUMNS = 64
_ROW, _GAP, _LEFT, _WIDTH, _RIGHT = 20, 4, 74, 640, 326


def draw_state(name: str, picture: StatePicture) -> Drawing:
    """Draw a state; of many pages the first and the last.

    Args:
        name: of the layout.
        picture: what its pages hold.
    """
    shown = _shown(picture.pages)
    return Drawing(
        title=f"A state over {picture.pages:,} {picture.unit}{'s' if picture.pages != 1 else ''} ({name})",
        text=_text(picture, shown),
        svg=_svg(picture, shown),
    )


def _shown(pages: int) -> list[int | None]:
    """Pages to draw; None stands for those that are left out."""
    if pages <= _MOST_PAGES:
        return list(range(pages))
    head, tail = _MOST_PAGES - 4, 3
    return [*range(head), None, *range(pages - tail, pages)]


def _key(span: Span) -> str:
    if span.kind != "matrices":
        return span.kind
    return "odd" if span.layer % 2 else "even"


def _contents(spans: tuple[Span, ...]) -> str:
    """In words: "layers 0-2, windows of 67-68, padding 1.2 MB"."""
    parts = []
    for kind, word in (("matrices", "layers"), ("window", "windows of")):
        layers = [span.layer for span in spans if span.kind == kind]
        if layers:
            first, last = min(layers), max(layers)
            parts.append(f"{word} {first}-{last}" if last > first else f"{word} {first}")
    if padding := sum(span.end - span.start for span in spans if span.kind == "padding"):
        parts.append(f"padding {bytes_text(padding)}")
    return ", ".join(parts)


def _legend(picture: StatePicture) -> str:
    tiles = f"; tiles of {bytes_text(picture.tile_bytes)}" if picture.tile_bytes else ""
    slots = f"; {picture.slots} slots a {picture.unit}" if picture.slots else ""
    return f"a {picture.unit} is {bytes_text(picture.page_bytes)}{tiles}{slots}"


def _text(picture: StatePicture, shown: list[int | None]) -> str:
    columns = _COLUMNS // picture.slots * picture.slots if 0 < picture.slots <= _COLUMNS else _COLUMNS
    digits = len(f"{picture.pages - 1:,}")
    lines = []
    for page in shown:
        if page is None:
            lines.append(f"{'':{digits}}  ... {picture.pages - len(shown) + 1:,} more")
            continue
        spans = page_spans(picture, page)
        cells = "".join(_SIGNS[_at(spans, (column + 0.5) / columns)] for column in range(columns))
        lines.append(f"{page:>{digits},} |{cells}| {_contents(spans)}")
    lines.append(
        f"{_SIGNS['even']}{_SIGNS['odd']} matrices of even and odd layers, {_SIGNS['window']} windows, "
        f"{_SIGNS['padding']} padding; {_legend(picture)}"
    )
    return "\n".join(lines)


def _at(spans: tuple[Span, ...], place: float) -> str:
    """What lies at a place of a page, 0 to 1."""
    end = spans[-1].end
    for span in spans:
        if place * end < span.end:
            return _key(span)
    return "padding"


def _svg(picture: StatePicture, shown: list[int | None]) -> str:
    height = (len(shown) + 1) * (_ROW + _GAP) + 8
    head = f'viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {height}" font-family="sans-serif" font-size="12"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {head}>']
    for row, page in enumerate(shown):
        top = row * (_ROW + _GAP) + 4
        if page is None:
            left_out = picture.pages - len(shown) + 1
            parts.append(_label(_LEFT, top, f"... {left_out:,} more {picture.unit}s"))
            continue
        spans = page_spans(picture, page)
        parts.append(_label(0, top, f"{'page' if picture.unit == 'page' else 'large'} {page:,}"))
        parts += [_rectangle(span, picture.page_bytes, top) for span in spans]
        parts.append(_label(_LEFT + _WIDTH + 8, top, _contents(spans)))
    parts.append(_legend_svg(picture, len(shown) * (_ROW + _GAP) + 4))
    return "".join(parts) + "</svg>"


def _rectangle(span: Span, page_bytes: int, top: float) -> str:
    left = _LEFT + span.start / page_bytes * _WIDTH
    width = (span.end - span.start) / page_bytes * _WIDTH
    about = span.kind if span.layer < 0 else f"{span.kind} of layer {span.layer}"
    return (
        f'<rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="{_ROW}" fill="{COLOURS[_key(span)]}" '
        f'stroke="#fff" stroke-width="0.3"><title>{about}: {bytes_text(span.end - span.start)}</title></rect>'
    )


def _label(left: float, top: float, text: str) -> str:
    return f'<text x="{left}" y="{top + 14}" fill="currentColor">{escape(text)}</text>'


def _legend_svg(picture: StatePicture, top: float) -> str:
    words = {
        "even": "matrices",
        "odd": "of the next layer",
        "window": "convolution windows",
        "padding": f"padding; {_legend(picture)}",
    }
    parts, left = [], float(_LEFT)
    for key, word in words.items():
        parts.append(
            f'<rect x="{left}" y="{top + 4}" width="12" height="12" fill="{COLOURS[key]}"/>'
            + _label(left + 16, top, word)
        )
        left += 32 + 6.5 * len(word)
    return "".join(parts)

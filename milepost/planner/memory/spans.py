"""Where a state's layers lie in its pages, as byte ranges: what the pictures draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from milepost.memory.layout import TiledLayout
from milepost.memory.lcm import LcmLayout

__all__ = ["Span", "StatePicture", "page_spans", "state_picture"]

Kind = Literal["matrices", "window", "padding"]


class Span(NamedTuple):
    """Bytes [start, end) of a state's run of pages.

    Attributes:
        start: first byte.
        end: behind the last one.
        kind: "matrices", "window" or "padding".
        layer: of the recurrent layers, counted from 0; -1 for padding.
    """

    start: int
    end: int
    kind: Kind
    layer: int


class StatePicture(NamedTuple):
    """A state laid over pages.

    Attributes:
        page_bytes: of a page.
        pages: of the state.
        unit: what a page is called.
        slots: equal parts of a page that hold a layer each; 0 where layers lie without gaps.
        tile_bytes: that layers are laid out in; 0 where the layout has no tiles.
        spans: everything in its pages, in order, without gaps.
    """

    page_bytes: int
    pages: int
    unit: str
    slots: int
    tile_bytes: int
    spans: tuple[Span, ...]


def state_picture(layout: TiledLayout | LcmLayout, layer_state_bytes: int, window_bytes: int) -> StatePicture:
    """What a state's pages hold.

    Args:
        layout: any.
        layer_state_bytes: one recurrent layer's matrices and window.
        window_bytes: its window alone.
    """
    matrices = layer_state_bytes - window_bytes
    if isinstance(layout, LcmLayout):
        return _lcm(layout, matrices, window_bytes)
    layers = range(layout.num_recurrent_layers)
    tile = layout.tile_bytes
    held = [
        Span(start * tile, start * tile + matrices, "matrices", layer)
        for layer, start in zip(layers, layout.first_recurrent_tiles, strict=True)
    ]
    held += [
        Span(start * tile, start * tile + window_bytes, "window", layer)
        for layer, start in zip(layers, layout.first_conv_tiles, strict=True)
    ]
    slots = getattr(layout, "tiles_per_slot", 0)
    return StatePicture(
        page_bytes=layout.page_bytes,
        pages=layout.pages_per_state,
        unit="page",
        slots=layout.tiles_per_page // slots if slots else 0,
        tile_bytes=tile,
        spans=_filled(held, layout.pages_per_state * layout.page_bytes),
    )


def _lcm(layout: LcmLayout, matrices: int, window: int) -> StatePicture:
    layer_bytes = matrices + window
    layers = layout.state_bytes // layer_bytes
    slots = layout.large_bytes // layout.slot_bytes
    held = []
    for layer in range(layers):
        start = layer // slots * layout.large_bytes + layer % slots * layout.slot_bytes
        held.append(Span(start, start + matrices, "matrices", layer))
        held.append(Span(start + matrices, start + layer_bytes, "window", layer))
    return StatePicture(
        page_bytes=layout.large_bytes,
        pages=layout.large_per_state,
        unit="large page",
        slots=slots,
        tile_bytes=0,
        spans=_filled(held, layout.large_per_state * layout.large_bytes),
    )


def _filled(held: Sequence[Span], total: int) -> tuple[Span, ...]:
    """The spans in order, with padding between them and at the end; empty ones left out."""
    filled, end = [], 0
    for span in sorted(span for span in held if span.end > span.start):
        if span.start > end:
            filled.append(Span(end, span.start, "padding", -1))
        filled.append(span)
        end = span.end
    if end < total:
        filled.append(Span(end, total, "padding", -1))
    return tuple(filled)


def page_spans(picture: StatePicture, page: int) -> tuple[Span, ...]:
    """What one page holds, in bytes from its start."""
    first, last = page * picture.page_bytes, (page + 1) * picture.page_bytes
    return tuple(
        Span(max(span.start, first) - first, min(span.end, last) - first, span.kind, span.layer)
        for span in picture.spans
        if span.start < last and span.end > first
    )

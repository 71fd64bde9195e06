"""Drawings on a page: SVG that holds shapes and text and nothing that could act or load."""

from __future__ import annotations

import re
from html import escape
from xml.etree import ElementTree

from milepost.errors import InvariantError
from milepost.planner.report import Drawing

__all__ = ["drawing_html"]

_SVG = "http://www.w3.org/2000/svg"
_ELEMENTS = frozenset(
    {
        *("svg", "g", "title", "desc", "defs", "rect", "line", "path", "text", "tspan", "circle", "ellipse"),
        *("polyline", "polygon", "pattern", "linearGradient", "stop", "marker", "clipPath"),
    }
)
_ACTS = re.compile(r"on\w+|.*href", re.IGNORECASE)
_LOADS = re.compile(r"url\(\s*[^#\s]|javascript:|data:|://", re.IGNORECASE)


def drawing_html(drawing: Drawing) -> str:
    """A figure with its title; wide ones scroll.

    Raises:
        InvariantError: the SVG isn't well-formed, or has what a picture doesn't need: scripts, links, styles
            that could load something. Text that a user gave was not escaped, most likely.
    """
    _check(drawing)
    caption = f"<figcaption>{escape(drawing.title)}</figcaption>" if drawing.title else ""
    label = escape(drawing.title or "Drawing")
    return (
        f'<figure class="drawing">{caption}'
        f'<div class="scroll" tabindex="0" role="img" aria-label="{label}">{drawing.svg}</div></figure>'
    )


def _check(drawing: Drawing) -> None:
    if "<!" in drawing.svg or "<?" in drawing.svg:
        raise InvariantError(f"The drawing {drawing.title!r} has a declaration, which a page must not hold.")
    try:
        root = ElementTree.fromstring(drawing.svg)  # noqa: S314 - ours, and declarations are refused above
    except ElementTree.ParseError as error:
        raise InvariantError(f"The drawing {drawing.title!r} is not well-formed: {error}.") from None
    if _local(root.tag) != "svg":
        raise InvariantError(f"The drawing {drawing.title!r} must be an <svg>. Given: <{_local(root.tag)}>.")
    for element in root.iter():
        if _local(element.tag) not in _ELEMENTS:
            raise InvariantError(f"The drawing {drawing.title!r} holds <{_local(element.tag)}>.")
        for name, value in element.attrib.items():
            if _ACTS.fullmatch(_local(name)) or _LOADS.search(value):
                raise InvariantError(f"The drawing {drawing.title!r} holds {_local(name)}={value[:60]!r}.")


def _local(name: str) -> str:
    """A name without its namespace, where that is SVG's or none."""
    return name.removeprefix(f"{{{_SVG}}}")

"""What every HTML report is: one file with its style, scripts and plotly, which loads nothing from anywhere.

A page is a head of tiles, a body of sections, and plain data from which a script of its own draws plots with
the shared one (``assets/report/page.js``). Whoever builds head and body escapes what is in them.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from milepost import __version__
from milepost.errors import ConfigError

__all__ = ["Page", "filled", "notes_html", "page_html", "tiles_html"]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a page that differ; text is plain, ``*_html`` is markup.

    Attributes:
        brand: the command that made it, without "milepost".
        title: of the page.
        lead: a sentence below the title.
        tiles_html: of the head; see `tiles_html`.
        head_html: what else is in the head.
        body_html: sections.
        data: what the page's script reads.
        script: name of the asset with that script.
        styles: names of assets with styles beside the shared ones.
        plots: whether there are any, so that plotly is needed.
    """

    brand: str
    title: str
    lead: str
    tiles_html: str
    head_html: str = ""
    body_html: str
    data: Mapping[str, Any]
    script: str
    styles: tuple[str, ...] = ()
    plots: bool = True


def page_html(page: Page) -> str:
    """The file.

    Raises:
        ConfigError: plotly is needed and not installed.
    """
    return filled(
        "frame.html",
        {
            "brand": escape(page.brand),
            "title": escape(page.title),
            "lead": escape(page.lead),
            "tiles": page.tiles_html,
            "head": page.head_html,
            "body": page.body_html,
            "version": escape(__version__),
            "credit": " Plots by plotly.js (MIT licence)." if page.plots else "",
            "data": _embedded(page.data),
            "css": "\n".join(map(_asset, ("page.css", *page.styles))),
            "js": "\n".join(map(_asset, ("page.js", page.script))),
            "library": _library() if page.plots else "",
        },
    )


def filled(name: str, parts: Mapping[str, str]) -> str:
    """An asset whose ``{{name}}`` are replaced, in one pass: what stands in a part is never looked into."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset(name))


def tiles_html(tiles: Iterable[tuple[str, str, str]]) -> str:
    """Tiles of (name, value, what else is to be said of it)."""
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}{_small(more)}</dd></div>"
        for name, value, more in tiles
    )


def _small(more: str) -> str:
    return f"<small>{escape(more)}</small>" if more else ""


def notes_html(notes: Iterable[str], command: str) -> str:
    """The last section: what a reader must know, and the command line that made the page, "" for none."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    made = f"<h3>Made by</h3><pre>{escape(command)}</pre>" if command else ""
    return f'<section id="notes"><h2>Notes</h2><ul>{items}</ul>{made}</section>'


def _library() -> str:
    """plotly.js, packed: a third of its size, and the page unpacks it in a moment."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError(
            "An HTML report needs plotly, which is not installed. Run `pip install 'milepost[simulate]'`, "
            "or write JSON."
        ) from None
    return _packed(get_plotlyjs())


@cache
def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _asset(name: str) -> str:
    return (files("milepost") / "assets" / "report" / name).read_text(encoding="utf-8")


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that can't end the element that it stands in."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

"""How much a template may write, build and compute while it renders one conversation.

Every operation by which a template can make something larger passes by here, and is judged before it is
carried out: a template can come with a checkpoint, and so from anywhere.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import Any

from jinja2 import Undefined

__all__ = [
    "Meter",
    "TemplateLimitError",
    "as_text",
    "check_built",
    "check_format",
    "check_formatted",
    "check_lines",
    "check_number",
    "check_size",
    "joined",
    "meter",
    "set_meter",
]

# A prompt of a million tokens is some 4 MiB of text.
MAX_CHARS = 32 * 1024 * 1024
MAX_WRITTEN_CHARS = 512 * 1024 * 1024
MAX_ITEMS = 1_000_000
MAX_SECONDS = 2.0
MAX_NUMBER_BITS = 4096
MAX_FORMAT_WIDTH_DIGITS = 3
MAX_CHARS_OF_ONE = 10  # a character's most, written as Python writes it: \\U0010ffff

_WIDE = re.compile(rf"\d{{{MAX_FORMAT_WIDTH_DIGITS + 1},}}|\*|{{[^}}]*{{")
_ENDS_OF_LINES = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_WRITTEN_OUT = re.compile(r"%(?:\([^)]*\))?[-+ #0-9.]*[ar]|![ar]")
_PLAIN = (str, int, float, bool, type(None), Undefined)


class TemplateLimitError(Exception):
    """A template passed a limit; the message says which."""


class Meter:
    """What one rendering has used. Time is the thread's own, so that a busy machine ends nothing early.

    Args:
        mark: the character that marks what users wrote, "" for none; it is kept where Python would write
            the number of it.
    """

    def __init__(self, mark: str = "") -> None:
        self.mark = mark
        self._written = 0
        self._deadline = time.thread_time() + MAX_SECONDS

    def check_time(self) -> None:
        """End a rendering that takes too long.

        Raises:
            TemplateLimitError: it does.
        """
        if time.thread_time() > self._deadline:
            raise TemplateLimitError(f"it computed for more than {MAX_SECONDS:g} s")

    def write(self, text: str) -> str:
        """Count a text that the template made.

        Raises:
            TemplateLimitError: it made too much in all.
        """
        check_size(len(text))
        self._written += len(text)
        if self._written > MAX_WRITTEN_CHARS:
            raise TemplateLimitError(f"it made more than {MAX_WRITTEN_CHARS:,} characters in all")
        return text


_ACTIVE = threading.local()


def meter() -> Meter:
    """The meter of the rendering that runs in this thread; one for nothing while a template is compiled."""
    found = getattr(_ACTIVE, "meter", None)
    return found if isinstance(found, Meter) else Meter()


def set_meter(used: Meter | None) -> None:
    """Measure what this thread renders from now on."""
    _ACTIVE.meter = used


def check_size(chars: int) -> None:
    """Refuse a text of so many characters.

    Raises:
        TemplateLimitError: there are too many.
    """
    if chars > MAX_CHARS:
        raise TemplateLimitError(f"it made a text of more than {MAX_CHARS:,} characters")


def check_number(bits: int) -> None:
    """Refuse a whole number of so many bits.

    Raises:
        TemplateLimitError: there are too many.
    """
    if bits > MAX_NUMBER_BITS:
        raise TemplateLimitError(f"it made a number of more than {MAX_NUMBER_BITS} bits")


def check_format(text: str) -> None:
    """Refuse a format whose widths could fill the memory.

    Raises:
        TemplateLimitError: they could.
    """
    if _WIDE.search(text):
        raise TemplateLimitError("it formats with a width that is computed or has more than three digits")


def check_formatted(text: str, fields: int, arguments: Iterable[object]) -> None:
    """Refuse a format that could write too much: each of its fields may hold the largest argument.

    Raises:
        TemplateLimitError: it could.
    """
    largest = max((len(as_text(argument)) for argument in arguments), default=0)
    if _WRITTEN_OUT.search(text):
        largest *= MAX_CHARS_OF_ONE
    check_size(len(text) + fields * max(largest, 10**MAX_FORMAT_WIDTH_DIGITS))


def check_lines(text: str) -> None:
    """Refuse a text of too many lines to be cut into them.

    Raises:
        TemplateLimitError: there are.
    """
    if len(text) > MAX_ITEMS and sum(map(text.count, _ENDS_OF_LINES)) > MAX_ITEMS:
        raise TemplateLimitError(f"it made a list of more than {MAX_ITEMS:,} items")


def check_built(value: Any, indent: int = 0) -> Any:  # noqa: ANN401  # whatever a template holds
    """`value`, unless it is too large written out: lists may hold one another many times over.

    Raises:
        TemplateLimitError: it is.
    """
    items, chars, deepest = 0, 0, 0
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        found, depth = waiting.pop()
        items += 1
        deepest = max(deepest, depth)
        if isinstance(found, str):
            chars += len(found)
        elif isinstance(found, Mapping):
            waiting.extend((part, depth + 1) for pair in found.items() for part in pair)
        elif isinstance(found, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
            waiting.extend((part, depth + 1) for part in found)
        if items + len(waiting) > MAX_ITEMS:
            raise TemplateLimitError(f"it made a list of more than {MAX_ITEMS:,} items")
    check_size(chars + items * deepest * indent)
    return value


def as_text(value: Any) -> str:  # noqa: ANN401  # whatever a template holds
    """`value` as a template prints it.

    Raises:
        TemplateLimitError: it is too large.
    """
    if not isinstance(value, _PLAIN):
        if callable(value):
            raise TemplateLimitError("it printed a function, which has no text")
        check_built(value)
        mark = meter().mark
        return str(value).replace(repr(mark)[1:-1], mark) if mark else str(value)
    return str(value)


def joined(parts: Iterable[Any]) -> str:
    """Parts printed one after the other.

    Raises:
        TemplateLimitError: they are too large.
    """
    texts: list[str] = []
    total = 0
    for part in parts:
        texts.append(as_text(part))
        total += len(texts[-1])
        check_size(total)
    return meter().write("".join(texts))

"""Parts that error messages share: the nearest known name, a long list cut short, what can be shown."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

import msgspec

__all__ = ["as_json", "listing", "nearest", "one_of", "printable"]

MAX_SHOWN = 20
MAX_JSON = 60
MAX_NAME = 100


def nearest(given: str, known: Collection[str]) -> str:
    """A hint such as ``" Did you mean 'seed'?"``, or nothing when no known name is near."""
    if len(given) > MAX_NAME:
        return ""  # matching takes time with the square of the length, and nobody misspells by kilobytes
    folded = {name.lower(): name for name in known}
    found = difflib.get_close_matches(given.lower(), folded, n=1)
    return f" Did you mean {folded[found[0]]!r}?" if found else ""


def one_of(name: str, given: object, known: Collection[str]) -> str:
    """The message that `given` is none of the words that the option `name` takes."""
    hint = nearest(given, known) if isinstance(given, str) else ""
    return f"{name} must be one of {', '.join(known)}. Given: {given!r:.100}.{hint}"


def listing(items: Iterable[str]) -> str:
    """The first 20 items, one a line, and how many more there are."""
    every = list(items)
    shown = "".join(f"\n  - {item}" for item in every[:MAX_SHOWN])
    return shown + (f"\n  ... and {len(every) - MAX_SHOWN} more" if len(every) > MAX_SHOWN else "")


def as_json(value: object) -> str:
    """A value as JSON text, cut to some 60 characters."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_JSON else text[: MAX_JSON - 3] + "..."


def printable(text: str) -> str:
    """`text` in one line that any terminal and file takes: what can't be shown becomes a replacement sign.

    Names of files may hold line ends, orders to a terminal, and bytes that are no text.
    """
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)

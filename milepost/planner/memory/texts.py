"""Sizes as the tables of a memory plan write them: decimal bytes, contexts in k and M."""

from __future__ import annotations

__all__ = ["bytes_text", "tokens_text"]

_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def bytes_text(count: float) -> str:
    """Decimal, as hardware is sold: "449.37 MB"; below 10 kB all digits."""
    for unit, size in _UNITS:
        if abs(count) >= (10_000 if unit == "kB" else size):
            return f"{count / size:,.2f} {unit}"
    return f"{count:,.0f} B"


def tokens_text(count: int) -> str:
    """Tokens of a context: "8k" and "1M" where they are whole ones of 1,024, else all digits."""
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)

"""Figures as every plan writes them for a reader: bytes, seconds, other amounts, tokens of a context."""

from __future__ import annotations

__all__ = ["bytes_text", "scaled_text", "seconds_text", "tokens_text"]

_BYTES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_ROUNDED = 0.9995
"""Of a unit: from there on three digits would round up to 1,000 of the next smaller one."""


def bytes_text(count: float) -> str:
    """Decimal, as hardware is sold: "449.37 MB"; below 10 kB all digits."""
    for unit, size in _BYTES:
        if abs(count) >= (10_000 if unit == "kB" else size):
            return f"{count / size:,.2f} {unit}"
    return f"{count:,.0f} B"


def seconds_text(value: float) -> str:
    """Seconds with two decimals; below one, milliseconds or microseconds with three digits."""
    if value >= _ROUNDED:
        return f"{value:,.2f} s"
    return f"{value * 1e3:.3g} ms" if value >= _ROUNDED * 1e-3 else f"{value * 1e6:.3g} us"


def scaled_text(value: float, unit: str) -> str:
    """An amount with three digits and a prefix, such as "2.5 PFLOP"; nothing for 0."""
    if not value:
        return ""
    for prefix, size in _PREFIXES:
        if value >= _ROUNDED * size:
            return f"{value / size:,.3g} {prefix}{unit}"
    return f"{value:,.3g} {unit}"


def tokens_text(count: int) -> str:
    """Tokens of a context: "8k" and "1M" where they are whole ones of 1,024, else all digits."""
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)

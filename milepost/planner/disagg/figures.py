"""Figures as the tables of a disaggregation plan write them."""

from __future__ import annotations

__all__ = ["bandwidth", "gigabytes", "money", "rate", "seconds", "tokens"]

_K = 1024


def gigabytes(count: float) -> str:
    """Bytes in GB of 1e9, with two digits at least that say something."""
    value = count / 1e9
    return f"{value:,.2f} GB" if abs(value) >= 0.1 else f"{value * 1e3:,.1f} MB"


def bandwidth(bytes_per_second: float) -> str:
    """Bytes a second."""
    return f"{gigabytes(bytes_per_second)}/s"


def seconds(value: float) -> str:
    """Seconds, or milliseconds below one."""
    if value >= 1.0:
        return f"{value:,.2f} s"
    return f"{value * 1e3:.1f} ms" if value < 0.01 and value else f"{value * 1e3:.0f} ms"


def tokens(count: int) -> str:
    """Tokens; whole multiples of 1,024 as "8k"."""
    return f"{count // _K:,}k" if count % _K == 0 else f"{count:,}"


def rate(per_second: float) -> str:
    """Requests a second, with three digits."""
    return f"{per_second:,.2f}" if per_second >= 1 else f"{per_second:.3g}"


def money(value: float) -> str:
    """An amount in the currency of the prices."""
    return f"{value:,.2f}" if value >= 0.1 else f"{value:.4f}"

"""How numbers of this plan are written in tables."""

from __future__ import annotations

from milepost.planner.report import Column

__all__ = ["PHASE_NAMES", "columns", "microseconds", "size"]

PHASE_NAMES = {"decode": "decoding", "prefill": "prefill"}
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def microseconds(seconds: float) -> str:
    """Without the unit, to a tenth."""
    return f"{seconds * 1e6:,.1f}"


def size(count: float) -> str:
    """Bytes to three digits."""
    for unit, factor in _UNITS:
        if abs(count) >= 0.9995 * factor:
            return (
                f"{count / factor:,.0f} {unit}"
                if abs(count) >= 1000 * factor
                else f"{count / factor:.3g} {unit}"
            )
    return f"{count:.0f} B"


def columns(*names: str, words: tuple[str, ...] = ()) -> tuple[Column, ...]:
    """Columns of numbers but for those named in `words`."""
    return tuple(Column(name, numeric=name not in words) for name in names)

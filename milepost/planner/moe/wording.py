"""How numbers of this plan are written in tables."""

from __future__ import annotations

__all__ = ["PHASE_NAMES", "microseconds"]

PHASE_NAMES = {"decode": "decoding", "prefill": "prefill"}


def microseconds(seconds: float) -> str:
    """Without the unit, to a tenth."""
    return f"{seconds * 1e6:,.1f}"

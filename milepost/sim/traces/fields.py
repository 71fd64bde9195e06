"""Checks of what stands in a row; each error says the field, the limit and what was given."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from milepost.errors import TraceError
from milepost.sim.traces.options import MAX_TOKENS

__all__ = ["MAX_SECONDS", "brief", "input_tokens", "output_tokens", "seconds", "timestamp"]

MAX_SECONDS = 1e12
"""Some 30,000 years: beyond it a unit was mistaken."""

_MAX_SHOWN = 60

# Clocks count since 1970; whoever counts in finer units than seconds gives numbers as large as these.
_FINER_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))


def brief(value: object) -> str:
    """What a file holds, for a message: cut where it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def input_tokens(name: str, count: int) -> int:
    """A prompt's length.

    Raises:
        TraceError: less than 1 or absurdly many.
    """
    if not 1 <= count <= MAX_TOKENS:
        raise TraceError(
            f"{name} must be a number of tokens from 1 to {MAX_TOKENS:,}. Given: {brief(count)}."
        )
    return count


def output_tokens(name: str, count: int) -> int:
    """An output's length; 0 is allowed, see `milepost.sim.traces.draft.Draft.drawn`.

    Raises:
        TraceError: negative or absurdly many.
    """
    if not 0 <= count <= MAX_TOKENS:
        raise TraceError(
            f"{name} must be a number of tokens from 0 to {MAX_TOKENS:,}. Given: {brief(count)}."
        )
    return count


def seconds(name: str, value: float, per_second: float = 1.0) -> float:
    """A time in units of which a second has `per_second`, as seconds.

    Raises:
        TraceError: negative, not finite, or absurdly late.
    """
    time = value / per_second
    if not 0 <= time <= MAX_SECONDS:  # refuses NaN, too
        raise TraceError(f"{name} must be a time from 0 to {MAX_SECONDS * per_second:g}. Given: {value:g}.")
    return time


def timestamp(name: str, value: object) -> float:
    """A time of a clock: seconds, or milli-, micro- or nanoseconds since 1970, or ISO 8601 text.

    Raises:
        TraceError: none of these.
    """
    if isinstance(value, str):
        return seconds(name, _parsed(name, value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise TraceError(f"{name} must be seconds, or a date and time. Given: {brief(value)}.")
    for least, per_second in _FINER_UNITS:
        if value >= least:
            return seconds(name, value, per_second)
    return seconds(name, float(value))


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _parsed(name: str, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        try:
            return float(text)
        except ValueError:
            raise TraceError(
                f"{name} must be seconds, or a date and time such as 2023-11-16 18:15:46.68. "
                f"Given: {brief(text)}."
            ) from None
    # What names no zone is taken as UTC: only differences count.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

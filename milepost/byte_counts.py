"""Byte counts as people write and read them."""

from __future__ import annotations

import re
from decimal import Decimal

from milepost.error_text import nearest
from milepost.errors import ConfigError

__all__ = ["format_bytes", "parse_bytes"]

_BYTE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
# More digits than any memory has would only take time.
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-zA-Z]*)\s*")


def parse_bytes(value: str | int, *, name: str = "memory") -> int:
    """Read a byte count: 1073741824, "1073741824", "1GiB", "1.5 GB" (case does not matter).

    Args:
        value: the count.
        name: the option that it is given for, for the error.

    Raises:
        ConfigError: not a positive byte count; the message shows the form.
    """
    number = _byte_count(value)
    if number is None or number < 1:
        units = ", ".join(_BYTE_UNITS)
        unit = value.lstrip(" 0123456789.") if isinstance(value, str) else ""
        raise ConfigError(
            f"{name} must be a positive number of bytes, such as 2GiB or 512MiB (units: {units}). "
            f"Given: {value!r:.100}.{nearest(unit, _BYTE_UNITS) if unit else ''}"
        )
    return number


def _byte_count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    by_folded_name = {unit.lower(): factor for unit, factor in _BYTE_UNITS.items()}
    factor = by_folded_name.get(match[2].lower() or "b")
    if factor is None:
        return None
    # Not by a float: 2.01 GB would be a byte less than what is written.
    return int(Decimal(match[1]) * factor)


def format_bytes(count: int) -> str:
    """`count` bytes for a reader: "2.0 GiB". Round figures read back exactly by `parse_bytes`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count >= _BYTE_UNITS[unit]:
            return f"{count / _BYTE_UNITS[unit]:.1f} {unit}"
    return f"{count} B"

"""What a person writes and what the machine offers: byte counts, near matches, memory, cores."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection
from pathlib import Path

from milepost.errors import ConfigError

__all__ = ["available_memory", "format_bytes", "nearest", "parse_bytes", "usable_cores"]

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


def nearest(given: str, known: Collection[str]) -> str:
    """A hint such as ``" Did you mean 'seed'?"``, or nothing when no known name is near."""
    folded = {name.lower(): name for name in known}
    found = difflib.get_close_matches(given.lower(), folded, n=1)
    return f" Did you mean {folded[found[0]]!r}?" if found else ""


def parse_bytes(value: str | int, *, name: str = "memory") -> int:
    """Read a byte count: 1073741824, "1073741824", "1GiB", "1.5 GB" (case does not matter).

    Raises:
        ConfigError: not a positive byte count; the message shows the form.
    """
    number = _byte_count(value)
    if number is None or number < 1:
        units = ", ".join(_BYTE_UNITS)
        unit = value.lstrip(" 0123456789.") if isinstance(value, str) else ""
        raise ConfigError(
            f"{name} must be a positive number of bytes, such as 2GiB or 512MiB (units: {units}). "
            f"Given: {value!r}.{nearest(unit, _BYTE_UNITS) if unit else ''}"
        )
    return number


def _byte_count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
    if match is None:
        return None
    by_folded_name = {unit.lower(): factor for unit, factor in _BYTE_UNITS.items()}
    factor = by_folded_name.get(match[2].lower() or "b")
    if factor is None:
        return None
    return int(match[1]) * factor if match[1].isdigit() else int(float(match[1]) * factor)


def format_bytes(count: int) -> str:
    """`count` bytes for a reader: "2.0 GiB". Round figures read back exactly by `parse_bytes`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count >= _BYTE_UNITS[unit]:
            return f"{count / _BYTE_UNITS[unit]:.1f} {unit}"
    return f"{count} B"


def available_memory() -> int:
    """Bytes this process may still take: the system's figure or its control group's, the lesser."""
    figures = [_system_available()]
    group = Path("/sys/fs/cgroup")
    limit, used = _read_number(group / "memory.max"), _read_number(group / "memory.current")
    if limit is not None and used is not None:
        figures.append(max(0, limit - used))
    return min(figures)


def _system_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: the whole memory is the best figure there is
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # no control group, or "max"


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

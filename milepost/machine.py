"""What the machine offers: memory and cores."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["available_memory", "processor_name", "total_memory", "usable_cores"]


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
    return total_memory()


def total_memory() -> int:
    """Bytes of memory that the machine has, taken or not."""
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


def processor_name() -> str:
    """What the processor calls itself, the machine's architecture where it doesn't say."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine() or "unknown"

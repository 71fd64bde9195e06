"""What the machine offers: memory and cores."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

from milepost.control_group import group_memory, group_processors

__all__ = ["available_memory", "processor_name", "total_memory", "usable_cores"]


def available_memory() -> int:
    """Bytes this process may still take: the system's figure or its control group's, the lesser."""
    system, group = _system_available(), group_memory()
    return system if group is None else min(system, group)


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


def usable_cores() -> int:
    """CPU cores that this process may keep busy: those it may run on, or its control group's share of them.

    More threads than a group's share are stopped for the rest of each period, all at once.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = group_processors()
    return allowed if share is None else max(1, min(allowed, math.floor(share)))


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

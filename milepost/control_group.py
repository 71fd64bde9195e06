"""What the process's control group leaves it: memory and processor time.

A container's and a systemd unit's limits are control groups; so may those around them be, and the least
counts. Both forms are read: one tree of all limits (version 2), and a tree for each kind (version 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["group_memory", "group_processors"]

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def group_memory() -> int | None:
    """Bytes that the process may still take, None where no group limits it.

    Pages of files that were read and can be dropped do not count as taken.
    """
    figures = []
    for group in _groups("memory"):
        limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
        used = _number(group / "memory.current", group / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            figures.append(max(0, limit - max(0, used - _droppable(group))))
    return min(figures, default=None)


def group_processors() -> float | None:
    """Processors' worth of time that the process may use, None where no group limits it."""
    figures = []
    for group in _groups("cpu"):
        both = _words(group / "cpu.max") or [
            *_words(group / "cpu.cfs_quota_us"),
            *_words(group / "cpu.cfs_period_us"),
        ]
        if len(both) == 2 and all(word.isdecimal() for word in both) and int(both[1]):  # not "max", not -1
            figures.append(int(both[0]) / int(both[1]))
    return min(figures, default=None)


def _groups(kind: str) -> Iterator[Path]:
    """Folders of the process's group for a kind of limit and of those around it."""
    try:
        lines = _MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return  # not Linux
    for line in lines:
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if kinds and kind not in kinds.split(","):
            continue
        tree = _ROOT / kind if kinds else _ROOT
        own = tree / path.strip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(tree))


def _droppable(group: Path) -> int:
    for line in _lines(group / "memory.stat"):
        name, _, value = line.partition(" ")
        # Version 1 has a group's own pages under the short name, its children's too under the long one.
        if name == "total_inactive_file" or (name == "inactive_file" and (group / "memory.max").exists()):
            return int(value) if value.isdecimal() else 0
    return 0


def _number(*paths: Path) -> int | None:
    """What the first of some files that is there holds; None for "max" and where there is none."""
    words = next((found for path in paths if (found := _words(path))), [""])
    return int(words[0]) if words[0].isdecimal() else None


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []

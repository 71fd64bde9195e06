"""Findings about the machine: processor, memory, disk, and what the system lets a process do."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from milepost.byte_counts import format_bytes
from milepost.cli.doctor.finding import Finding, Level
from milepost.control_group import group_memory, group_processors
from milepost.descriptors import OTHER_FILES, files_allowed
from milepost.machine import available_memory, processor_name, total_memory, usable_cores

if TYPE_CHECKING:
    from milepost.server.config import ServerConfig

__all__ = ["examine_hardware", "vectors"]

_TOPIC = "machine"

_LITTLE_MEMORY = 2 << 30
_LITTLE_DISK = 2 << 30

_X86_LEVELS = {
    "avx2": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
"""What each target of the kernels needs beyond the one before it (x86-64's levels 3 and 4)."""


def examine_hardware(server: ServerConfig | None) -> Iterator[Finding]:
    """Look at the machine for a server.

    Args:
        server: its options; None leaves out what depends on them.
    """
    yield _processor()
    yield _cores()
    yield from _nodes()
    yield _memory()
    yield from _huge_pages()
    yield _disk()
    if server is not None:
        yield _open_files(server.max_connections)
        yield _port(server.host, server.port)
    yield from _accelerators()


def vectors() -> str:
    """The best target of the kernels that this processor can run: "avx512", "avx2" or "baseline"."""
    flags, best = _processor_flags(), "baseline"
    for target, needed in _X86_LEVELS.items():
        if not flags.issuperset(needed):
            break
        best = target
    return best


def _processor_flags() -> set[str]:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return set(value.split())
    return set()


def _processor() -> Finding:
    found = f"{processor_name()}, {platform.machine()}"
    if platform.machine() not in {"x86_64", "AMD64"}:
        advice = "The kernels run on the compiler's own vectors here; they are tuned for AVX-512 and AVX2."
        return _finding("processor", Level.NOTE, found, advice)
    best = vectors()
    if best == "baseline":
        advice = (
            "Without AVX2 the kernels run several times slower. Choose a processor (or virtual one) with it."
        )
        return _finding("processor", Level.WARNING, f"{found}, no AVX2", advice)
    return _finding("processor", Level.OK, f"{found}, {best}")


def _cores() -> Finding:
    usable, all_of_them, share = usable_cores(), os.cpu_count() or 1, group_processors()
    found = f"{usable} of {all_of_them} usable"
    if share is not None and share < all_of_them:
        advice = "Kernels take as many threads as its whole part; a part of a core is lost to them."
        level = Level.OK if share == usable else Level.NOTE
        return _finding(
            "cores",
            level,
            f"{found}; the control group allows {share:g}",
            advice if level is Level.NOTE else "",
        )
    if usable == 1:
        advice = "The kernels and the server share it. A second one makes answers steadier."
        return _finding("cores", Level.NOTE, found, advice)
    return _finding("cores", Level.OK, found)


def _nodes() -> Iterator[Finding]:
    nodes = [*Path("/sys/devices/system/node").glob("node[0-9]*")]
    holding = [node for node in nodes if (_read(f"{node}/cpulist") or "").strip()]
    if len(holding) > 1:
        advice = (
            "Memory of another node is read more slowly. Run one server on each, such as: "
            "numactl --cpunodebind=0 --membind=0 milepost serve ..."
        )
        yield _finding("memory nodes", Level.NOTE, f"{len(holding)} (NUMA)", advice)


def _memory() -> Finding:
    available, total = available_memory(), total_memory()
    group = group_memory()
    held = "" if group is None or group > available else "; the control group's limit"
    found = f"{format_bytes(available)} of {format_bytes(total)} available{held}"
    if available < _LITTLE_MEMORY:
        advice = (
            "Weights, the arena and half a GiB for Python and torch must fit. Free some, or raise the limit."
        )
        return _finding("memory", Level.WARNING, found, advice)
    return _finding("memory", Level.OK, found)


def _huge_pages() -> Iterator[Finding]:
    text = _read("/sys/kernel/mm/transparent_hugepage/enabled")
    if text is None:
        return  # not Linux, or not told in this container
    chosen = text.partition("[")[2].partition("]")[0]
    if chosen == "never":
        advice = (
            "Weights are read faster through huge pages. As root: "
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        )
        yield _finding("huge pages", Level.NOTE, chosen, advice)
    else:
        yield _finding("huge pages", Level.OK, chosen)


def _disk() -> Finding:
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free
    found = f"{format_bytes(free)} free here"
    if free < _LITTLE_DISK:
        advice = "A --disk-cache and logs need room. Free some, or start the server in another folder."
        return _finding("disk", Level.NOTE, found, advice)
    return _finding("disk", Level.OK, found)


def _open_files(max_connections: int) -> Finding:
    allowed = files_allowed()  # the server raises its soft limit itself
    needed = max_connections + OTHER_FILES
    if allowed is None:
        return _finding("open files", Level.OK, "no limit")
    found = f"at most {allowed:,}"
    if allowed >= needed:
        return _finding("open files", Level.OK, found)
    advice = (
        f"{max_connections:,} connections need {needed:,}; the server will take fewer. Before it, as root, "
        f"`ulimit -Hn {needed}` (LimitNOFILE={needed} in a systemd unit); or choose --max-connections "
        f"{max(1, allowed - OTHER_FILES)}."
    )
    return _finding("open files", Level.WARNING, found, advice)


def _port(host: str, port: int) -> Finding:
    name = f"port {port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        advice = "If that is no Milepost of yours, choose another --port for the server."
        return _finding(name, Level.WARNING, f"can't be taken on {host}: {error.strerror}", advice)
    return _finding(name, Level.OK, f"free on {host}")


def _accelerators() -> Iterator[Finding]:
    nvidia = [*Path("/dev").glob("nvidia[0-9]*")]
    amd = [Path("/dev/kfd")] if Path("/dev/kfd").exists() else []
    if nvidia or amd:
        kind = f"{len(nvidia)} of NVIDIA" if nvidia else "of AMD"
        yield _finding("GPUs", Level.NOTE, kind, "Milepost runs on processors only; they stay idle.")


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _finding(name: str, level: Level, found: str, advice: str = "") -> Finding:
    return Finding(topic=_TOPIC, name=name, level=level, found=found, advice=advice)

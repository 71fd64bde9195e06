"""What a number was measured on: processor, memory, versions, commit, date."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import milepost
from milepost.machine import usable_cores

__all__ = ["describe_machine"]

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "numpy")

# Of a processor's many flags, those that decide how fast a kernel can be.
TELLING_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


def describe_machine() -> dict[str, object]:
    """Everything that a reader must know to compare."""
    cpu = _read_fields(Path("/proc/cpuinfo"))
    flags = set(cpu.get("flags", "").split())
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "changed_files": len(_git("status", "--porcelain").splitlines()),
        "cpu": cpu.get("model name", platform.processor()),
        "cores": usable_cores(),
        "flags": [flag for flag in TELLING_FLAGS if flag in flags],
        "load_average": round(os.getloadavg()[0], 2),
        "memory": _read_fields(Path("/proc/meminfo")).get("MemTotal", "unknown"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "milepost": milepost.__version__,
        "packages": {name: version(name) for name in PACKAGES},
    }


def _read_fields(path: Path) -> dict[str, str]:
    """First value of each ``name: value`` line of a file under /proc; empty elsewhere."""
    if not path.exists():
        return {}
    fields: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"

"""Where the repository's own files are, for the tests that read them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "text_files", "tracked_files"]

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"__pycache__", "build", "dist", "runs", "milepost.egg-info"}
BINARY_SUFFIXES = {".safetensors", ".png", ".npz", ".npy", ".gz", ".model", ".bin"}


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that belongs to the repository, or would on the next commit."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if result.returncode:  # an unpacked archive, without git
        paths = [path for path in ROOT.rglob("*") if not _hidden(path)]
    else:
        paths = [ROOT / name for name in result.stdout.split("\0") if name]
    return tuple(sorted(path for path in paths if path.is_file()))


def _hidden(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return any(part.startswith(".") or part in GENERATED for part in parts)


def text_files() -> tuple[Path, ...]:
    """The tracked files that hold text."""
    return tuple(path for path in tracked_files() if path.suffix not in BINARY_SUFFIXES)

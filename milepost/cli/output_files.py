"""Files that a command writes its results to: whether they can be written is known before the work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from milepost.errors import ConfigError

__all__ = ["STDOUT", "check_output_files"]

STDOUT = "-"
"""What ``--json`` without a file stands for."""
_LIBRARIES = {"--parquet": "polars", "--html": "plotly"}


def check_output_files(files: Mapping[str, Path], inputs: Mapping[str, Path] | None = None) -> None:
    """Refuse files that can't be written or that would overwrite each other or what is read.

    Args:
        files: by the option that names each.
        inputs: what is read, by what the user calls it.

    Raises:
        ConfigError: one file for two, an input's own file, a folder, no permission, or a missing library.
    """
    taken = {path.resolve(): name for name, path in (inputs or {}).items()}
    for option, path in files.items():
        if path.is_dir():
            raise ConfigError(f"{option} must name a file. Given: {path}, a folder.")
        if not _is_writable(path):
            raise ConfigError(f"{option}: {path} can't be written. Name another file.")
        before = taken.setdefault(path.resolve(), option)
        if before != option and not path.is_char_device():
            raise ConfigError(f"{option} would overwrite the file of {before}, {path}. Name another one.")
    for option, library in _LIBRARIES.items():
        if option in files and find_spec(library) is None:
            raise ConfigError(
                f"{option} needs {library}, which is not installed. Run `pip install 'milepost[simulate]'`, "
                "or give --json."
            )


def _is_writable(path: Path) -> bool:
    """As far as can be told before it is: folders that are missing are made."""
    if path.exists():
        return os.access(path, os.W_OK)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    return folder.is_dir() and os.access(folder, os.W_OK)

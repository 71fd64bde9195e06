"""Report files: written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from milepost.errors import InputError

__all__ = ["save"]


def save(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whose folder is made if need be; an older file stays until it is done.

    Raises:
        InputError: it can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a pipe or a device, such as /dev/stdout
            path.write_bytes(content)
            return
        _replace(path, content)
    except OSError as error:
        raise InputError(
            f"A report can't be written to {path}: {error.strerror or error}. Name another file."
        ) from error


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:50]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # noqa: PTH101 - mkstemp gives names; the mode is any new file's
        os.replace(name, path)  # noqa: PTH105 - the same
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

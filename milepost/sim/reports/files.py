"""Report files: written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from milepost.errors import InputError
from milepost.sim.whole_files import replacing

__all__ = ["save"]


def save(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whose folder is made if need be; an older file stays until it is done.

    Raises:
        InputError: it can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    except BrokenPipeError:  # whoever read has seen enough
        raise
    except OSError as error:
        raise InputError(
            f"A report can't be written to {path}: {error.strerror or error}. Name another file."
        ) from error

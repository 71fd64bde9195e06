"""Files that are written whole or not at all: what stood there before stays until all is written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write in the place of `path`, which a pipe or a device may be, too.

    Whatever ends the block by an exception leaves `path` as it was.

    Raises:
        OSError: it can't be written.
    """
    if path.exists() and not path.is_file():  # such as /dev/stdout
        with path.open("wb") as file:
            yield file
        return
    target = path.resolve()  # what a link names, not the link
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:50]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield cast(BinaryIO, file)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # noqa: PTH101 - mkstemp gives names; the mode is any new file's
        os.replace(name, target)  # noqa: PTH105 - the same
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

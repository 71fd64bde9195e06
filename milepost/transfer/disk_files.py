"""The disk tier's files: private, locked, written and read whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

from milepost.errors import ConfigError

__all__ = [
    "FOLDER_MODE",
    "SECRET_BYTES",
    "lock_file",
    "open_private",
    "read_exactly",
    "read_secret",
    "replace_file",
    "write_all",
]

SECRET_BYTES = 32
FOLDER_MODE = 0o700
_FILE_MODE = 0o600  # the pages are made of users' texts


def open_private(path: Path, flags: int = 0) -> int:
    """Open for reading and writing, created if missing; readable by its owner alone, not through a link.

    Raises:
        OSError: it can't be opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, _FILE_MODE)
    try:
        if os.fstat(fd).st_mode & 0o777 != _FILE_MODE:
            os.fchmod(fd, _FILE_MODE)
    except OSError:
        os.close(fd)
        raise
    return fd


def lock_file(path: Path) -> int:
    """Lock the folder of `path` for this process, until the returned descriptor is closed.

    The system lets go of the lock when the process dies, however it dies.

    Raises:
        ConfigError: somebody else holds it.
        OSError: the file can't be opened or locked.
    """
    fd = open_private(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):  # a full disk; the number is only for the message below
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise ConfigError(
            f"The disk cache {path.parent} is in use by another engine (process {owner or 'unknown'}). "
            "Only one can use a folder at a time: give each engine its own, or stop the other one."
        ) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_secret(path: Path) -> bytes:
    """The random bytes that outlive the process, drawn the first time.

    A file of another length was torn or is not ours; it is replaced, and what was written under the
    old secret can't be found any more.

    Raises:
        OSError: the file can't be read or written.
    """
    fd = open_private(path)
    try:
        kept = os.pread(fd, SECRET_BYTES + 1, 0)
    finally:
        os.close(fd)
    if len(kept) == SECRET_BYTES:
        return kept
    fresh = secrets.token_bytes(SECRET_BYTES)
    os.close(replace_file(path, fresh))
    return fresh


def replace_file(path: Path, content: bytes) -> int:
    """Put `content` in the place of a file, all or nothing even if the power fails.

    Returns:
        A descriptor of the new file.

    Raises:
        OSError: nothing has changed.
    """
    fresh = path.with_name(path.name + ".new")
    fd = open_private(fresh, os.O_TRUNC)
    try:
        write_all(fd, content, 0)
        os.fsync(fd)
        fresh.replace(path)
    except OSError:
        os.close(fd)
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    with contextlib.suppress(OSError):  # not every file system can; then the old file may come back whole
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return fd


def write_all(fd: int, content: bytes | memoryview, offset: int) -> None:
    """Write all of `content` at `offset`.

    Raises:
        OSError: it was not written, or not whole.
    """
    rest = memoryview(content)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest = rest[written:]
        offset += written


def read_exactly(fd: int, target: memoryview, offset: int) -> bool:
    """Fill `target` from `offset` on; False if the file ends before.

    Raises:
        OSError: the file can't be read.
    """
    while target:
        count = os.preadv(fd, [target], offset)
        if count == 0:
            return False
        target = target[count:]
        offset += count
    return True

"""Files as bytes, whether they are plain, gzip or zstd: told by their content, whatever their names say."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from milepost.errors import ConfigError, TraceError
from milepost.sim.whole_files import replacing

__all__ = ["open_compressed", "open_unpacked"]

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_FOREIGN = {b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip", b"PAR1": "Parquet"}
_CHUNK = 1 << 14


@contextmanager
def open_unpacked(path: Path) -> Iterator[tuple[io.BufferedReader, BinaryIO]]:
    """Open a file to read what it holds; yields (unpacked content, the file itself, to ask how far it is).

    Raises:
        TraceError: it can't be read, or is packed in a way that is not known; from reading, that it is torn.
        ConfigError: it needs a library that is not installed.
    """
    try:
        with path.open("rb") as file:
            yield _unpacked(path, file), file
    except FileNotFoundError:
        raise TraceError(f"There is no file {path}. Give the path of a trace.") from None
    except gzip.BadGzipFile as error:
        raise TraceError(f"{path} is damaged gzip ({error}). Copy or download it again.") from None
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path} is torn ({error}). Copy or download it again.") from None
    except OSError as error:
        raise TraceError(f"{path} can't be read: {error.strerror or error}.") from None


def _unpacked(path: Path, file: io.BufferedReader) -> io.BufferedReader:
    start = file.peek(8)[:8]
    if start.startswith(_GZIP):
        return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), 1 << 17)
    if start.startswith(_ZSTD):
        return io.BufferedReader(_ZstdFile(path, file), 1 << 17)
    for magic, name in _FOREIGN.items():
        if start.startswith(magic):
            raise TraceError(f"{path} is a {name} file. Unpack it: traces are read plain, from gzip or zstd.")
    return file


class _ZstdFile(io.RawIOBase):
    """Reads zstd frames one after the other, and notices when the last one is torn."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._zstandard = _zstandard(path)
        self._frame = self._new_frame()
        self._ready = memoryview(b"")
        self._begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - Buffer, from Python 3.12 on
        into = memoryview(buffer).cast("B")
        while not self._ready:
            chunk = self._file.read(_CHUNK)
            if not chunk:
                if self._begun:
                    raise EOFError("the last zstd frame does not end")
                return 0
            self._ready = memoryview(self._unpack(chunk))
        count = min(len(into), len(self._ready))
        into[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _unpack(self, chunk: bytes) -> bytes:
        content = bytearray()
        while chunk:
            try:
                content += self._frame.decompress(chunk)
            except self._zstandard.ZstdError as error:
                raise TraceError(f"{self._path} is damaged zstd ({error}). Copy it again.") from None
            self._begun = not self._frame.eof
            chunk = b""
            if self._frame.eof:
                chunk = self._frame.unused_data
                self._frame = self._new_frame()
        return bytes(content)

    def _new_frame(self) -> Any:  # noqa: ANN401 - a type of an optional library
        return self._zstandard.ZstdDecompressor().decompressobj()


def _zstandard(path: Path) -> Any:  # noqa: ANN401 - a module that may be missing
    try:
        import zstandard
    except ImportError:
        raise ConfigError(
            f"{path} is a zstd file, which needs the package zstandard. "
            "Install it (pip install 'milepost[simulate]'), or unpack the file."
        ) from None
    return zstandard


@contextmanager
def open_compressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write: gzip for a name that ends in .gz, zstd for .zst, plain else.

    An older file of that name stays until all is written.

    Raises:
        ConfigError: zstd, and the library for it is not installed.
        TraceError: it can't be written.
    """
    try:
        if path.suffix == ".zst":
            packer = _zstandard(path).ZstdCompressor(level=10)
            with replacing(path) as file, packer.stream_writer(file, closefd=False) as packed:
                yield packed
        elif path.suffix == ".gz":
            # Without a name and a time inside, the same trace gives the same bytes.
            with replacing(path) as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                yield cast(BinaryIO, packed)
        else:
            with replacing(path) as file:
                yield file
    except BrokenPipeError:  # whoever read has seen enough
        raise
    except OSError as error:
        raise TraceError(f"{path} can't be written: {error.strerror or error}. Name another file.") from error

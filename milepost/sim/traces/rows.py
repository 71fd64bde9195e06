"""The rows of a trace, one at a time, and what becomes of a bad one.

A row is a line. A file may also be one JSON document over many lines: a list, whose items are the rows,
or an object, which is the only row. A folder's files are read one after the other, by name.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from milepost.errors import TraceError
from milepost.sim.traces.compressed import open_unpacked

__all__ = ["Progress", "Rows"]

T = TypeVar("T")
Progress = Callable[[int, int], None]

_MAX_ROW = 1 << 29
_MAX_DOCUMENT = 1 << 30
_BOM = b"\xef\xbb\xbf"
_REPORT_BYTES = 1 << 16
_SHOWN = 80


class Rows:
    """Reads rows and hands them to a form's reader.

    Args:
        path: a file, or a folder of files.
        skip_bad: count bad rows instead of raising.
        first: rows to take; None for all.
        on_progress: called with (bytes read, bytes to read).

    Attributes:
        skipped: bad rows so far.
        first_skipped: where the first of them stands, and what is wrong with it.
    """

    def __init__(
        self,
        path: Path,
        *,
        skip_bad: bool = False,
        first: int | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self.skipped = 0
        self.first_skipped = ""
        self._path = path
        self._files = _files(path)
        self._skip_bad = skip_bad
        self._first = first
        self._on_progress = on_progress
        self._place = ""

    def head(self, count: int) -> list[bytes]:
        """The first rows as they are, without what packs them."""
        found: list[bytes] = []
        for file in self._files:
            for _, row in _rows_of(file, None):
                found.append(row)
                if len(found) == count:
                    return found
        return found

    def each(self, decoder: msgspec.json.Decoder[T], take: Callable[[T], None]) -> None:
        """Decode all rows and call `take` with each.

        For a row that it can't use, `take` raises TraceError before it changes anything.

        Raises:
            TraceError: the first bad row, with its place, unless bad rows are skipped.
        """
        self.each_raw(lambda row: take(decoder.decode(row)))

    def each_raw(self, take: Callable[[bytes], None]) -> None:
        """The same with a row's bytes."""
        taken = 0
        for row in self:
            if taken == self._first:
                return
            try:
                take(row)
            except (msgspec.DecodeError, UnicodeError, RecursionError, TraceError) as error:
                self._bad(row, error)
            else:
                taken += 1

    def __iter__(self) -> Iterator[bytes]:
        total = sum(file.stat().st_size for file in self._files)
        before = 0
        for file in self._files:
            report = None
            if self._on_progress is not None:
                show, offset = self._on_progress, before
                report = lambda done: show(offset + done, total)  # noqa: E731, B023 - used in this turn only
            for place, row in _rows_of(file, report):
                self._place = f"{file}, {place}"
                yield row
            before += file.stat().st_size

    def _bad(self, row: bytes, error: Exception) -> None:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")
        if self._skip_bad:
            self.skipped += 1
            self.first_skipped = self.first_skipped or f"{self._place}: {what}"
            return
        text = row[: _SHOWN + 1].decode("utf-8", "backslashreplace").strip()
        shown = text if len(row) <= _SHOWN else text[:_SHOWN] + "..."
        raise TraceError(
            f"{self._place}: {what}. The row: {shown!r}. "
            "Mend it, or leave rows that can't be read out with --skip-bad."
        ) from None


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise TraceError(f"There is no file {path}. Give the path of a trace.")
    if not path.is_dir():
        if not path.is_file():  # its beginning is read twice
            raise TraceError(f"{path} is no regular file. Write the trace to a file first.")
        return [path]
    found = sorted(
        file for file in path.iterdir() if file.is_file() and {".json", ".jsonl"} & {*file.suffixes}
    )
    if not found:
        raise TraceError(f"The folder {path} holds no .json or .jsonl file. Give a trace.")
    return found


def _rows_of(path: Path, report: Callable[[int], None] | None) -> Iterator[tuple[str, bytes]]:
    """(place, row) of a file, blank lines left out."""
    with open_unpacked(path) as (content, file):
        begun = False
        unreported = 0
        for number, line in enumerate(_lines(path, content), 1):
            row = line.removeprefix(_BOM) if number == 1 else line
            unreported += len(line)
            if report is not None and unreported >= _REPORT_BYTES:
                report(_position(file))
                unreported = 0
            bare = row.strip()
            if not bare:
                continue
            if not begun and (bare == b"{" or bare.startswith(b"[")):
                yield from _document(path, row, content)
                break
            begun = True
            yield f"line {number}", bare
        if report is not None:
            report(_position(file))


def _lines(path: Path, content: io.BufferedReader) -> Iterator[bytes]:
    while line := content.readline(_MAX_ROW + 1):
        if len(line) > _MAX_ROW:
            raise TraceError(
                f"{path} has a line of more than {_MAX_ROW:,} bytes. Write one request, or session, a line."
            )
        yield line


def _document(path: Path, start: bytes, content: io.BufferedReader) -> Iterator[tuple[str, bytes]]:
    """The rows of a file that is one JSON document."""
    data = start + content.read(_MAX_DOCUMENT)
    if content.read(1):
        raise TraceError(
            f"{path} is one JSON document of more than {_MAX_DOCUMENT:,} bytes. Write one row a line (JSONL)."
        )
    if not data.lstrip().startswith(b"["):
        yield "line 1", data
        return
    try:
        items = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(
            f"{path} begins as a JSON list and is none ({error}). Copy it again, or write one row a line."
        ) from None
    for number, item in enumerate(items, 1):
        yield f"item {number}", bytes(item)


def _position(file: BinaryIO) -> int:
    return file.tell()

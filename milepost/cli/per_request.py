"""The file of ``--per-request``: one JSON object a line for each request of each point, points in order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from milepost.sim.runs import RequestOutcome, RunSpec
from milepost.sim.sweep.grid import point_name
from milepost.sim.whole_files import replacing

__all__ = ["PerRequestFile"]


class PerRequestFile:
    """Written as points come in; an older file stays until all are there.

    Args:
        path: where; None writes nothing.
        specs: the points, by index.

    Raises:
        OSError: it can't be written.
    """

    def __init__(self, path: Path | None, specs: Sequence[RunSpec]) -> None:
        self._path = path
        self._specs = specs
        self._early: dict[int, bytes] = {}
        self._next = 0
        self._whole: AbstractContextManager[BinaryIO] | None = None
        self._file: BinaryIO | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is a file at all."""
        return self._path is not None

    def __enter__(self) -> Self:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._whole = replacing(self._path)
            self._file = self._whole.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._whole is not None:
            self._whole.__exit__(kind, error, trace)

    def add(self, index: int, outcomes: Sequence[RequestOutcome]) -> None:
        """The requests of a point; points may come in any order."""
        point = {"point": index, "name": point_name(self._specs[index])}
        lines = [msgspec.json.encode(point | msgspec.to_builtins(outcome)) for outcome in outcomes]
        self._early[index] = b"".join(line + b"\n" for line in lines)
        while self._file is not None and self._next in self._early:
            self._file.write(self._early.pop(self._next))
            self._next += 1

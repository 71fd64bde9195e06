"""Where a `WeightReader` gets tensors from: a spec, a checkpoint's headers, or its data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from milepost.error_text import listing
from milepost.errors import CheckpointError
from milepost.models.shards import DTYPES, STAGING_BYTES, Checkpoint, TensorEntry
from milepost.models.weights import PACKED_SUFFIX, Consume, Progress

__all__ = ["CheckpointData", "HeaderCheck", "Sizes", "SpecListing", "TensorSpec"]

FLOATS: Final = ("F64", "F32", "F16", "BF16")
_ROWS_TOGETHER: Final = 32  # kernels read outputs in panels of so many; whole panels are written fastest


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that a model must have; `packed` says that an element is a byte of MXFP4 data."""

    name: str
    shape: tuple[int, ...]
    packed: bool

    @property
    def num_elements(self) -> int:
        """Elements as stored."""
        return math.prod(self.shape)


class SpecListing:
    """Records the tensors that a model of some spec has.

    Args:
        packed: whether expert weights are MXFP4.
    """

    def __init__(self, *, packed: bool) -> None:
        self.device = torch.device("meta")
        self.names_count = True
        self.tensors: list[TensorSpec] = []
        self._packed = packed

    def has(self, name: str) -> bool:
        """Only packed experts exist in more than one spelling that a spec decides."""
        return self._packed and name.endswith(PACKED_SUFFIX)

    def stored_dtype(self, name: str) -> torch.dtype:  # noqa: ARG002
        """What both families publish their matrices in."""
        return torch.bfloat16

    def fill(self, target: Tensor, name: str, shape: tuple[int, ...], *, cut: bool) -> None:  # noqa: ARG002
        """Record a tensor."""
        self.tensors.append(TensorSpec(name, shape, packed=False))

    def feed(self, consume: Consume, name: str, shape: tuple[int, int], *, packed: bool) -> None:  # noqa: ARG002
        """Record a matrix."""
        self.tensors.append(TensorSpec(name, shape, packed=packed))


class Sizes:
    """Answers with tensors that take no memory, and checks nothing.

    Args:
        checkpoint: whose headers say how tensors are stored; None for a published one, whose matrices are
            bfloat16.
        packed: whether expert weights are MXFP4, without a checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint | None, *, packed: bool) -> None:
        self.device = torch.device("meta")
        self.names_count = False
        self._checkpoint = checkpoint
        self._packed = packed

    def has(self, name: str) -> bool:
        """Whether a tensor of this name exists, or is to be expected."""
        if self._checkpoint is None:
            return self._packed and name.endswith(PACKED_SUFFIX)
        return name in self._checkpoint.entries

    def stored_dtype(self, name: str) -> torch.dtype:
        """How a tensor is stored; one that isn't there is taken for bfloat16."""
        entry = None if self._checkpoint is None else self._checkpoint.entries.get(name)
        return torch.bfloat16 if entry is None else DTYPES[entry.dtype]

    def fill(self, target: Tensor, name: str, shape: tuple[int, ...], *, cut: bool) -> None:
        """Nothing to do."""

    def feed(self, consume: Consume, name: str, shape: tuple[int, int], *, packed: bool) -> None:
        """Nothing to do."""


class HeaderCheck:
    """Compares what layers ask for with a checkpoint's headers; reads no data."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.device = torch.device("meta")
        self.names_count = True
        self.used: dict[str, TensorEntry] = {}
        self._checkpoint = checkpoint
        self._missing: list[str] = []
        self._misshapen: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this tensor."""
        return name in self._checkpoint.entries

    def stored_dtype(self, name: str) -> torch.dtype:
        """How a tensor is stored; float32 for one that isn't there, which is noted elsewhere."""
        entry = self._checkpoint.entries.get(name)
        return torch.float32 if entry is None else DTYPES[entry.dtype]

    def fill(self, target: Tensor, name: str, shape: tuple[int, ...], *, cut: bool) -> None:  # noqa: ARG002
        """Note a tensor as used, and what is wrong with it."""
        self._note(name, shape, FLOATS, cut=cut)

    def feed(self, consume: Consume, name: str, shape: tuple[int, int], *, packed: bool) -> None:  # noqa: ARG002
        """Note a matrix as used, and what is wrong with it."""
        self._note(name, shape, ("U8",) if packed else FLOATS, cut=False)

    def _note(self, name: str, shape: tuple[int, ...], allowed: tuple[str, ...], *, cut: bool) -> None:
        entry = self._checkpoint.entries.get(name)
        if entry is None:
            self._missing.append(f"missing: {name} {list(shape)}")
            return
        self.used[name] = entry
        if not _fits(entry.shape, shape, cut=cut) or entry.dtype not in allowed:
            wanted = f"{'at least ' if cut else ''}{list(shape)} in {' or '.join(allowed)}"
            self._misshapen.append(
                f"misshapen: {name} must be {wanted}, is {list(entry.shape)} in {entry.dtype}"
            )

    def finish(self, *, ignored: tuple[str, ...]) -> None:
        """Report everything at once; tensors whose names start with one of `ignored` may be left over.

        Raises:
            CheckpointError: tensors are missing, misshapen or unexpected: the first 20 and a count.
        """
        unexpected = [
            f"unexpected: {name} {list(entry.shape)}"
            for name, entry in self._checkpoint.entries.items()
            if name not in self.used and not name.startswith(ignored)
        ]
        problems = self._missing + self._misshapen + unexpected
        if problems:
            raise CheckpointError(
                f"The tensors of {self._checkpoint.folder} are not those that its config.json describes: "
                f"{len(self._missing)} missing, {len(self._misshapen)} misshapen, "
                f"{len(unexpected)} unexpected.{listing(problems)}"
            )


class CheckpointData:
    """Copies a checkpoint's data; the headers must have passed `HeaderCheck` with the same layers.

    Args:
        checkpoint: an open checkpoint.
        total: bytes that will be read, for `progress`.
        progress: told about every few MB.
    """

    def __init__(self, checkpoint: Checkpoint, total: int, progress: Progress | None) -> None:
        self.device = torch.device("cpu")
        self.names_count = True
        self._checkpoint = checkpoint
        self._total = total
        self._done = 0
        self._progress = progress

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this tensor."""
        return name in self._checkpoint.entries

    def stored_dtype(self, name: str) -> torch.dtype:
        """How a tensor is stored."""
        return DTYPES[self._checkpoint.entries[name].dtype]

    def feed(self, consume: Consume, name: str, shape: tuple[int, int], *, packed: bool) -> None:  # noqa: ARG002
        """Read a matrix's rows."""
        entry = self._checkpoint.entries[name]
        rows, inputs = shape
        row_bytes = entry.num_bytes // rows
        at_once = max(1, STAGING_BYTES // row_bytes // _ROWS_TOGETHER * _ROWS_TOGETHER)
        for first in range(0, rows, at_once):
            count = min(at_once, rows - first)
            chunk = self._checkpoint.read(entry, first * row_bytes, count * row_bytes)
            consume(first, chunk.view(count, inputs))
            self._read(chunk.nbytes)

    def fill(self, target: Tensor, name: str, shape: tuple[int, ...], *, cut: bool) -> None:  # noqa: ARG002
        """Copy a tensor's data."""
        entry = self._checkpoint.entries[name]
        if cut and entry.num_elements > target.numel():
            whole = torch.empty(entry.num_elements, dtype=target.dtype)
            self._checkpoint.copy(entry, whole, self._read)
            target.copy_(whole[: target.numel()])
        else:
            self._checkpoint.copy(entry, target, self._read)

    def _read(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _fits(stored: tuple[int, ...], wanted: tuple[int, ...], *, cut: bool) -> bool:
    if not cut:
        return stored == wanted
    return len([extent for extent in stored if extent != 1]) <= 1 and math.prod(stored) >= wanted[0]

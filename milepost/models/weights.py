"""How layers get their weights: they ask a `WeightReader` by name and shape, and never touch a file.

A layer's constructor is the one place that says which tensors it has. Three sources answer it:

- `SpecListing`: no checkpoint at all; records what a spec promises (for `inspect` and for tests);
- `HeaderCheck`: a checkpoint's headers; notes everything that is missing, misshapen or left over;
- `CheckpointData`: a checkpoint's data, copied once into the final tensors.

The first two answer with tensors on torch's ``meta`` device, which have shapes and no memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from milepost.error_text import listing
from milepost.errors import CheckpointError
from milepost.kernels.matrix import DenseMatrix, Matrix, Mxfp4Matrix
from milepost.kernels.mxfp4 import GROUP
from milepost.kernels.precision import compute_dtype
from milepost.models.shards import Checkpoint, TensorEntry

__all__ = [
    "CheckpointData",
    "HeaderCheck",
    "Progress",
    "SpecListing",
    "TensorSpec",
    "WeightReader",
    "WeightSource",
]

Progress = Callable[[int, int], None]
"""Called while weights load with (bytes read, bytes to read)."""

FLOATS: Final = ("F64", "F32", "F16", "BF16")
PACKED: Final = "_packed"
SCALE: Final = "_scale"
PACKED_SUFFIX: Final = f".weight{PACKED}"


class WeightSource(Protocol):
    """Where a `WeightReader` gets tensors from."""

    @property
    def device(self) -> torch.device:
        """Where tensors are made."""
        ...

    def has(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        ...

    def fill(self, target: Tensor, name: str, shape: tuple[int, ...], *, cut: bool) -> None:
        """Bring a tensor's elements, in order, into the contiguous `target`.

        ``shape`` is the shape it must be stored in. ``cut`` accepts a longer vector, and dimensions
        of size 1 around it, and uses its first elements.
        """
        ...


class WeightReader:
    """Makes a layer's tensors, under a name prefix.

    Args:
        source: what fills them.
        dtype: the model's dtype.
        prefix: what the names asked for are appended to.
        pack: brings a matrix into the order that the kernels read; the matrix as it is when None.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        prefix: str = "",
        pack: Callable[[Matrix], Matrix] | None = None,
    ) -> None:
        self.dtype = dtype
        self.wide = compute_dtype(dtype)  # for weights whose maths is never done below float32
        self._source = source
        self._prefix = prefix
        self._pack = pack
        self._made: list[int] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors made so far, by this reader and its scopes."""
        return sum(self._made)

    def scope(self, prefix: str) -> WeightReader:
        """A reader of the names that start with `prefix`."""
        scope = WeightReader(self._source, self.dtype, self._prefix + prefix, self._pack)
        scope._made = self._made
        return scope

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this tensor."""
        return self._source.has(self._prefix + name)

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """One tensor as it is stored, converted to `dtype` (the model's when None)."""
        target = self._empty(shape, dtype)
        self._source.fill(target, self._prefix + name, shape, cut=False)
        return self._count(target)

    def vector(self, name: str, size: int) -> Tensor:
        """The first `size` elements of a vector that may be longer or wrapped in dimensions of 1, wide."""
        target = self._empty((size,), self.wide)
        self._source.fill(target, self._prefix + name, (size,), cut=True)
        return self._count(target)

    def matrix(self, name: str, out: int, inputs: int, *, dtype: torch.dtype | None = None) -> Matrix:
        """One weight matrix, as the kernels read it."""
        return self.fused({name: out}, inputs, dtype=dtype)

    def fused(self, parts: Mapping[str, int], inputs: int, *, dtype: torch.dtype | None = None) -> Matrix:
        """Several matrices [outputs of the part, inputs] as one, in order.

        Projections of the same input fused this way are one product.
        """
        target = self._empty((sum(parts.values()), inputs), dtype)
        self._fill_rows(target, parts, inputs)
        return self._packed(DenseMatrix(target))

    def batch(self, names: Sequence[str], out: int, inputs: int) -> Matrix:
        """Matrices of one shape, such as experts; packed ones (MXFP4) if the checkpoint holds those.

        Their presence decides, not config.json's ignore list: that one names fewer modules than are
        left unpacked.
        """
        if not self.has(f"{names[0]}{PACKED}"):
            return self._packed(DenseMatrix(self._stack(names, (out, inputs), self.dtype)))
        packed = self._stack([f"{name}{PACKED}" for name in names], (out, inputs // 2), torch.uint8)
        scale = self._stack([f"{name}{SCALE}" for name in names], (out, inputs // GROUP), torch.uint8)
        return self._packed(Mxfp4Matrix(packed, scale))

    def rows(self, parts: Mapping[str, int], *inner: int, dtype: torch.dtype | None = None) -> Tensor:
        """Several tensors [rows of the part, *inner] as one, in order: [all rows, *inner]."""
        target = self._empty((sum(parts.values()), *inner), dtype)
        self._fill_rows(target, parts, *inner)
        return self._count(target)

    def _fill_rows(self, target: Tensor, parts: Mapping[str, int], *inner: int) -> None:
        begin = 0
        for name, count in parts.items():
            self._source.fill(target[begin : begin + count], self._prefix + name, (count, *inner), cut=False)
            begin += count

    def _stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        target = self._empty((len(names), *shape), dtype)
        for slot, name in zip(target, names, strict=True):
            self._source.fill(slot, self._prefix + name, shape, cut=False)
        return target

    def _packed(self, matrix: Matrix) -> Matrix:
        packed = matrix if self._pack is None else self._pack(matrix)
        self._made.append(packed.num_bytes)
        return packed

    def _count(self, tensor: Tensor) -> Tensor:
        self._made.append(tensor.nbytes)
        return tensor

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self._source.device)


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
        self.tensors: list[TensorSpec] = []
        self._packed = packed

    def has(self, name: str) -> bool:
        """Only packed experts exist in more than one spelling that a spec decides."""
        return self._packed and name.endswith(PACKED_SUFFIX)

    def fill(self, target: Tensor, name: str, shape: tuple[int, ...], *, cut: bool) -> None:  # noqa: ARG002
        """Record a tensor."""
        self.tensors.append(TensorSpec(name, shape, packed=not target.is_floating_point()))


class HeaderCheck:
    """Compares what layers ask for with a checkpoint's headers; reads no data."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.device = torch.device("meta")
        self.used: dict[str, TensorEntry] = {}
        self._checkpoint = checkpoint
        self._missing: list[str] = []
        self._misshapen: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this tensor."""
        return name in self._checkpoint.entries

    def fill(self, target: Tensor, name: str, shape: tuple[int, ...], *, cut: bool) -> None:
        """Note a tensor as used, and what is wrong with it."""
        entry = self._checkpoint.entries.get(name)
        if entry is None:
            self._missing.append(f"missing: {name} {list(shape)}")
            return
        self.used[name] = entry
        allowed = FLOATS if target.is_floating_point() else ("U8",)
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
        self._checkpoint = checkpoint
        self._total = total
        self._done = 0
        self._progress = progress

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this tensor."""
        return name in self._checkpoint.entries

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

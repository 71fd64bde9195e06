"""Weight matrices in the formats that they are stored in: the operands of `linear` and of the experts.

Every format is a matrix [out, in] or a batch of equal ones [batch, out, in] (experts, or heads), and says
what it is worth in floating point. Kernels may hold them in an order of their own
(`milepost.kernels.native.packed`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels import mxfp4

__all__ = ["DenseMatrix", "Int8Matrix", "MakeWriter", "Matrix", "MatrixFormat", "MatrixWriter", "Mxfp4Matrix"]


class MatrixFormat(StrEnum):
    """How a matrix's numbers are stored."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    MXFP4 = "mxfp4"


class Matrix(Protocol):
    """A weight matrix, or a batch of them."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(batch, out, in); batch is 1 for a single matrix."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes in memory."""
        ...

    def dense(self, dtype: torch.dtype, item: int = 0) -> Tensor:
        """One matrix as floating-point numbers, [out, in]."""
        ...


class MatrixWriter(Protocol):
    """A matrix in the making: rows are written some at a time, in any order, each once.

    On the ``meta`` device nothing is written, and `finish` says what the matrix would take.
    """

    def write(self, item: int, first: int, rows: Tensor) -> bool:
        """Store rows [rows, in] of any float dtype as outputs ``first ..`` of one matrix of the batch.

        Returns:
            whether the format can hold them: NaN and infinities have no place in int8 and MXFP4.
        """
        ...

    def write_codes(self, item: int, first: int, rows: Tensor) -> None:
        """Store packed rows of MXFP4, [rows, in / 2] uint8; the format must be that."""
        ...

    def write_scales(self, item: int, first: int, rows: Tensor) -> None:
        """Store the scales of rows of MXFP4, [rows, in / 32] uint8."""
        ...

    def finish(self) -> Matrix:
        """The matrix, once all of its rows are written."""
        ...


class MakeWriter(Protocol):
    """Starts a matrix."""

    def __call__(
        self, form: MatrixFormat, shape: tuple[int, int, int], device: torch.device, /
    ) -> MatrixWriter:
        """Take the memory of a matrix of `shape`, (batch, out, in); of MXFP4 in must be a multiple of 32."""
        ...


@dataclass(frozen=True, eq=False)
class DenseMatrix:
    """Weights as they are: [(batch,) out, in], any float dtype."""

    weight: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """(batch, out, in)."""
        return _shape(self.weight)

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""
        return self.weight.nbytes

    def dense(self, dtype: torch.dtype, item: int = 0) -> Tensor:
        """One matrix, [out, in]."""
        return self.weight.view(self.shape)[item].to(dtype)


@dataclass(frozen=True, eq=False)
class Int8Matrix:
    """Symmetric integers with one scale an output: weight[o, i] = values[o, i] * scale[o].

    ``values`` is [(batch,) out, in] int8, ``scale`` [(batch,) out] float32.
    """

    values: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        if self.values.dtype != torch.int8 or self.scale.shape != self.values.shape[:-1]:
            raise InvariantError(
                "int8: values [.., out, in] must be int8 and scale [.., out]. "
                f"Given: {list(self.values.shape)} in {self.values.dtype} and {list(self.scale.shape)}."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(batch, out, in)."""
        return _shape(self.values)

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""
        return self.values.nbytes + self.scale.nbytes

    def dense(self, dtype: torch.dtype, item: int = 0) -> Tensor:
        """One matrix, [out, in]."""
        batch, out, inputs = self.shape
        values = self.values.view(batch, out, inputs)[item].to(dtype)
        return values * self.scale.view(batch, out, 1)[item].to(dtype)


@dataclass(frozen=True, eq=False)
class Mxfp4Matrix:
    """Packed weights (`milepost.kernels.mxfp4`).

    ``packed`` is [(batch,) out, in / 2] uint8, ``scale`` [(batch,) out, in / 32] uint8.
    """

    packed: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        mxfp4.check(self.packed, self.scale)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(batch, out, in)."""
        batch, out, half = _shape(self.packed)
        return batch, out, half * 2

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""
        return self.packed.nbytes + self.scale.nbytes

    def dense(self, dtype: torch.dtype, item: int = 0) -> Tensor:
        """One matrix, [out, in], unpacked."""
        batch, out, inputs = self.shape
        packed, scale = self.packed.view(batch, out, -1), self.scale.view(batch, out, -1)
        return mxfp4.dequantize(packed[item], scale[item], dtype).view(out, inputs)


def _shape(tensor: Tensor) -> tuple[int, int, int]:
    if not 2 <= tensor.ndim <= 3:
        raise InvariantError(f"A matrix must be [out, in] or [batch, out, in]. Given: {list(tensor.shape)}.")
    *batch, out, inputs = tensor.shape
    return math.prod(batch), out, inputs

"""Matrices in plain order, [batch, out, in], written while their checkpoint is read."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.matrix import DenseMatrix, Int8Matrix, Matrix, MatrixFormat, Mxfp4Matrix
from milepost.kernels.mxfp4 import GROUP
from milepost.models.int8 import quantize_int8
from milepost.models.mxfp4 import quantize_mxfp4

__all__ = ["PlainWriter"]

_DENSE = {
    MatrixFormat.FLOAT64: torch.float64,
    MatrixFormat.FLOAT32: torch.float32,
    MatrixFormat.BFLOAT16: torch.bfloat16,
}


class PlainWriter:
    """A matrix in the making; see `milepost.kernels.matrix.MatrixWriter`.

    Args:
        form: how its numbers are stored.
        shape: (batch, out, in).
        device: the CPU, or ``meta`` to learn what it would take.
    """

    def __init__(self, form: MatrixFormat, shape: tuple[int, int, int], device: torch.device) -> None:
        batch, outputs, inputs = shape
        self._form = form
        if form is MatrixFormat.INT8:
            self._data = torch.empty(shape, dtype=torch.int8, device=device)
            self._scale = torch.empty(batch, outputs, device=device)
        elif form is MatrixFormat.MXFP4:
            self._data = torch.empty(batch, outputs, inputs // 2, dtype=torch.uint8, device=device)
            self._scale = torch.empty(batch, outputs, inputs // GROUP, dtype=torch.uint8, device=device)
        else:
            self._data = torch.empty(shape, dtype=_DENSE[form], device=device)

    def write(self, item: int, first: int, rows: Tensor) -> bool:
        """Store rows; False when the format can't hold them."""
        where = slice(first, first + len(rows))
        if self._form in _DENSE:
            self._data[item, where] = rows
            return True
        rows = rows.float()
        if not bool(torch.isfinite(rows).all()):
            return False
        quantize = quantize_int8 if self._form is MatrixFormat.INT8 else quantize_mxfp4
        self._data[item, where], self._scale[item, where] = quantize(rows)
        return True

    def write_codes(self, item: int, first: int, rows: Tensor) -> None:
        """Store packed rows of MXFP4."""
        self._data[item, first : first + len(rows)] = rows

    def write_scales(self, item: int, first: int, rows: Tensor) -> None:
        """Store the scales of rows of MXFP4."""
        self._scale[item, first : first + len(rows)] = rows

    def finish(self) -> Matrix:
        """The matrix, once all of its rows are written."""
        if self._form is MatrixFormat.INT8:
            return Int8Matrix(self._data, self._scale)
        if self._form is MatrixFormat.MXFP4:
            return Mxfp4Matrix(self._data, self._scale)
        return DenseMatrix(self._data)

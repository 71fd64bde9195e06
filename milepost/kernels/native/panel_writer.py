"""Matrices written into panels while their checkpoint is read, some rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.matrix import MatrixFormat
from milepost.kernels.mxfp4 import GROUP
from milepost.kernels.native import native
from milepost.kernels.native.packed import PackedMatrix, packed_matrix
from milepost.kernels.native.weight_memory import weight_memory

__all__ = ["PanelWriter"]

_DATA = {
    MatrixFormat.FLOAT32: ("f32", torch.float32),
    MatrixFormat.BFLOAT16: ("bf16", torch.bfloat16),
    MatrixFormat.INT8: ("int8", torch.int8),
    MatrixFormat.MXFP4: ("mxfp4", torch.uint8),
}
_FLOATS = {torch.float32: native.Float.f32, torch.bfloat16: native.Float.bf16}


class PanelWriter:
    """A `PackedMatrix` in the making; see `milepost.kernels.matrix.MatrixWriter`.

    Args:
        form: how its numbers are stored; all but float64.
        shape: (batch, out, in).
        device: the CPU, or ``meta`` to learn what it would take.
    """

    def __init__(self, form: MatrixFormat, shape: tuple[int, int, int], device: torch.device) -> None:
        name, dtype = _DATA[form]
        batch, outputs, inputs = shape
        panels = -(-outputs // native.PANEL)
        packed = form is MatrixFormat.MXFP4
        inner = (inputs // GROUP, native.GROUP_BYTES) if packed else (inputs, native.PANEL)
        data = weight_memory(batch, panels, *inner, dtype=dtype, device=device)
        scales = None
        if form is MatrixFormat.INT8:
            scales = torch.empty(batch, panels, native.PANEL, device=device)
        if outputs % native.PANEL:  # the lanes beyond the last output are never written
            data[:, -1] = 0
            if scales is not None:
                scales[:, -1] = 0
        self._matrix = packed_matrix(name, shape, data, scales)

    def write(self, item: int, first: int, rows: Tensor) -> bool:
        """Store rows; False when the format can't hold them."""
        if rows.dtype not in _FLOATS:
            rows = rows.float()
        rows = rows.contiguous()
        return native.pack_rows(
            self._matrix.handle, item, first, len(rows), _FLOATS[rows.dtype], rows.data_ptr()
        )

    def write_codes(self, item: int, first: int, rows: Tensor) -> None:
        """Store packed rows of MXFP4."""
        native.pack_codes(self._matrix.handle, item, first, len(rows), rows.contiguous().data_ptr())

    def write_scales(self, item: int, first: int, rows: Tensor) -> None:
        """Store the scales of rows of MXFP4."""
        native.pack_scales(self._matrix.handle, item, first, len(rows), rows.contiguous().data_ptr())

    def finish(self) -> PackedMatrix:
        """The matrix, once all of its rows are written."""
        return self._matrix

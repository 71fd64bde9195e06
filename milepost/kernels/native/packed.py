"""Weight matrices in the order in which the compiled kernels read them; `src/matrix.h` draws it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.matrix import DenseMatrix, Int8Matrix, Matrix, Mxfp4Matrix
from milepost.kernels.mxfp4 import CODE_VALUES, GROUP, scale_values
from milepost.kernels.native import native

__all__ = ["PackedMatrix", "pack", "packed_matrix"]


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A batch of matrices in panels of 32 outputs.

    Attributes:
        format: "f32", "bf16", "int8" or "mxfp4".
        shape: (batch, out, in).
        data: the panels; what lies in them is `src/matrix.h`'s affair.
        scales: of int8, [batch, panels, 32] float32.
        handle: the same as the kernels see it. It holds addresses: keep this object as long as it is used.
    """

    format: str
    shape: tuple[int, int, int]
    data: Tensor
    scales: Tensor | None
    handle: native.Matrix

    @property
    def num_bytes(self) -> int:
        """Bytes in memory, the panels' padding included."""
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def dense(self, dtype: torch.dtype, item: int = 0) -> Tensor:
        """One matrix, [out, in], unpacked."""
        _, out, _ = self.shape
        data = self.data[item]  # [panels, in, 32] or [panels, groups, 544]
        values = _unpack_mxfp4(data, dtype) if self.format == "mxfp4" else data.to(dtype)
        if self.scales is not None:
            values = values * self.scales[item][:, None, :].to(dtype)
        return values.transpose(1, 2).flatten(0, 1)[:out]


def pack(matrix: Matrix) -> PackedMatrix:
    """Bring a matrix into the kernels' order; its own tensors may be dropped then.

    Raises:
        InvariantError: a format that the kernels don't read: float16 and float64 weights.
    """
    if isinstance(matrix, PackedMatrix):
        return matrix
    if isinstance(matrix, DenseMatrix):
        formats = {torch.float32: "f32", torch.bfloat16: "bf16"}
        if matrix.weight.dtype not in formats:
            raise InvariantError(f"Kernels read float32 and bfloat16. Given: {matrix.weight.dtype}.")
        panels = _panels(matrix.weight.view(matrix.shape))
        return packed_matrix(formats[matrix.weight.dtype], matrix.shape, panels)
    if isinstance(matrix, Int8Matrix):
        batch, out, _ = matrix.shape
        scales = _panels(matrix.scale.float().view(batch, out, 1)).squeeze(2)
        return packed_matrix("int8", matrix.shape, _panels(matrix.values.view(matrix.shape)), scales)
    if isinstance(matrix, Mxfp4Matrix):
        return packed_matrix("mxfp4", matrix.shape, _pack_mxfp4(matrix))
    raise InvariantError(f"No kernel reads a {type(matrix).__name__}.")


def packed_matrix(
    name: str, shape: tuple[int, int, int], data: Tensor, scales: Tensor | None = None
) -> PackedMatrix:
    """A matrix of panels that are there; see `PackedMatrix`."""
    address = 0 if scales is None else scales.data_ptr()
    handle = native.Matrix(getattr(native.Format, name), *shape, data.data_ptr(), address)
    return PackedMatrix(name, shape, data, scales, handle)


def _panels(weight: Tensor) -> Tensor:
    """[batch, out, in] -> [batch, panels, in, 32], zeros beyond the last output."""
    batch, out, inputs = weight.shape
    panels = -(-out // native.PANEL)
    padded = weight.new_zeros(batch, panels * native.PANEL, inputs)
    padded[:, :out] = weight
    return padded.view(batch, panels, native.PANEL, inputs).transpose(2, 3).contiguous()


def _pack_mxfp4(matrix: Mxfp4Matrix) -> Tensor:
    """Groups of 32 inputs: [batch, panels, in / 32, 544] uint8."""
    batch, out, inputs = matrix.shape
    groups, half = inputs // GROUP, native.PANEL // 2
    words = _panels(matrix.packed.view(torch.int16).view(batch, out, inputs // 4))  # of four codes each
    words = words.view(*words.shape[:3], 2, half).transpose(3, 4)  # [batch, panels, in / 4, 16, 2]
    codes = words.contiguous().view(torch.uint8).view(*words.shape[:2], groups, GROUP * half)
    scales = _panels(matrix.scale.view(batch, out, groups))  # [batch, panels, groups, 32]
    return torch.cat([scales, codes], dim=-1).contiguous()


def _unpack_mxfp4(data: Tensor, dtype: torch.dtype) -> Tensor:
    """[panels, groups, 544] -> [panels, in, 32]."""
    panels, groups, _ = data.shape
    scales, codes = data[..., : native.PANEL], data[..., native.PANEL :]
    # [four inputs, output, half, byte of two codes]
    words = codes.reshape(panels, groups, GROUP // 4, native.PANEL // 2, 2, 2)
    nibbles = torch.stack([words & 0xF, words >> 4], dim=-1).flatten(5)  # [..., 16, 2, 4]
    nibbles = nibbles.permute(0, 1, 2, 5, 4, 3).reshape(panels, groups, GROUP, native.PANEL)
    values = torch.tensor(CODE_VALUES, dtype=dtype)[nibbles.long()]
    factors = scale_values(dtype)[scales.long()]
    return (values * factors[:, :, None, :]).flatten(1, 2)

"""How layers get their weights: they ask a `WeightReader` by name and shape, and never touch a file.

A layer's constructor is the one place that says which tensors it has. Four sources answer it
(`milepost.models.weight_sources`):

- `SpecListing`: no checkpoint at all; records what a spec promises (for `inspect` and for tests);
- `Sizes`: a spec, or a checkpoint's headers, asked for nothing but what a model would take;
- `HeaderCheck`: a checkpoint's headers; notes everything that is missing, misshapen or left over;
- `CheckpointData`: a checkpoint's data, copied once into the final tensors.

The first three answer with tensors on torch's ``meta`` device, which have shapes and no memory.

Matrices have a format of their own (`milepost.kernels.matrix.MatrixFormat`), which `WeightReader.matrix` and
its kin choose; everything else (norms, biases, convolutions, decay rates) is never stored below float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import torch
from torch import Tensor

from milepost.errors import CheckpointError, ConfigError
from milepost.kernels.matrix import MakeWriter, Matrix, MatrixFormat, MatrixWriter
from milepost.kernels.mxfp4 import GROUP
from milepost.kernels.precision import compute_dtype
from milepost.models.plain_writer import PlainWriter

__all__ = ["PACKED_SUFFIX", "Consume", "Progress", "WeightReader", "WeightSource"]

Progress = Callable[[int, int], None]
"""Called while weights load with (bytes read, bytes to read)."""

Consume = Callable[[int, Tensor], None]
"""Called with a matrix's rows, some at a time: (number of the first, [rows, in] as stored)."""

PACKED: Final = "_packed"
SCALE: Final = "_scale"
PACKED_SUFFIX: Final = f".weight{PACKED}"

# What is stored in bfloat16 beside matrices of integers: tables, and with MXFP4 all that is no expert.
_FLOAT_BESIDE: Final = {
    MatrixFormat.INT8: MatrixFormat.BFLOAT16,
    MatrixFormat.MXFP4: MatrixFormat.BFLOAT16,
}


class WeightSource(Protocol):
    """Where a `WeightReader` gets tensors from."""

    @property
    def device(self) -> torch.device:
        """Where tensors are made."""
        ...

    @property
    def names_count(self) -> bool:
        """Whether it matters which tensors are asked for; a batch of many is not gone through otherwise."""
        ...

    def has(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        ...

    def stored_dtype(self, name: str) -> torch.dtype:
        """How a tensor of floating-point numbers is stored."""
        ...

    def fill(self, target: Tensor, name: str, shape: tuple[int, ...], *, cut: bool) -> None:
        """Bring a tensor's elements, in order, into the contiguous `target`.

        ``shape`` is the shape it must be stored in. ``cut`` accepts a longer vector, and dimensions
        of size 1 around it, and uses its first elements.
        """
        ...

    def feed(self, consume: Consume, name: str, shape: tuple[int, int], *, packed: bool) -> None:
        """Hand a matrix's rows on, a few MB at a time; what is handed on is overwritten afterwards.

        ``packed`` says that an element is a byte of MXFP4 data. Sources without data hand on nothing.
        """
        ...


class WeightReader:
    """Makes a layer's tensors, under a name prefix.

    Args:
        source: what fills them.
        dtype: of activations. The weights of a float64 model are float64 unless `weights` says otherwise.
        prefix: what the names asked for are appended to.
        weights: the format of matrices; None keeps each as it is stored: bfloat16 stays that, all other
            floats become float32. Packed experts (MXFP4) stay packed whatever this says.
        writer: makes matrices in the order that the kernels read.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        prefix: str = "",
        *,
        weights: MatrixFormat | None = None,
        writer: MakeWriter = PlainWriter,
    ) -> None:
        self.dtype = dtype
        self.wide = compute_dtype(dtype)  # for weights whose maths is never done below float32
        self._source = source
        self._prefix = prefix
        self._weights = weights
        self._writer = writer
        self._made: list[int] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors made so far, by this reader and its scopes."""
        return sum(self._made)

    def scope(self, prefix: str) -> WeightReader:
        """A reader of the names that start with `prefix`."""
        scope = WeightReader(
            self._source, self.dtype, self._prefix + prefix, weights=self._weights, writer=self._writer
        )
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

    def table(self, name: str, rows: int, width: int) -> Tensor:
        """A matrix of which single rows are read, such as the embedding: [rows, width] in plain order.

        Float32 or bfloat16 as `weights` has it, bfloat16 beside matrices of integers; float64 in a
        float64 model.
        """
        form = self._format([name])
        return self.tensor(name, rows, width, dtype=getattr(torch, _FLOAT_BESIDE.get(form, form)))

    def matrix(self, name: str, out: int, inputs: int, *, dtype: torch.dtype | None = None) -> Matrix:
        """One weight matrix, as the kernels read it; in `dtype` whatever the format, where that is given."""
        return self.fused({name: out}, inputs, dtype=dtype)

    def fused(self, parts: Mapping[str, int], inputs: int, *, dtype: torch.dtype | None = None) -> Matrix:
        """Several matrices [outputs of the part, inputs] as one, in order.

        Projections of the same input fused this way are one product.
        """
        form = self._format(parts) if dtype is None else MatrixFormat(str(dtype).removeprefix("torch."))
        if form is MatrixFormat.MXFP4:
            form = _FLOAT_BESIDE[form]  # only experts are stored so
        writer = self._start(form, (1, sum(parts.values()), inputs))
        begin = 0
        for name, count in parts.items():
            self._write(writer, 0, begin, name, (count, inputs))
            begin += count
        return self._finish(writer)

    def batch(self, names: Sequence[str], out: int, inputs: int) -> Matrix:
        """Matrices of one shape, such as experts; packed ones (MXFP4) if the checkpoint holds those.

        Their presence decides, not config.json's ignore list: that one names fewer modules than are
        left unpacked.

        Raises:
            ConfigError: they are to be packed, and ``inputs`` is no multiple of 32.
        """
        shape = (len(names), out, inputs)
        if self.has(f"{names[0]}{PACKED}"):
            writer = self._start(MatrixFormat.MXFP4, shape)
            for item, name in self._enumerated(names):
                self._write_packed(writer, item, name, (out, inputs))
            return self._finish(writer)
        form = self._format(names)
        if form is MatrixFormat.MXFP4 and inputs % GROUP:
            raise ConfigError(
                f"weights mxfp4 packs groups of {GROUP} inputs, and this model's experts have {inputs} "
                f"({self._prefix}{names[0]}). Choose weights int8 or bfloat16."
            )
        writer = self._start(form, shape)
        for item, name in self._enumerated(names):
            self._write(writer, item, 0, name, (out, inputs))
        return self._finish(writer)

    def product(self, vector: str, row: str, size: int) -> Tensor:
        """A vector [size] times a matrix of one row [1, size], element by element, wide: [size]."""
        product, factor = self.tensor(vector, size, dtype=self.wide), self._empty((1, size), self.wide)
        self._source.fill(factor, self._prefix + row, (1, size), cut=False)
        if product.device.type != "meta":  # arithmetic on that device loads torch's compiler, a second's work
            product *= factor[0]
        return product

    def derived(
        self, name: str, shape: tuple[int, int], derive: Callable[[Tensor], Sequence[Tensor]]
    ) -> list[Matrix]:
        """Matrices made of one stored tensor, in whose place they are kept; in a format as of `table`.

        Args:
            name: of the tensor.
            shape: that it is stored in.
            derive: views of it, [batch, out, in] each.
        """
        form = self._format([name])
        form = _FLOAT_BESIDE.get(form, form)
        stored = self._empty(shape, getattr(torch, form))
        self._source.fill(stored, self._prefix + name, shape, cut=False)
        matrices = []
        for view in derive(stored):
            batch, out, inputs = view.shape
            writer = self._start(form, (batch, out, inputs))
            for item in range(batch) if view.device.type != "meta" else ():
                writer.write(item, 0, view[item])
            matrices.append(self._finish(writer))
        return matrices

    def rows(self, parts: Mapping[str, int], *inner: int, dtype: torch.dtype | None = None) -> Tensor:
        """Several tensors [rows of the part, *inner] as one, in order: [all rows, *inner]."""
        target = self._empty((sum(parts.values()), *inner), dtype)
        begin = 0
        for name, count in parts.items():
            self._source.fill(target[begin : begin + count], self._prefix + name, (count, *inner), cut=False)
            begin += count
        return self._count(target)

    def _format(self, names: Iterable[str]) -> MatrixFormat:
        """How a matrix made of these is stored."""
        if self._weights is not None:
            return self._weights
        if self.dtype == torch.float64:
            return MatrixFormat.FLOAT64
        stored = {self._source.stored_dtype(self._prefix + name) for name in names}
        return MatrixFormat.BFLOAT16 if stored == {torch.bfloat16} else MatrixFormat.FLOAT32

    def _enumerated(self, names: Sequence[str]) -> Iterable[tuple[int, str]]:
        return enumerate(names) if self._source.names_count else ()

    def _start(self, form: MatrixFormat, shape: tuple[int, int, int]) -> MatrixWriter:
        return self._writer(form, shape, self._source.device)

    def _write(self, writer: MatrixWriter, item: int, first: int, name: str, shape: tuple[int, int]) -> None:
        full = self._prefix + name

        def consume(row: int, rows: Tensor) -> None:
            if not writer.write(item, first + row, rows):
                raise CheckpointError(
                    f"{full} holds a NaN or an infinity, for which the format asked for has no place. "
                    "Check the checkpoint, or choose weights auto."
                )

        self._source.feed(consume, full, shape, packed=False)

    def _write_packed(self, writer: MatrixWriter, item: int, name: str, shape: tuple[int, int]) -> None:
        out, inputs = shape
        codes, scales = f"{self._prefix}{name}{PACKED}", f"{self._prefix}{name}{SCALE}"
        write_codes, write_scales = partial(writer.write_codes, item), partial(writer.write_scales, item)
        self._source.feed(write_codes, codes, (out, inputs // 2), packed=True)
        self._source.feed(write_scales, scales, (out, inputs // GROUP), packed=True)

    def _finish(self, writer: MatrixWriter) -> Matrix:
        matrix = writer.finish()
        self._made.append(matrix.num_bytes)
        return matrix

    def _count(self, tensor: Tensor) -> Tensor:
        self._made.append(tensor.nbytes)
        return tensor

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self._source.device)

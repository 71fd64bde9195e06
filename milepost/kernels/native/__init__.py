"""The compiled CPU kernels: whether they are there, their threads, and memory for what they write.

The extension is built when the package is installed (`setup.py`). Without a C++ compiler there is none,
and the engine runs the reference kernels.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from milepost.errors import ConfigError, InvariantError

_missing = ""
if TYPE_CHECKING:
    from milepost.kernels.native import _native as native
else:
    try:
        native = importlib.import_module("milepost.kernels.native._native")
    except ModuleNotFoundError:
        native, _missing = None, "the compiled ones are not built."
    except ImportError as error:
        native, _missing = None, f"the compiled ones can't be loaded ({error})."

__all__ = [
    "HOW_TO_BUILD",
    "address",
    "available",
    "contiguous_floats",
    "empty",
    "float_type",
    "floats",
    "native",
    "require_native",
    "row_address",
    "set_num_threads",
    "strided_heads",
    "use_workspace",
    "why_not_available",
]

_FLOATS = {torch.float32: "f32", torch.bfloat16: "bf16"}


def available() -> bool:
    """Whether the extension was built and can be loaded."""
    return isinstance(native, ModuleType)


HOW_TO_BUILD = (
    "Install a C++20 compiler, such as g++, then Milepost again, in its source folder: "
    "`pip install --force-reinstall --no-deps --no-cache-dir .`"
)
"""What to do where the extension is missing."""


def why_not_available() -> str:
    """Why the extension isn't there, as the end of a sentence; empty when it is."""
    return _missing


def require_native() -> None:
    """Check that the extension is there.

    Raises:
        ConfigError: it is not; says how to build it.
    """
    if not available():
        raise ConfigError(
            f"kernels cpu can't run: {why_not_available()} {HOW_TO_BUILD} Or choose kernels reference (slow)."
        )


def set_num_threads(threads: int) -> None:
    """Let kernels use so many threads, the caller's own included, and torch none of its own.

    Two pools on the same cores wait for one another. Torch does no work of size beside these kernels.
    """
    torch.set_num_threads(1)
    native.set_num_threads(threads)


class _Memory(threading.local):
    """Where a thread's `empty` takes memory from: torch's allocator, or the workspace of a recorded tape."""

    workspace: native.Workspace | None = None


_memory = _Memory()


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor for a kernel to write: all ops of this package make their results with it.

    Args:
        shape: of the tensor.
        dtype: of its elements.
    """
    workspace = _memory.workspace
    if workspace is None:
        return torch.empty(shape, dtype=dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(workspace.empty(num_bytes), dtype=dtype).view(shape)


def floats(op: str, name: str, tensor: Tensor) -> int:
    """Address of an operand that a kernel reads as float32, the last dimension contiguous.

    Raises:
        InvariantError: another dtype or memory order.
    """
    _check_float32(op, name, tensor)
    return row_address(op, name, tensor)


def contiguous_floats(op: str, name: str, tensor: Tensor) -> int:
    """Address of a contiguous float32 operand.

    Raises:
        InvariantError: another dtype or memory order.
    """
    _check_float32(op, name, tensor)
    return address(op, name, tensor)


def row_address(op: str, name: str, tensor: Tensor) -> int:
    """Address of an operand of any dtype, the last dimension contiguous.

    Raises:
        InvariantError: another memory order.
    """
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise InvariantError(
            f"{op}: {name} must have a contiguous last dimension. Given: strides {tensor.stride()}."
        )
    return tensor.data_ptr()


def address(op: str, name: str, tensor: Tensor) -> int:
    """Address of a contiguous operand of any dtype.

    Raises:
        InvariantError: another memory order.
    """
    if not tensor.is_contiguous():
        raise InvariantError(f"{op}: {name} must be contiguous. Given: strides {tensor.stride()}.")
    return tensor.data_ptr()


def _check_float32(op: str, name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.float32:
        raise InvariantError(f"{op}: {name} must be float32. Given: {tensor.dtype}.")


def float_type(op: str, name: str, tensor: Tensor) -> native.Float:
    """How the kernels call a tensor's dtype.

    Raises:
        InvariantError: neither float32 nor bfloat16.
    """
    known = _FLOATS.get(tensor.dtype)
    if known is None:
        raise InvariantError(f"{op}: {name} must be float32 or bfloat16. Given: {tensor.dtype}.")
    view: native.Float = getattr(native.Float, known)
    return view


def strided_heads(op: str, name: str, tensor: Tensor) -> tuple[int, int]:
    """Address of [tokens, heads, dim], each token's heads one after the other, and the tokens' stride.

    Raises:
        InvariantError: another dtype or memory order.
    """
    _, heads, dim = tensor.shape
    if heads > 1 and tensor.stride(1) != dim:
        raise InvariantError(
            f"{op}: {name}'s heads must follow one another. Given: shape {tuple(tensor.shape)}, "
            f"strides {tensor.stride()}."
        )
    return floats(op, name, tensor), tensor.stride(0)


@contextmanager
def use_workspace(workspace: native.Workspace) -> Iterator[None]:
    """Take what this thread's `empty` returns from a workspace, whose memory outlives the tensors."""
    before = _memory.workspace
    _memory.workspace = workspace
    try:
        yield
    finally:
        _memory.workspace = before

"""The compiled CPU kernels: whether they are there, their threads, and memory for what they write.

The extension is built when the package is installed (`setup.py`). Without a C++ compiler there is none,
and the engine runs the reference kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from milepost.errors import ConfigError, InvariantError

if TYPE_CHECKING:
    from milepost.kernels.native import _native as native
else:
    try:
        from milepost.kernels.native import _native as native
    except ImportError:
        native = None

__all__ = ["available", "empty", "floats", "native", "require_native", "set_num_threads", "use_workspace"]


def available() -> bool:
    """Whether the extension was built and can be loaded."""
    return isinstance(native, ModuleType)


def require_native() -> None:
    """Check that the extension is there.

    Raises:
        ConfigError: it is not; says how to build it.
    """
    if not available():
        raise ConfigError(
            "The CPU kernels are not built: they need a C++20 compiler when Milepost is installed. "
            "Install one (such as g++) and run pip install again, or choose --kernels reference (slow)."
        )


def set_num_threads(threads: int) -> None:
    """Let kernels use so many threads, the caller's own included, and torch none of its own.

    Two pools on the same cores wait for one another. Torch does no work of size beside these kernels.
    """
    torch.set_num_threads(1)
    native.set_num_threads(threads)


class _Memory:
    """Where `empty` takes memory from: torch's allocator, or a workspace while a tape is recorded."""

    def __init__(self) -> None:
        self.workspace: native.Workspace | None = None


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
    if tensor.dtype != torch.float32 or (tensor.stride(-1) != 1 and tensor.shape[-1] > 1):
        raise InvariantError(
            f"{op}: {name} must be float32 with a contiguous last dimension. "
            f"Given: {tensor.dtype}, strides {tensor.stride()}."
        )
    return tensor.data_ptr()


@contextmanager
def use_workspace(workspace: native.Workspace) -> Iterator[None]:
    """Take what `empty` returns from a workspace, whose memory outlives the tensors."""
    before = _memory.workspace
    _memory.workspace = workspace
    try:
        yield
    finally:
        _memory.workspace = before

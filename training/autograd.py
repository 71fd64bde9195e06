"""Types for ``torch.autograd.Function``, whose own are untyped."""

from typing import Any, Protocol

from torch import Tensor


class Context(Protocol):
    """What ``forward`` hands to ``backward``."""

    saved_tensors: tuple[Tensor, ...]
    constants: tuple[float, ...]

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors, which come back as ``saved_tensors``."""


def apply(function: Any, *args: object) -> Tensor:  # noqa: ANN401 - torch's metaclass has no usable type
    """Run a ``torch.autograd.Function`` of one result."""
    out: Tensor = function.apply(*args)
    return out

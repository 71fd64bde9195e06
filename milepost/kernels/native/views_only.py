"""Proof that a computation consists of native calls: torch may cut its tensors, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from milepost.errors import InvariantError

__all__ = ["ViewsOnly"]

# Asked of a tensor whose values are about to be read from Python, by tolist() and numpy().
_READS = ("aten.resolve_conj.default", "aten.resolve_neg.default")


class ViewsOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's classes are not annotated
    """While it is entered, in inference mode, this thread's torch does not compute, copy or read values.

    Native calls can be played again from a tape; what torch did between them would be missing then. So
    a tape is recorded under this guard: it is whole, or there is none.

    Raises:
        InvariantError: from the torch call that is refused.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch loads its compiler at the first call, to be told that there is nothing to compile:
        # more than a second, when the first tape is recorded.
        return False

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the op gives
        """Let views through, take ops that are made of others apart, refuse the rest."""
        name, named = str(func), dict(kwargs or {})
        if name in _READS:
            raise _refused(name)
        with self:
            parts = func.decompose(*args, **named)
        if parts is not NotImplemented:
            return parts
        takes_no_memory = name == "aten.empty.memory_format" and 0 in args[0]
        if func.is_view or takes_no_memory:
            return func(*args, **named)
        raise _refused(name)


def _refused(name: str) -> InvariantError:
    return InvariantError(
        f"Only native kernels may compute here, so that a tape can play it again. Given: {name}."
    )

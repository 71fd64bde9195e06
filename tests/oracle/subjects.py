"""What the oracles judge: callables that turn a checkpoint folder and token ids into logits.

Each takes ``(folder, token_ids)`` and gives [tokens, vocab], row t being about what follows token t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from milepost.testing.reference_model import ReferenceModel

Logits = Callable[[Path, Sequence[int]], torch.Tensor]


def reference_logits(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """The float64 reference."""
    return ReferenceModel.load(folder).logits(token_ids)


def engine_logits(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """The engine, cold and alone. To be wired to its model runner."""
    pytest.skip("the engine has no entry that gives the logits of every position yet")


SUBJECTS: dict[str, Logits] = {"reference": reference_logits, "engine": engine_logits}


def relative_error(given: torch.Tensor, truth: torch.Tensor) -> float:
    """Largest difference over the largest logit."""
    truth = truth.double()
    return float((given.double() - truth).abs().max() / truth.abs().max())

"""What the oracles judge: callables that turn a checkpoint folder and token ids into logits.

Each takes ``(folder, token_ids)`` and gives [tokens, vocab], row t being about what follows token t.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from milepost.kernels.ops import load_ops
from milepost.models import load_model
from milepost.testing.reference_model import ReferenceModel
from tests.models.paged_batches import PagedBatches

Logits = Callable[[Path, Sequence[int]], torch.Tensor]


def reference_logits(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """The float64 reference."""
    return ReferenceModel.load(folder).logits(token_ids)


def _engine_logits(kernels: str, folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """The engine's model in float32: paged, in chunks that end off every grid, and single tokens."""
    model = load_model(folder, dtype=torch.float32, ops=load_ops(kernels))
    batches = PagedBatches(model, [token_ids], block_size=16)
    return batches.run([{0: 37}, {0: 1}, {0: 1}, {0: 13}])[0]


SUBJECTS: dict[str, Logits] = {
    "reference": reference_logits,
    "engine": functools.partial(_engine_logits, "reference"),
    "engine_cpu": functools.partial(_engine_logits, "cpu"),
}


def relative_error(given: torch.Tensor, truth: torch.Tensor) -> float:
    """Largest difference over the largest logit."""
    truth = truth.double()
    return float((given.double() - truth).abs().max() / truth.abs().max())

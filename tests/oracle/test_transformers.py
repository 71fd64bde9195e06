"""Kimi-Linear against transformers, on the same files: the published layout loads there as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from milepost.testing.reference_model import Numerics, ReferenceModel
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.oracle.checkpoints import SMALL_LATENT, SMALL_QK, TOKENS, routing, scaled
from tests.oracle.peers import transformers_logits
from tests.oracle.subjects import Logits, relative_error

TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Different head counts of KDA and MLA; values that are stored in bfloat16 are exact in float32 too."""
    dtype = getattr(torch, request.param)
    return write_toy_checkpoint(tmp_path_factory.mktemp("toy") / request.param, "kimi_linear", 4, dtype=dtype)


@pytest.mark.parametrize("stepwise", [False, True], ids=["whole", "stepwise"])
def test_logits(subject: Logits, folder: Path, stepwise: bool) -> None:
    ours = subject(folder, TOKENS)
    assert relative_error(transformers_logits(folder, TOKENS, stepwise=stepwise), ours) < TOLERANCE


def test_no_choice_of_experts_hangs_on_rounding(folder: Path) -> None:
    _, gap = routing(folder, TOKENS)
    assert gap > 1e-4


@pytest.mark.parametrize(
    ("factors", "wrong"),
    [(SMALL_QK, Numerics(l2_eps=1e-5)), (SMALL_LATENT, Numerics(mla_norm_eps=1e-5))],
    ids=["norm of q and k", "norm of the latent"],
)
def test_epsilons_are_transformers_own(
    folder: Path, tmp_path: Path, factors: dict[str, float], wrong: Numerics
) -> None:
    """With vectors so small that epsilon counts, the reference's 1e-6 agrees and 1e-5 is far off."""
    small = scaled(folder, tmp_path / "small", factors)
    theirs = transformers_logits(small, TOKENS)
    assert relative_error(theirs, ReferenceModel.load(small).logits(TOKENS)) < TOLERANCE
    assert relative_error(theirs, ReferenceModel.load(small, numerics=wrong).logits(TOKENS)) > 0.05

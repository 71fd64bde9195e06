"""Kimi K3 and Kimi-Linear against llama.cpp, and the cause of each difference.

llama.cpp differs in three ways: 1e-5 where Hugging Face has 1e-6 in two epsilons; activations that it rounds
to eight bits in front of MXFP4 weights; a float16 KV cache unless told otherwise. Each is shown by an
experiment in which the reference, or llama.cpp, is set to the other's way and the difference goes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from milepost.testing.reference_model import Numerics, ReferenceModel
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.oracle.checkpoints import ONE_HEAD_COUNT, SMALL_LATENT, SMALL_QK, TOKENS, routing, scaled
from tests.oracle.peers import llama_cpp_logits
from tests.oracle.subjects import Logits, relative_error

# K3's own rounding is larger: the reference run in float32 is up to 2e-5 off its float64 self.
TOLERANCE = {"kimi_linear": 2e-5, "kimi_k3": 1e-4}
LLAMA_EPSILONS = Numerics(l2_eps=1e-5, mla_norm_eps=1e-5)


def _write(folder: Path, family: str, dtype: torch.dtype) -> Path:
    # K3's experts hold MXFP4 values in either form; unpacked, they reach llama.cpp as float32.
    plain = {"packed_experts": False} if family == "kimi_k3" else {}
    return write_toy_checkpoint(folder, family, 2, dtype=dtype, **ONE_HEAD_COUNT, **plain)


@pytest.fixture(scope="module", params=["kimi_linear", "kimi_k3"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("toy") / family, family, torch.float32)


@pytest.fixture(scope="module")
def bfloat16_folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("toy") / family, family, torch.bfloat16)


@pytest.mark.parametrize("stepwise", [False, True], ids=["whole", "stepwise"])
def test_logits(subject: Logits, family: str, folder: Path, stepwise: bool) -> None:
    theirs = llama_cpp_logits(folder, TOKENS, stepwise=stepwise)
    assert relative_error(theirs, subject(folder, TOKENS)) < TOLERANCE[family]


def test_logits_of_bfloat16_weights(subject: Logits, family: str, bfloat16_folder: Path) -> None:
    theirs = llama_cpp_logits(bfloat16_folder, TOKENS)
    assert relative_error(theirs, subject(bfloat16_folder, TOKENS)) < TOLERANCE[family]


def test_no_choice_of_experts_hangs_on_rounding(folder: Path, bfloat16_folder: Path) -> None:
    assert all(routing(each, TOKENS)[1] > 1e-4 for each in (folder, bfloat16_folder))


@pytest.mark.parametrize(
    ("factors", "cause"),
    [(SMALL_QK, Numerics(l2_eps=1e-5)), (SMALL_LATENT, Numerics(mla_norm_eps=1e-5))],
    ids=["norm of q and k", "norm of the latent"],
)
def test_cause_epsilon(
    family: str, folder: Path, tmp_path: Path, factors: dict[str, float], cause: Numerics
) -> None:
    """Where epsilon counts, llama.cpp is far off with Hugging Face's and agrees with 1e-5."""
    small = scaled(folder, tmp_path / "small", factors)
    theirs = llama_cpp_logits(small, TOKENS)
    assert relative_error(theirs, ReferenceModel.load(small).logits(TOKENS)) > 0.1
    with_cause = ReferenceModel.load(small, numerics=cause).logits(TOKENS)
    assert relative_error(theirs, with_cause) < TOLERANCE[family]


def eight_bits(x: torch.Tensor) -> torch.Tensor:
    """ggml's Q8_0: 32 values share a float16 scale, their largest magnitude over 127."""
    groups = x.float().view(-1, 32)
    largest = groups.abs().amax(dim=1, keepdim=True)
    codes = torch.round(groups * torch.where(largest == 0, 0.0, 127 / largest))
    return (codes * (largest / 127).half().float()).flatten().to(x.dtype)


def test_cause_eight_bit_activations(tmp_path: Path) -> None:
    """One MoE layer, packed: the difference of 8e-3 goes when the reference rounds as ggml does."""
    packed = write_toy_checkpoint(
        tmp_path / "packed", "kimi_k3", dtype=torch.float32, num_layers=2, **ONE_HEAD_COUNT
    )
    plain = write_toy_checkpoint(
        tmp_path / "plain",
        "kimi_k3",
        dtype=torch.float32,
        num_layers=2,
        packed_experts=False,
        **ONE_HEAD_COUNT,
    )
    exact = ReferenceModel.load(packed, numerics=LLAMA_EPSILONS).logits(TOKENS)
    rounding = Numerics(l2_eps=1e-5, mla_norm_eps=1e-5, expert_input=eight_bits)
    rounded = ReferenceModel.load(packed, numerics=rounding).logits(TOKENS)
    assert relative_error(llama_cpp_logits(packed, TOKENS), exact) > 3e-3
    assert relative_error(llama_cpp_logits(packed, TOKENS), rounded) < 2e-6
    assert relative_error(llama_cpp_logits(plain, TOKENS), exact) < 2e-6


def test_cause_experts_flip_behind_rounded_activations(tmp_path: Path) -> None:
    """Nine layers, packed: rounding changes the choice of experts of many tokens, and errors jump there."""
    packed = write_toy_checkpoint(tmp_path / "packed", "kimi_k3", dtype=torch.float32, **ONE_HEAD_COUNT)
    rounding = Numerics(l2_eps=1e-5, mla_norm_eps=1e-5, expert_input=eight_bits)
    exact_choice, _ = routing(packed, TOKENS, LLAMA_EPSILONS)
    rounded_choice, _ = routing(packed, TOKENS, rounding)
    flipped = (exact_choice != rounded_choice).any(dim=1).view(len(TOKENS), -1).any(dim=1)
    assert 0.1 < float(flipped.double().mean()) < 0.9
    theirs = llama_cpp_logits(packed, TOKENS).double()
    exact = ReferenceModel.load(packed, numerics=LLAMA_EPSILONS).logits(TOKENS)
    error = (theirs - exact).abs().amax(dim=1) / exact.abs().max()
    assert error[flipped].median() > 2 * error[~flipped].median()


def test_cause_float16_cache(family: str, folder: Path) -> None:
    truth = ReferenceModel.load(folder).logits(TOKENS)
    half = relative_error(llama_cpp_logits(folder, TOKENS, cache_type="F16"), truth)
    assert half > 10 * relative_error(llama_cpp_logits(folder, TOKENS), truth)
    assert half < 5e-3

"""The reference model against itself: states, forms of a checkpoint, and that every tensor has its effect."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from milepost.kernels.mxfp4 import dequantize
from milepost.testing.reference.files import decode_mxfp4
from milepost.testing.reference_model import Numerics, ReferenceModel
from milepost.testing.toy_checkpoint import write_toy_checkpoint

TOKENS = [17, 260, 3, 3, 311, 99, 320, 204, 45, 46, 47, 300]
FAMILIES = ["kimi_k3", "kimi_linear"]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_checkpoint(tmp_path_factory.mktemp("toy") / request.param, request.param, seed=1)


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def test_steps_copies_and_whole_sequences_agree(folder: Path) -> None:
    model = ReferenceModel.load(folder)
    whole = model.logits(TOKENS)
    assert whole.shape == (len(TOKENS), 576)
    assert whole.isfinite().all()
    state = model.fresh_state()
    for token in TOKENS[:7]:
        model.step(token, state)
    saved = state.copy()
    first = [model.step(token, state) for token in TOKENS[7:]]
    detour = saved.copy()
    for token in (5, 6, 7):
        model.step(token, detour)
    again = [model.step(token, saved) for token in TOKENS[7:]]
    assert torch.equal(torch.stack(first), whole[7:])
    assert torch.equal(torch.stack(again), whole[7:])
    assert saved.position == state.position == len(TOKENS)
    assert detour.position == 10


def test_float32_is_close_and_bfloat16_weights_are_not_float32_ones(folder: Path, tmp_path: Path) -> None:
    exact = ReferenceModel.load(folder).logits(TOKENS)
    assert _relative(ReferenceModel.load(folder, torch.float32).logits(TOKENS).double(), exact) < 1e-5
    fine = write_toy_checkpoint(tmp_path / "fine", folder.name, seed=1, dtype=torch.float32)
    assert _relative(ReferenceModel.load(fine).logits(TOKENS), exact) > 1e-3


def test_packed_and_unpacked_experts_are_one_model(tmp_path: Path) -> None:
    packed = write_toy_checkpoint(tmp_path / "packed", "kimi_k3", seed=5)
    plain = write_toy_checkpoint(tmp_path / "plain", "kimi_k3", seed=5, packed_experts=False)
    assert torch.equal(ReferenceModel.load(packed).logits(TOKENS), ReferenceModel.load(plain).logits(TOKENS))


def test_the_two_mxfp4_decoders_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(256, (64, 256), generator=generator, dtype=torch.uint8)
    scale = torch.randint(255, (64, 16), generator=generator, dtype=torch.uint8)
    assert torch.equal(decode_mxfp4(packed, scale), dequantize(packed, scale, torch.float64))


def test_what_is_unread_is_known(folder: Path) -> None:
    unread = ReferenceModel.load(folder).unread
    expected: frozenset[str] = frozenset()
    if folder.name == "kimi_k3":
        site = "language_model.model.layers.0.self_attention_res_"
        expected = frozenset({f"{site}norm.weight", f"{site}proj.weight"})
        unread = frozenset(name for name in unread if not name.startswith(("vision_tower.", "mm_projector.")))
    assert unread == expected


def test_every_tensor_matters(folder: Path, tmp_path: Path) -> None:
    """A change of one tensor of each kind changes the logits, but for what is unread and A_log's surplus."""
    tensors: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        tensors.update(load_file(path))
    baseline = ReferenceModel.load(folder)
    expected = baseline.logits(TOKENS)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    kinds: dict[str, str] = {}
    for name in sorted(tensors):
        if "experts." not in name or "experts.7." in name:
            kinds[re.sub(r"layers\.\d+\.", "", name)] = name  # the last layer that has it
    for name in kinds.values():
        changed = dict(tensors)
        changed[name] = _changed(tensors[name])
        save_file(changed, tmp_path / "model.safetensors")
        moved = _relative(ReferenceModel.load(tmp_path).logits(TOKENS), expected)
        assert (moved == 0) == (name in baseline.unread), name
    a_log = next(name for name in tensors if name.endswith("A_log"))
    if folder.name == "kimi_k3":
        changed = dict(tensors)
        changed[a_log] = tensors[a_log].clone()
        changed[a_log][5:] = float("nan")
        save_file(changed, tmp_path / "model.safetensors")
        assert torch.equal(ReferenceModel.load(tmp_path).logits(TOKENS), expected)


def _changed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.uint8:
        return tensor ^ 1
    return (tensor.float() * 1.25 + 0.02).to(tensor.dtype)


def test_random_weights_are_lively(folder: Path) -> None:
    """Decays, routing, attention and depth mixing take many values, so that a mistake in them shows."""
    seen: dict[str, list[torch.Tensor]] = defaultdict(list)
    numerics = Numerics(observe=lambda name, layer, value: seen[name].append(value))
    tokens = torch.randint(576, (64,), generator=torch.Generator().manual_seed(2)).tolist()
    ReferenceModel.load(folder, numerics=numerics).logits(tokens)
    decay = torch.exp(torch.stack([value.flatten() for value in seen["log decay"]]))
    assert decay.quantile(0.02) < 0.35
    assert decay.median() > 0.5
    assert decay.quantile(0.9) > 0.97
    _check_routing(
        seen["router choice scores"], seen["router scores"], top_k=4 if folder.name == "kimi_k3" else 3
    )
    late = [value for value in seen["attention weights"] if value.shape[0] == 64]
    assert all(0.05 < float(value.max(dim=0).values.mean()) < 0.95 for value in late)
    if folder.name == "kimi_k3":
        deep = torch.stack([value for value in seen["residual weights"] if value.numel() == 4])
        assert (deep.mean(dim=0) > 0.05).all()
        assert deep.std(dim=0).min() > 0.05


def _check_routing(biased: list[torch.Tensor], plain: list[torch.Tensor], top_k: int) -> None:
    chosen = torch.stack([value.topk(top_k).indices.sort().values for value in biased])
    unbiased = torch.stack([value.topk(top_k).indices.sort().values for value in plain])
    assert len(set(chosen.flatten().tolist())) == biased[0].numel()  # no expert is idle
    share_changed = float((chosen != unbiased).any(dim=1).double().mean())
    assert 0.3 < share_changed < 0.98
    scores = torch.stack(plain)
    assert scores.quantile(0.1) < 0.3
    assert scores.quantile(0.9) > 0.7


def test_hooks_default_to_exact_arithmetic(folder: Path) -> None:
    model, base = ReferenceModel.load(folder), ReferenceModel.load(folder, numerics=Numerics(l2_eps=1e-3))
    assert _relative(base.logits(TOKENS), model.logits(TOKENS)) > 1e-6


def test_attention_rows_are_what_an_engine_caches(folder: Path) -> None:
    model: Any = ReferenceModel.load(folder)
    state = model.fresh_state()
    for token in TOKENS:
        model.step(token, state)
    rows = [layer.rows for layer in state.layers if hasattr(layer, "rows")]
    assert all(len(layer) == len(TOKENS) and layer[0].shape == (48 + 16,) for layer in rows)

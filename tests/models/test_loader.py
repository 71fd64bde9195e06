"""Checkpoints as files: what loads, what is skipped, and every way in which one must be refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from milepost.errors import CheckpointError
from milepost.kernels.matrix import MatrixFormat, Mxfp4Matrix
from milepost.kernels.ops import load_ops
from milepost.models import Model, load_model
from milepost.models.feed_forward import MixtureOfExperts
from milepost.models.loader import expected_tensors
from milepost.models.shards import INDEX_NAME, SINGLE_NAME, Checkpoint
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.models.paged_batches import PagedBatches

Tensors = dict[str, Tensor]

TOKENS = [[5, 9, 200, 31]]
LAYER = "language_model.model.layers.1."


@pytest.fixture
def k3(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    return write_toy_checkpoint(tmp_path / "k3", "kimi_k3", num_layers=4)


@pytest.fixture
def kimi_linear(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    return write_toy_checkpoint(tmp_path / "linear", "kimi_linear", num_layers=4)


def _load(folder: Path, progress: Callable[[int, int], None] | None = None) -> Model:
    return load_model(folder, dtype=torch.float32, ops=load_ops("reference"), progress=progress)


def _logits(folder: Path) -> Tensor:
    return PagedBatches(_load(folder), TOKENS).run([])[0]


def _tensors(folder: Path) -> Tensors:
    return {
        name: tensor for shard in folder.glob("*.safetensors") for name, tensor in load_file(shard).items()
    }


def _rewrite(folder: Path, tensors: Tensors) -> None:
    """Replace the shards by one file."""
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    save_file(tensors, folder / SINGLE_NAME)


def test_shards_and_a_single_file_are_the_same_model(k3: Path) -> None:
    from_shards = _logits(k3)
    _rewrite(k3, _tensors(k3))
    assert torch.equal(_logits(k3), from_shards)


def test_expected_tensors_are_those_of_the_files(k3: Path, kimi_linear: Path) -> None:
    for folder in (k3, kimi_linear):
        model = _load(folder)
        expected = {tensor.name: tensor.shape for tensor in expected_tensors(model.spec)}
        stored = {name: tuple(tensor.shape) for name, tensor in _tensors(folder).items()}
        stored = {name: shape for name, shape in stored.items() if name in expected or "A_log" in name}
        assert expected.keys() == stored.keys()
        assert {name for name in expected if expected[name] != stored[name]} == {
            name
            for name in expected
            if name.endswith("A_log")  # stored longer, or wrapped in ones
        }


def test_packed_experts_stay_packed(k3: Path) -> None:
    experts = [layer._mlp for layer in _load(k3)._layers if isinstance(layer._mlp, MixtureOfExperts)]
    assert len(experts) == 3
    for matrices in (experts[0]._w1, experts[0]._w3, experts[0]._w2):
        assert isinstance(matrices, Mxfp4Matrix)
        assert matrices.packed.shape[0] == 16
    name = f"{LAYER}block_sparse_moe.experts.7.w2.weight_packed"
    w2 = experts[0]._w2
    assert isinstance(w2, Mxfp4Matrix)
    assert torch.equal(w2.packed[7], _tensors(k3)[name])


def test_num_bytes_counts_weights_as_they_lie_in_memory(k3: Path) -> None:
    tensors = {name: tensor for name, tensor in _tensors(k3).items() if name.startswith("language_model.")}
    surplus = sum(3 * 4 for name in tensors if name.endswith("A_log"))  # stored beyond the heads
    # A site of Attention Residuals keeps the product of its two vectors.
    surplus += sum(4 * tensor.numel() for name, tensor in tensors.items() if "_res_proj." in name)
    wanted = sum(t.numel() * (1 if t.dtype == torch.uint8 else 4) for t in tensors.values())
    ops = load_ops("reference")
    model = load_model(k3, dtype=torch.float32, ops=ops, weights=MatrixFormat.FLOAT32)
    assert model.num_bytes == wanted - surplus


def test_dense_network_under_the_mixtures_name(kimi_linear: Path) -> None:
    official = _logits(kimi_linear)
    tensors = _tensors(kimi_linear)
    renamed = {name.replace(".mlp.", ".block_sparse_moe."): tensor for name, tensor in tensors.items()}
    assert renamed.keys() != tensors.keys()
    _rewrite(kimi_linear, renamed)
    assert torch.equal(_logits(kimi_linear), official)


def test_a_log_is_cut_to_the_heads(k3: Path) -> None:
    tensors = _tensors(k3)
    before = _logits(k3)
    for name in tensors:
        if name.endswith("A_log"):
            tensors[name] = tensors[name][:5].clone()
    _rewrite(k3, tensors)
    assert torch.equal(_logits(k3), before)


def test_progress_counts_the_bytes_of_the_text_model(k3: Path) -> None:
    calls: list[tuple[int, int]] = []
    _load(k3, lambda done, total: calls.append((done, total)))
    text = [tensor for name, tensor in _tensors(k3).items() if name.startswith("language_model.")]
    total = sum(tensor.nbytes for tensor in text)
    assert {call[1] for call in calls} == {total}
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert done[-1] == total


def test_vision_is_skipped_for_k3_only(k3: Path, kimi_linear: Path) -> None:
    assert any(name.startswith("vision_tower.") for name in Checkpoint(k3).entries)
    _load(k3)
    tensors = _tensors(kimi_linear) | {"vision_tower.patch_embed.proj.weight": torch.zeros(3)}
    _rewrite(kimi_linear, tensors)
    with pytest.raises(CheckpointError, match=r"1 unexpected\.\n  - unexpected: vision_tower\.patch_embed"):
        _load(kimi_linear)


def test_everything_wrong_is_one_error(k3: Path) -> None:
    tensors = _tensors(k3)
    del tensors[f"{LAYER}self_attn.dt_bias"]
    tensors[f"{LAYER}self_attn.o_norm.weight"] = torch.ones(31)
    tensors[f"{LAYER}self_attn.A_log"] = torch.ones(4)
    tensors[f"{LAYER}input_layernorm.weight"] = torch.ones(80, dtype=torch.int32)
    tensors[f"{LAYER}self_attn.q_norm.weight"] = torch.ones(32)
    _rewrite(k3, tensors)
    with pytest.raises(CheckpointError) as caught:
        _load(k3)
    message = str(caught.value)
    assert "1 missing, 3 misshapen, 1 unexpected." in message
    assert f"missing: {LAYER}self_attn.dt_bias [160]" in message
    assert f"misshapen: {LAYER}self_attn.o_norm.weight must be [32] in F64" in message
    assert f"misshapen: {LAYER}self_attn.A_log must be at least [5]" in message
    assert "is [80] in I32" in message
    assert f"unexpected: {LAYER}self_attn.q_norm.weight [32]" in message


def test_long_lists_are_cut(k3: Path) -> None:
    tensors = {name: tensor for name, tensor in _tensors(k3).items() if ".experts.3." not in name}
    _rewrite(k3, tensors)
    with pytest.raises(CheckpointError, match="18 missing"):
        _load(k3)
    _rewrite(k3, {name: tensor for name, tensor in tensors.items() if ".experts." not in name})
    with pytest.raises(CheckpointError) as caught:
        _load(k3)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + 20 + 1
    # Without its packed tensors, a layer's experts are taken for plain ones: one tensor each.
    assert lines[-1] == f"  ... and {3 * 16 * 3 - 20} more"


def test_packed_weights_must_be_declared(k3: Path) -> None:
    config = json.loads((k3 / "config.json").read_text())
    del config["text_config"]["quantization_config"]
    (k3 / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="has no quantization_config"):
        _load(k3)


def test_truncated_shard(k3: Path) -> None:
    shard = max(k3.glob("*.safetensors"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-100])
    with pytest.raises(
        CheckpointError, match=f"{shard.name} is cut short: it has {len(content) - 100} bytes"
    ):
        _load(k3)
    shard.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="is longer than its header says"):
        _load(k3)


def test_missing_shard(k3: Path) -> None:
    shard = max(k3.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"lacks shards that {INDEX_NAME} names.*\n  - {shard.name}"):
        _load(k3)


def _index(folder: Path, content: object) -> None:
    (folder / INDEX_NAME).write_text(json.dumps(content))


def test_wrong_index(k3: Path) -> None:
    index = json.loads((k3 / INDEX_NAME).read_text())
    weight_map = index["weight_map"]
    _index(k3, {"weight_map": weight_map | {"extra.weight": min(weight_map.values())}})
    with pytest.raises(
        CheckpointError, match=r"names tensors that their shards don't hold: \n  - extra\.weight"
    ):
        _load(k3)
    _index(k3, {"weight_map": {"a.weight": "../secret.safetensors"}})
    with pytest.raises(CheckpointError, match="must name shard files of its own folder"):
        _load(k3)
    broken_indices: list[object] = [{}, {"weight_map": {}}, {"weight_map": {"a": 3}}, []]
    for broken in broken_indices:
        _index(k3, broken)
        with pytest.raises(CheckpointError, match=INDEX_NAME):
            _load(k3)


def test_no_weights(k3: Path) -> None:
    (k3 / INDEX_NAME).unlink()
    with pytest.raises(CheckpointError, match=f"shards with {INDEX_NAME}. It has model-00001-of-00002"):
        _load(k3)
    for shard in k3.glob("*.safetensors"):
        shard.unlink()
    with pytest.raises(CheckpointError, match=r"has no \*\.safetensors at all"):
        _load(k3)


def _header(entries: object) -> bytes:
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a safetensors file or is cut short"),
        (b"abc", "is not a safetensors file or is cut short"),
        (struct.pack("<Q", 1 << 62), "is not a safetensors file or is cut short"),
        (struct.pack("<Q", 4) + b"{{{{", "has a broken header"),
        (_header([]), "has a broken header"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "has a broken header"),
        (struct.pack("<Q", 100_005) + b'{"a":' + b"[" * 100_000, "has a broken header"),
        (_header({"a": {"dtype": "F32"}}), "has a broken header: .*shape"),
        (_header({"a": GOOD | {"dtype": "Q4"}}) + bytes(8), "a has dtype 'Q4'"),
        (_header({"a": GOOD | {"shape": [-2]}}) + bytes(8), "has a broken header"),
        (_header({"a": GOOD | {"shape": [3]}}) + bytes(8), "needs 12 bytes. Given: 8"),
        (_header({"a": GOOD | {"data_offsets": [8, 0]}}) + bytes(8), "needs 8 bytes. Given: -8"),
        (_header({"a": GOOD | {"data_offsets": [4, 12]}}) + bytes(12), "a starts at byte"),
        (_header({"a": GOOD, "b": GOOD | {"data_offsets": [4, 12]}}) + bytes(12), "b starts at byte"),
        (_header({"a": GOOD}) + bytes(7), "is cut short"),
    ],
)
def test_broken_headers(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / SINGLE_NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint(tmp_path)
    assert SINGLE_NAME in str(caught.value)


@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float64, torch.float32, torch.bfloat16])
def test_copy_converts_and_crosses_chunks(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    """Sizes around the staging buffer, and tensors that start at odd bytes of the file."""
    torch.manual_seed(0)
    tensors = {
        "odd": torch.zeros(3, dtype=torch.uint8),
        "large": torch.randn((9 << 20) // stored.itemsize + 1).to(stored),
        "none": torch.zeros(0, dtype=stored),
    }
    save_file(tensors, tmp_path / SINGLE_NAME)
    checkpoint = Checkpoint(tmp_path)
    read = 0

    def progress(num_bytes: int) -> None:
        nonlocal read
        read += num_bytes

    for name in ("large", "none"):
        target = torch.full(tensors[name].shape, torch.nan, dtype=wanted)
        checkpoint.copy(checkpoint.entries[name], target, progress)
        assert torch.equal(target, tensors[name].to(wanted))
    assert read == tensors["large"].nbytes
    checkpoint.close()

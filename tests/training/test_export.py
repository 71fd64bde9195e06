"""The exported files: names, dtypes and shapes of K3, and a reload that computes the same."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from training import export, tokenizer
from training.config import ToyConfig
from training.model import KimiK3ForConditionalGeneration
from training.tokenizer import ToyTokenizer

_LAYER = "language_model.model.layers.1"


@pytest.fixture(scope="module")
def model() -> KimiK3ForConditionalGeneration:
    torch.manual_seed(0)
    model = KimiK3ForConditionalGeneration(ToyConfig()).eval()
    torch.nn.init.normal_(model.language_model.lm_head.weight, std=0.01)
    return model


@pytest.fixture(scope="module")
def folder(model: KimiK3ForConditionalGeneration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("export")
    tokenizer.save({bytes([value]): value for value in range(256)}, scratch / "tokenizer", 64)
    export.export_checkpoint(model.state_dict(), model.config, scratch / "tokenizer", scratch / "out")
    return scratch / "out"


def test_every_tensor_is_in_the_shard_that_the_index_names(folder: Path) -> None:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found: dict[str, str] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= dict.fromkeys(file.keys(), path.name)
    assert found == index["weight_map"]
    assert len(set(found.values())) == 2


def test_dtypes_and_shapes_follow_k3(model: KimiK3ForConditionalGeneration) -> None:
    tensors = export.checkpoint_tensors(model.state_dict())
    config = model.config
    width = config.kda_num_heads * config.kda_head_dim
    expected = {
        "self_attn.A_log": ((8,), torch.float32),
        "self_attn.dt_bias": ((width,), torch.float32),
        "self_attn.q_conv1d.weight": ((width, 1, 4), torch.float32),
        "self_attn.o_norm.weight": ((32,), torch.float32),
        "self_attn.q_proj.weight": ((width, config.hidden_size), torch.bfloat16),
        "self_attention_res_proj.weight": ((1, config.hidden_size), torch.bfloat16),
        "block_sparse_moe.gate.e_score_correction_bias": ((8,), torch.float32),
        "block_sparse_moe.experts.0.w1.weight_packed": ((64, 32), torch.uint8),
        "block_sparse_moe.experts.0.w2.weight_scale": ((64, 2), torch.uint8),
        "block_sparse_moe.shared_experts.gate_proj.weight": ((128, config.hidden_size), torch.bfloat16),
    }
    given = {
        name: (tuple(tensors[f"{_LAYER}.{name}"].shape), tensors[f"{_LAYER}.{name}"].dtype)
        for name in expected
    }
    assert given == expected


def test_reloaded_model_computes_what_training_evaluated(
    model: KimiK3ForConditionalGeneration, folder: Path
) -> None:
    rounded = KimiK3ForConditionalGeneration(model.config).eval()
    tensors = export.checkpoint_tensors(model.state_dict())
    state = {name: tensors.get(name, value).float() for name, value in model.state_dict().items()}
    rounded.load_state_dict(state)  # experts unrounded: the module itself multiplies by their MXFP4 values
    tokens = torch.arange(40).unsqueeze(0)
    with torch.inference_mode():
        assert torch.equal(export.load_checkpoint(folder)(tokens), rounded(tokens))


def test_tokenizer_round_trip() -> None:
    toy = ToyTokenizer({bytes([value]): value for value in range(256)})
    text = "The code for amber is 7412.\n\u00e9 <|open|>"
    ids = toy.encode(text)
    assert max(ids) < 256, "text never becomes a special token"
    assert toy.decode(ids) == text
    assert toy.specials["<|end_of_msg|>"] == 258
    assert toy.specials["[PAD]"] == 511

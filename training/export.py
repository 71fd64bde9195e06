"""Writes a trained state as a checkpoint in Kimi K3's layout: names, dtypes, MXFP4 experts, shards and index.

``python -m training.export --state STATE --out assets/milepost-toy-k3``
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from training import mxfp4
from training.config import ToyConfig
from training.model import KimiK3ForConditionalGeneration

_FLOAT32_ENDINGS = ("_conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")
_NUM_SHARDS = 2


def checkpoint_tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn parameters into what K3's files hold: packed experts, a few F32 tensors, BF16 for the rest."""
    tensors = {}
    for name, value in state.items():
        if ".experts." in name:
            packed, scale = mxfp4.pack(value)
            stem = name.removesuffix(".weight")
            tensors[f"{stem}.weight_packed"], tensors[f"{stem}.weight_scale"] = packed, scale
        elif name.endswith(_FLOAT32_ENDINGS):
            tensors[name] = value.float()
        else:
            tensors[name] = value.to(torch.bfloat16)
    return {name: value.contiguous() for name, value in tensors.items()}


def module_state(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse, up to rounding: float32 parameters that compute exactly with the checkpoint's values."""
    state = {}
    for name, value in tensors.items():
        if name.endswith(".weight_packed"):
            stem = name.removesuffix(".weight_packed")
            state[f"{stem}.weight"] = mxfp4.unpack(value, tensors[f"{stem}.weight_scale"])
        elif not name.endswith(".weight_scale"):
            state[name] = value.float()
    return state


def write_checkpoint(state: dict[str, Tensor], config: ToyConfig, tokenizer_folder: Path, out: Path) -> None:
    """Write every file of the checkpoint folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    shards = _split(checkpoint_tensors(state))
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, out / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum(value.nbytes for shard in shards for value in shard.values())
    _write_json(
        out / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )
    _write_json(out / "config.json", config.to_json())
    end_of_message = config.base_vocab_size + 2
    generation = {
        "eos_token_id": [end_of_message, end_of_message - 1],
        "max_length": config.max_position_embeddings,
    }
    _write_json(out / "generation_config.json", generation)
    for file in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copyfile(tokenizer_folder / file, out / file)


def load_checkpoint(folder: Path) -> KimiK3ForConditionalGeneration:
    """The module with the weights of a checkpoint folder, in evaluation mode."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(index["weight_map"].values())):
        tensors |= load_file(folder / file)
    model = KimiK3ForConditionalGeneration(ToyConfig())
    model.load_state_dict(module_state(tensors))
    model.set_quantised(False)  # the values are MXFP4 already
    return model.eval()


def _split(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Fill the shards with about equal bytes, keeping the order of names."""
    share = sum(value.nbytes for value in tensors.values()) / _NUM_SHARDS
    shards: list[dict[str, Tensor]] = [{} for _ in range(_NUM_SHARDS)]
    used = 0
    for name, value in tensors.items():
        shards[min(_NUM_SHARDS - 1, int(used / share))][name] = value
        used += value.nbytes
    return shards


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="folder of training.train")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")
    args = parser.parse_args()
    state = torch.load(args.state / "state.pt", weights_only=True)["model"]
    write_checkpoint(state, ToyConfig(), args.state, args.out)


if __name__ == "__main__":
    main()

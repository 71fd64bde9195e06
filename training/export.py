"""Writes a trained state as a checkpoint in Kimi K3's layout: names, dtypes, MXFP4 experts, shards and index.

``python -m training.export --state STATE --out milepost/assets/milepost-toy-k3``
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from milepost.models.checkpoint_writer import write_checkpoint
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


def export_checkpoint(state: dict[str, Tensor], config: ToyConfig, tokenizer_folder: Path, out: Path) -> None:
    """Write every file of the folder ``out``; what was there is replaced once all of it is written."""
    end_of_message = config.base_vocab_size + 2
    generation = {
        "eos_token_id": [end_of_message, end_of_message - 1],
        "max_length": config.max_position_embeddings,
    }
    files = {
        name: (tokenizer_folder / name).read_bytes() for name in ("tiktoken.model", "tokenizer_config.json")
    }
    files["generation_config.json"] = (json.dumps(generation, indent=2) + "\n").encode()
    tensors = checkpoint_tensors(state).items()
    write_checkpoint(out, config.to_json(), tensors, shards=_NUM_SHARDS, files=files, overwrite=True)


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


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="folder of training.train")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")
    args = parser.parse_args()
    state = torch.load(args.state / "state.pt", weights_only=True)["model"]
    export_checkpoint(state, ToyConfig(), args.state, args.out)


if __name__ == "__main__":
    main()

"""Small checkpoints for tests, whole ones and damaged ones."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milepost.testing.toy_checkpoint import write_toy_checkpoint

# What every engine of these tests is given: small, and without compiled kernels.
ENGINE: dict[str, Any] = {"kernels": "reference", "memory": "16MiB", "threads": 1, "max_model_len": 400}
ENGINE_FLAGS = ("--kernels", "reference", "--memory", "16MiB", "--threads", "1", "--max-model-len", "400")


def small_k3(folder: Path) -> Path:
    """A Kimi K3 whose steps take milliseconds."""
    return write_toy_checkpoint(
        folder, hidden_size=32, num_layers=5, full_attn_layers=[4, 5], num_experts=4, top_k=2, vision=False
    )


def small_kimi_linear(folder: Path) -> Path:
    """A small Kimi-Linear."""
    return write_toy_checkpoint(folder, "kimi_linear")


def copied(whole: Path, to: Path, damage: Callable[[Path], object]) -> Path:
    """A damaged copy."""
    shutil.copytree(whole, to)
    damage(to)
    return to


def no_thinking(folder: Path) -> None:
    """The shipped model's default."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"default_chat_template_kwargs": {"thinking": False}}))


def truncate_a_shard(folder: Path) -> None:
    shard = min(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1000])


def put_nan(folder: Path) -> None:
    """Every bfloat16 of the output head becomes NaN."""
    for shard in folder.glob("*.safetensors"):
        raw = bytearray(shard.read_bytes())
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        for name, entry in header.items():
            if name.endswith("lm_head.weight"):
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                raw[begin:end] = b"\xff" * (end - begin)
                shard.write_bytes(raw)
                return
    raise AssertionError("no shard has the output head")


def enlarge_tokenizer(folder: Path) -> None:
    """A tokenizer of a larger model: more pieces than the embedding has rows."""
    import base64

    lines = (folder / "tiktoken.model").read_bytes().splitlines()
    extra = [base64.b64encode(b"piece %d" % i) + b" %d" % i for i in range(len(lines), len(lines) + 300)]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines + extra) + b"\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    added = {str(int(key) + 300): value for key, value in config["added_tokens_decoder"].items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"added_tokens_decoder": added}))

"""The models that every engine runs: two random ones of about 100 M parameters and the shipped one.

12 layers, d = 512, vocabulary 8,192, with as many KDA as MLA heads, since llama.cpp knows one number only.
Values are stored in bfloat16, so that float32 and bfloat16 files hold the same numbers. Kimi K3's random
experts are MXFP4 values in either of its two checkpoints: packed, and unpacked for the other formats.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cpu_peers.options import Peers, environment
from benchmarks.subjects import CACHE, RANDOM_100M, REPOSITORY
from milepost.cli.shipped_model import shipped_model
from milepost.models.checkpoint_writer import write_checkpoint
from milepost.testing.toy_config import toy_k3_config, toy_kimi_linear_config
from milepost.testing.toy_tokenizer import toy_tokenizer_files
from milepost.testing.toy_weights import toy_tensors

__all__ = ["FORMATS", "SUBJECTS", "Format", "checkpoint_of", "formats_of", "gguf_of", "vocab_of"]

FOLDER = CACHE / "cpu-peers"
BASE_VOCAB = 7936
VOCAB = 8192
BYTES = 256

# The same trunk; experts work on the whole width, so fewer and narrower ones make as many parameters.
_LINEAR_ONLY = {"num_experts": 16, "moe_intermediate": 256, "base_vocab": BASE_VOCAB}
_NOT_LINEAR = ("q_lora_rank", "latent_size", "attn_res_block", "vision")
LINEAR_100M: dict[str, Any] = {
    name: value for name, value in RANDOM_100M.items() if name not in _NOT_LINEAR
} | _LINEAR_ONLY

SUBJECTS = ("kimi_k3", "kimi_linear", "shipped")


@dataclass(frozen=True)
class Format:
    """A storage of weights, in each engine's words.

    Attributes:
        name: of the experts' storage, and of everything's where the two are one.
        weights: what ``--weights`` is told.
        rest: storage of everything but the experts.
        outtype: of llama.cpp's converter, its nearest.
        packed: the checkpoint's experts are packed.
    """

    name: str
    weights: str
    rest: str
    outtype: str
    packed: bool = False


FORMATS = {
    each.name: each
    for each in (
        Format("float32", "float32", "float32", "f32"),
        Format("bfloat16", "bfloat16", "bfloat16", "bf16"),
        Format("int8", "int8", "int8", "q8_0"),
        # As published: packed experts in a bfloat16 trunk, and each engine decides for itself.
        Format("mxfp4", "auto", "bfloat16", "bf16", packed=True),
    )
}


def formats_of(subject: str) -> list[Format]:
    """The formats that a subject is compared in."""
    if subject == "shipped":
        return [FORMATS["mxfp4"]]
    return [each for each in FORMATS.values() if subject == "kimi_k3" or not each.packed]


def vocab_of(subject: str) -> int:
    """Ordinary tokens that a prompt may be drawn from."""
    return BASE_VOCAB if subject != "shipped" else BYTES


def checkpoint_of(subject: str, *, packed: bool = False) -> Path:
    """A subject's checkpoint; a random one is written at its first use and kept."""
    if subject == "shipped":
        return shipped_model()
    folder = FOLDER / (f"{subject}-packed" if packed else subject)
    if folder.exists():
        return folder
    if subject == "kimi_k3":
        config = toy_k3_config(**RANDOM_100M, packed_experts=packed)
    else:
        config = toy_kimi_linear_config(**LINEAR_100M)
    tensors = _drawing_words(toy_tensors(config, 0, torch.bfloat16))
    return write_checkpoint(folder, config, tensors, files=_tokenizer_files(subject))


def gguf_of(subject: str, form: Format, peers: Peers) -> Path:
    """llama.cpp's file of a subject; converted at its first use and kept."""
    path = FOLDER / f"{subject}-{form.name}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        module = "benchmarks.cpu_peers.gguf_writer"
        source = checkpoint_of(subject, packed=form.packed)
        command = [str(peers.python), "-m", module, str(peers.llama_source)]
        command += [str(source), str(unfinished), form.outtype]
        subprocess.run(command, cwd=REPOSITORY, check=True, stdout=2, env=environment())
        unfinished.replace(path)
    return path


def _tokenizer_files(family: str) -> dict[str, bytes]:
    """A toy tokenizer's files with more words; a token without text would give a stream nothing to send."""
    files = toy_tokenizer_files(family, BYTES)
    shift = BASE_VOCAB - BYTES
    config = json.loads(files["tokenizer_config.json"])
    named = config["added_tokens_decoder"]
    config["added_tokens_decoder"] = {str(int(key) + shift): entry for key, entry in named.items()}
    generation = json.loads(files["generation_config.json"])
    generation["eos_token_id"] += shift
    return {
        "tiktoken.model": _words(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "generation_config.json": json.dumps(generation).encode(),
    }


def _words() -> bytes:
    """tiktoken.model: the bytes, then words that differ, so that every drawn token is some text."""
    words = [bytes([byte]) for byte in range(BYTES)]
    words += [f" w{rank}".encode() for rank in range(BYTES, BASE_VOCAB)]
    return b"".join(b"%s %d\n" % (base64.b64encode(word), rank) for rank, word in enumerate(words))


def _drawing_words(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """No logit but 0 for single bytes and specials: greedy draws are words, which stream at once."""
    for name, tensor in tensors:
        if name.endswith("lm_head.weight"):
            tensor[:BYTES] = 0
            tensor[BASE_VOCAB:] = 0
        yield name, tensor

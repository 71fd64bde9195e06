"""Prints the figures of docs/oracles.md; takes minutes, in the oracles' environment.

Usage: python -m tests.oracle.figures
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from milepost.testing.reference_model import Numerics, ReferenceModel
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.oracle.checkpoints import ONE_HEAD_COUNT, SMALL_LATENT, SMALL_QK, TOKENS, routing, scaled
from tests.oracle.peers import llama_cpp_logits, transformers_logits
from tests.oracle.subjects import SUBJECTS, relative_error
from tests.oracle.test_llama_cpp import LLAMA_EPSILONS, eight_bits

SEEDS = range(4)
NUMERICS = {
    "1e-6, 1e-6": Numerics(),
    "1e-5, 1e-6": Numerics(l2_eps=1e-5),
    "1e-6, 1e-5": Numerics(mla_norm_eps=1e-5),
    "1e-5, 1e-5": LLAMA_EPSILONS,
}


def _say(*cells: object) -> None:
    sys.stdout.write(
        " | ".join(f"{cell:.1e}" if isinstance(cell, float) else str(cell) for cell in cells) + "\n"
    )
    sys.stdout.flush()


def _worst(measure: Callable[[Path], float], folders: list[Path]) -> float:
    return max(measure(folder) for folder in folders)


def agreement(scratch: Path, family: str, dtype: torch.dtype) -> None:
    """Largest relative error over the seeds, whole and stepwise, of each peer against the reference."""
    plain = {"packed_experts": False} if family == "kimi_k3" else {}
    folders = [
        write_toy_checkpoint(
            scratch / f"{family}-{dtype}-{seed}", family, seed, dtype=dtype, **ONE_HEAD_COUNT, **plain
        )
        for seed in SEEDS
    ]
    truth = {folder: ReferenceModel.load(folder).logits(TOKENS) for folder in folders}
    own = _worst(
        lambda f: relative_error(ReferenceModel.load(f, torch.float32).logits(TOKENS), truth[f]), folders
    )
    _say(family, dtype, "reference in float32", own)
    for name in ("engine", "engine_cpu"):
        errors = [relative_error(SUBJECTS[name](folder, TOKENS), truth[folder]) for folder in folders]
        _say(family, dtype, name, max(errors))
    for stepwise in (False, True):
        mode = "stepwise" if stepwise else "whole"

        def llama(folder: Path, stepwise: bool = stepwise) -> float:
            return relative_error(llama_cpp_logits(folder, TOKENS, stepwise=stepwise), truth[folder])

        _say(family, dtype, f"llama.cpp, {mode}", _worst(llama, folders))
        if family == "kimi_linear":

            def hugging_face(folder: Path, stepwise: bool = stepwise) -> float:
                return relative_error(transformers_logits(folder, TOKENS, stepwise=stepwise), truth[folder])

            _say(family, dtype, f"transformers, {mode}", _worst(hugging_face, folders))
    _say(family, dtype, "smallest gap of the routers", min(routing(f, TOKENS)[1] for f in folders))


def epsilons(scratch: Path, family: str) -> None:
    """Each peer against the reference at four pairs of epsilons (of q and k, of MLA's norms)."""
    plain = {"packed_experts": False} if family == "kimi_k3" else {}
    base = write_toy_checkpoint(
        scratch / f"{family}-base", family, 2, dtype=torch.float32, **ONE_HEAD_COUNT, **plain
    )
    for case, factors in (("as drawn", {}), ("small q, k", SMALL_QK), ("small latents", SMALL_LATENT)):
        folder = scaled(base, scratch / f"{family}-{case}", factors)
        peers = {"llama.cpp": llama_cpp_logits(folder, TOKENS)}
        if family == "kimi_linear":
            peers["transformers"] = transformers_logits(folder, TOKENS)
        for label, numerics in NUMERICS.items():
            ours = ReferenceModel.load(folder, numerics=numerics).logits(TOKENS)
            for peer, theirs in peers.items():
                _say(family, case, f"epsilons {label}", peer, relative_error(theirs, ours))
    half = llama_cpp_logits(base, TOKENS, cache_type="F16")
    _say(family, "float16 cache", "llama.cpp", relative_error(half, ReferenceModel.load(base).logits(TOKENS)))


def eight_bit_activations(scratch: Path, layers: int) -> None:
    """Packed experts: llama.cpp against the reference, exact and with ggml's rounding."""
    folder = write_toy_checkpoint(
        scratch / f"packed-{layers}", "kimi_k3", dtype=torch.float32, num_layers=layers, **ONE_HEAD_COUNT
    )
    theirs = llama_cpp_logits(folder, TOKENS).double()
    choices = []
    rounding = Numerics(l2_eps=1e-5, mla_norm_eps=1e-5, expert_input=eight_bits)
    for label, numerics in (("exact", LLAMA_EPSILONS), ("rounded", rounding)):
        ours = ReferenceModel.load(folder, numerics=numerics).logits(TOKENS)
        error = (theirs - ours).abs().amax(dim=1) / ours.abs().max()
        _say(
            "kimi_k3 packed",
            f"{layers} layers",
            label,
            "max",
            float(error.max()),
            "median",
            float(error.median()),
        )
        choices.append(routing(folder, TOKENS, numerics)[0])
    flipped = (choices[0] != choices[1]).any(dim=1).view(len(TOKENS), -1).any(dim=1)
    _say("kimi_k3 packed", f"{layers} layers", "tokens with other experts", float(flipped.double().mean()))


def main() -> None:
    """Print all figures."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for family in ("kimi_linear", "kimi_k3"):
            for dtype in (torch.float32, torch.bfloat16):
                agreement(scratch, family, dtype)
            epsilons(scratch, family)
        for layers in (2, 4, 9):
            eight_bit_activations(scratch, layers)


if __name__ == "__main__":
    main()

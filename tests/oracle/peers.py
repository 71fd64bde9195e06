"""Logits by other people's code from the same checkpoint folder; skips, with a reason, what isn't there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from milepost.testing.threads import single_thread

_HOW = "see docs/oracles.md"
_LLAMA_SOURCE = "MILEPOST_LLAMA_CPP_SOURCE"
_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parent.parent


def transformers_logits(folder: Path, token_ids: Sequence[int], *, stepwise: bool = False) -> torch.Tensor:
    """Kimi-Linear by transformers, float32, eager attention; its loader reads the published layout as it is.

    Args:
        folder: a checkpoint.
        token_ids: the sequence.
        stepwise: one token at a time through its cache instead of the whole sequence at once.

    Returns:
        [tokens, vocab].
    """
    pytest.importorskip("transformers", reason=f"transformers is not installed; {_HOW}")
    # Imported while fla can't be: with fla present, transformers binds its Triton kernels, which need a GPU.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "fla", None)
        module = importlib.import_module("transformers.models.kimi_linear.modeling_kimi_linear")
    model, report = module.KimiLinearForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report  # every tensor found its place, none was left over or made up
    tokens = torch.tensor([list(token_ids)])
    with torch.no_grad(), single_thread():
        if not stepwise:
            return model(tokens, use_cache=False).logits[0]
        cache, rows = None, []
        for t in range(tokens.shape[1]):
            out = model(tokens[:, t : t + 1], cache=cache, use_cache=True)
            cache = out.cache
            rows.append(out.logits[0, 0])
        return torch.stack(rows)


def llama_cpp_logits(
    folder: Path, token_ids: Sequence[int], *, cache_type: str = "F32", stepwise: bool = False
) -> torch.Tensor:
    """Kimi K3 or Kimi-Linear by llama.cpp, converted by its own script to float32 (what is MXFP4 stays that).

    Args:
        folder: a checkpoint whose KDA and MLA layers have equally many heads: llama.cpp knows one number
            only.
        token_ids: the sequence.
        cache_type: of its KV cache, "F32" or "F16".
        stepwise: one token a batch (recurrent kernels) instead of all in one (chunked kernels).

    Returns:
        [tokens, vocab].
    """
    pytest.importorskip("llama_cpp", reason=f"llama-cpp-python is not installed; {_HOW}")
    gguf = _beside(folder, ".gguf")
    if not gguf.exists():
        _run("convert_to_gguf.py", _llama_source(), folder, gguf)
    tokens_file, logits_file = _beside(folder, ".tokens.json"), _beside(folder, ".logits.npy")
    tokens_file.write_text(json.dumps(list(token_ids)))
    batch_size = 1 if stepwise else len(token_ids)
    _run("run_llama_cpp.py", gguf, tokens_file, logits_file, cache_type, batch_size)
    return torch.from_numpy(np.load(logits_file))


def _beside(folder: Path, suffix: str) -> Path:
    return folder.parent / f"{folder.name}{suffix}"


def _llama_source() -> Path:
    given = os.environ.get(_LLAMA_SOURCE)
    folders = (
        [Path(given)] if given else (_REPOSITORY / "build/oracle").glob("llama_cpp_python-*/vendor/llama.cpp")
    )
    for folder in folders:
        if (folder / "convert_hf_to_gguf.py").exists():
            return folder
    pytest.skip(f"no llama.cpp source with its converter under build/oracle or {_LLAMA_SOURCE}; {_HOW}")


def _run(script: str, *arguments: object) -> None:
    command = [sys.executable, str(_HERE / script), *(str(argument) for argument in arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    assert done.returncode == 0, f"{script} failed:\n{done.stderr[-3000:]}"

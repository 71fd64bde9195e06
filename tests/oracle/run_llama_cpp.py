"""Logits by llama.cpp, as a process, since it aborts on what it dislikes.

Arguments: GGUF TOKENS.json LOGITS.npy F32|F16 BATCH. The fourth is the type of its KV cache; BATCH is how
many tokens go in at once (1: its recurrent kernels, more: its chunked ones).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

_CACHE_TYPES = {"F32": 0, "F16": 1}  # ggml_type
_FLASH_ATTENTION_OFF = 0


def main(arguments: list[str]) -> None:
    gguf, tokens_file, logits_file, cache_type = arguments[:4]
    batch_size = int(arguments[4])
    tokens = json.loads(Path(tokens_file).read_text())
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(gguf.encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp can't load {gguf}")
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = len(tokens)
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = _CACHE_TYPES[cache_type]
    params.flash_attn_type = _FLASH_ATTENTION_OFF
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp can't make a context")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = [
        row
        for start in range(0, len(tokens), batch_size)
        for row in _decode(context, tokens[start : start + batch_size], start, vocab)
    ]
    np.save(logits_file, np.stack(rows))


def _decode(
    context: llama_cpp.llama_context_p, tokens: list[int], start: int, vocab: int
) -> list[np.ndarray]:
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.logits[i] = token, start + i, True
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    code = llama_cpp.llama_decode(context, batch)
    if code:
        raise SystemExit(f"llama_decode gave {code}")
    rows = [
        np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (vocab,)).copy()
        for i in range(len(tokens))
    ]
    llama_cpp.llama_batch_free(batch)
    return rows


if __name__ == "__main__":
    main(sys.argv[1:])

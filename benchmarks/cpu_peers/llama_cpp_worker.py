"""llama.cpp through its low-level API, in the peers' environment: GGUF THREADS.

Its own defaults except for the number of threads and a float32 KV cache, as ours. Its default micro-batch of
512 tokens is as good as its best on these models: 256 gives 1 % more or less, 1,024 some 4 % and 2,048 some
8 % less. Greedy draws are numpy's argmax over its logits, which is quicker than its own samplers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.cpu_peers.protocol import serve_lines

__all__ = ["LlamaCppWorker"]

FLOAT32 = 0
"""ggml_type"""
ROOM = 512
"""Tokens that a sequence may grow by."""
BATCH = 2048
"""llama.cpp's default of tokens in one call."""
UBATCH = 512
"""And of tokens computed together."""


class LlamaCppWorker:
    """A `benchmarks.cpu_peers.protocol.EngineWorker`."""

    def __init__(self, gguf: str, threads: int) -> None:
        self._threads = threads
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            gguf.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"llama.cpp can't load {gguf}")
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        for i in range(BATCH):
            self._batch.n_seq_id[i] = 1
        self._context: Any = None
        self._next: list[int] = []
        self._position = 0

    def about(self) -> dict[str, Any]:
        """Settings that a reader must know to compare."""
        version = llama_cpp.__version__
        return {"llama_cpp_python": version, "threads": self._threads, "n_ubatch": UBATCH, "kv": "f32"}

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The first `count` tokens that follow a prompt."""
        self.open([prompt])
        drawn = [self._next[0]]
        while len(drawn) < count:
            self._step()
            drawn.append(self._next[0])
        self.close()
        return drawn

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to its first token; making the context is not counted."""
        self._make_context(1, len(prompt))
        start = time.perf_counter()
        self._prompt(prompt, 0)
        seconds = time.perf_counter() - start
        self.close()
        return seconds

    def open(self, prompts: Sequence[Sequence[int]]) -> None:
        """Compute prompts of one length, one sequence each, and draw a token of each."""
        self._make_context(len(prompts), len(prompts[0]))
        self._next = [self._prompt(prompt, sequence) for sequence, prompt in enumerate(prompts)]
        self._position = len(prompts[0])

    def steps(self, count: int) -> float:
        """Seconds of so many steps, in each of which every open sequence draws a token."""
        start = time.perf_counter()
        for _ in range(count):
            self._step()
        return time.perf_counter() - start

    def close(self) -> None:
        """Drop the open sequences and the context."""
        llama_cpp.llama_free(self._context)
        self._context = None

    def _make_context(self, sequences: int, length: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = sequences
        params.n_ctx = sequences * (length + ROOM)
        params.n_batch, params.n_ubatch = BATCH, UBATCH
        params.n_threads = params.n_threads_batch = self._threads
        params.type_k = params.type_v = FLOAT32
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit("llama.cpp can't make a context")

    def _prompt(self, prompt: Sequence[int], sequence: int) -> int:
        """Compute a prompt in as few calls as there may be; the token that follows."""
        batch = self._batch
        for start in range(0, len(prompt), BATCH):
            part = prompt[start : start + BATCH]
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.logits[i] = token, start + i, 0
                batch.seq_id[i][0] = sequence
            batch.logits[len(part) - 1] = 1
            self._decode()
        return self._draw(len(part) - 1)

    def _step(self) -> None:
        batch = self._batch
        batch.n_tokens = len(self._next)
        for i, token in enumerate(self._next):
            batch.token[i], batch.pos[i], batch.logits[i] = token, self._position, 1
            batch.seq_id[i][0] = i
        self._decode()
        self._next = [self._draw(i) for i in range(len(self._next))]
        self._position += 1

    def _decode(self) -> None:
        code = llama_cpp.llama_decode(self._context, self._batch)
        if code:
            raise SystemExit(f"llama_decode gave {code}")

    def _draw(self, index: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(logits, (self._vocab,)).argmax())


if __name__ == "__main__":
    serve_lines(lambda: LlamaCppWorker(sys.argv[1], int(sys.argv[2])))

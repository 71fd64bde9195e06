"""transformers on Kimi-Linear in float32, in the peers' environment: CHECKPOINT THREADS."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.cpu_peers.protocol import serve_lines

__all__ = ["TransformersWorker"]


class TransformersWorker:
    """A `benchmarks.cpu_peers.protocol.EngineWorker`."""

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        # Where fla is installed, transformers binds its Triton kernels, which need a GPU.
        sys.modules["fla"] = None  # type: ignore[assignment]
        module = importlib.import_module("transformers.models.kimi_linear.modeling_kimi_linear")
        self._model = module.KimiLinearForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._threads = threads
        self._cache: Any = None
        self._next = torch.empty(0, 1, dtype=torch.int64)

    def about(self) -> dict[str, Any]:
        """Settings that a reader must know to compare."""
        version = importlib.import_module("transformers").__version__
        attention = self._model.config._attn_implementation  # noqa: SLF001 - the only name it has
        return {"transformers": version, "threads": self._threads, "attention": attention}

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The first `count` tokens that follow a prompt."""
        self.open([prompt])
        drawn = [int(self._next)]
        while len(drawn) < count:
            self._step()
            drawn.append(int(self._next))
        self.close()
        return drawn

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to its first token."""
        start = time.perf_counter()
        self.open([prompt])
        seconds = time.perf_counter() - start
        self.close()
        return seconds

    def open(self, prompts: Sequence[Sequence[int]]) -> None:
        """Compute one prompt and repeat what it leaves: prompts of their own take a minute at batch 32.

        Sequences that are alike choose the same experts, which can only help.
        """
        self._forward(torch.tensor([list(prompts[0])]))
        if len(prompts) > 1:
            self._cache.reorder_cache(torch.zeros(len(prompts), dtype=torch.int64))
            self._next = self._next.repeat(len(prompts), 1)

    def steps(self, count: int) -> float:
        """Seconds of so many steps, in each of which every open sequence draws a token."""
        start = time.perf_counter()
        for _ in range(count):
            self._step()
        return time.perf_counter() - start

    def close(self) -> None:
        """Drop the open sequences."""
        self._cache = None

    def _step(self) -> None:
        self._forward(self._next)

    def _forward(self, tokens: torch.Tensor) -> None:
        """tokens: [sequences, tokens]."""
        out = self._model(tokens, cache=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = out.cache
        self._next = out.logits[:, -1].argmax(dim=-1, keepdim=True)


if __name__ == "__main__":
    serve_lines(lambda: TransformersWorker(sys.argv[1], int(sys.argv[2])))

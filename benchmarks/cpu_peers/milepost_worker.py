"""Milepost's engine as users get it, step loop and scheduler included: CHECKPOINT OPTIONS.

OPTIONS is JSON: fields of `EngineConfig`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.cpu_peers.protocol import serve_lines
from milepost.config import EngineConfig
from milepost.llm import load_engine
from milepost.types import Request, SamplingParams

__all__ = ["MilepostWorker"]

UNENDING = 4096
"""More tokens than any measurement draws, so that no sequence ends while the clock runs."""


class MilepostWorker:
    """A `benchmarks.cpu_peers.protocol.EngineWorker`."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        self._loaded = load_engine(EngineConfig(model=folder, **options))
        self._engine = self._loaded.engine
        self._open: list[str] = []
        self._count = 0

    def about(self) -> dict[str, Any]:
        """Settings that a reader must know to compare."""
        config = self._loaded.config
        names = ("dtype", "kv_dtype", "weights", "threads", "kernels", "max_num_batched_tokens")
        return {name: getattr(config, name) for name in names}

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The first `count` tokens that follow a prompt."""
        self._submit(prompt, count)
        drawn: list[int] = []
        while self._engine.has_work:
            for output in self._engine.step():
                drawn.extend(output.token_ids)
        return drawn

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to its first token."""
        start = time.perf_counter()
        self._submit(prompt, 1)
        while self._engine.has_work:
            self._engine.step()
        return time.perf_counter() - start

    def open(self, prompts: Sequence[Sequence[int]]) -> None:
        """Compute prompts and draw tokens until every sequence has one."""
        self._open = [self._submit(prompt, UNENDING) for prompt in prompts]
        waiting = set(self._open)
        while waiting:
            waiting -= {output.request_id for output in self._engine.step() if output.token_ids}

    def steps(self, count: int) -> float:
        """Seconds of so many steps, in each of which every open sequence draws a token."""
        start = time.perf_counter()
        drawn = sum(len(output.token_ids) for _ in range(count) for output in self._engine.step())
        seconds = time.perf_counter() - start
        if drawn != count * len(self._open):
            raise RuntimeError(f"{drawn} tokens in {count} steps of {len(self._open)} sequences")
        return seconds

    def close(self) -> None:
        """Drop the open sequences."""
        for name in self._open:
            self._engine.abort(name)
        self._open = []

    def _submit(self, prompt: Sequence[int], max_tokens: int) -> str:
        self._count += 1
        name = f"r{self._count}"
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self._engine.submit(Request(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling))
        return name


if __name__ == "__main__":
    serve_lines(lambda: MilepostWorker(sys.argv[1], json.loads(sys.argv[2])))

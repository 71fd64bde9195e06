"""Lines of JSON between the benchmark and a process that holds an engine; standard library only.

A request is ``{"call": NAME, ...arguments}``, an answer ``{"result": ...}``. The first answer comes
unasked when the engine is loaded. Whatever libraries print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["EngineWorker", "serve_lines"]


class EngineWorker(Protocol):
    """What every engine's worker can do; calls by name, arguments as keywords."""

    def about(self) -> dict[str, Any]:
        """Settings that a reader must know to compare."""
        ...

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The first `count` tokens that follow a prompt."""
        ...

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to its first token."""
        ...

    def open(self, prompts: Sequence[Sequence[int]]) -> None:
        """Compute prompts, one sequence each, and draw a token of each."""
        ...

    def steps(self, count: int) -> float:
        """Seconds of so many steps, in each of which every open sequence draws a token."""
        ...

    def close(self) -> None:
        """Drop the open sequences."""
        ...


def serve_lines(load: Callable[[], object]) -> None:
    """Answer calls on what `load` returns until stdin ends.

    Args:
        load: builds the object whose methods are called.
    """
    # Libraries write to file descriptor 1 past Python: it becomes stderr, and answers get the real one.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = load()
    _answer(answers, None)
    for line in sys.stdin:
        request = json.loads(line)
        method = getattr(worker, request.pop("call"))
        _answer(answers, method(**request))


def _answer(stream: Any, result: object) -> None:  # noqa: ANN401 - a text stream, whatever its class
    stream.write(json.dumps({"result": result}) + "\n")
    stream.flush()

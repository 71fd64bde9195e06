"""Runs in a process of its own: prints the peak resident memory at each stage of an engine's life."""

from __future__ import annotations

import json
import resource
import sys

__all__ = ["main"]


def main(subject: str) -> None:
    """Load a subject, answer one prompt of 2,048 tokens, print the peaks in bytes as JSON."""
    from benchmarks.engine_runs import ARENA, PREFILL_TOKENS, prompt_request, run_all
    from benchmarks.subjects import folder_of
    from milepost.config import EngineConfig
    from milepost.llm import load_engine

    peaks = {"imports": _peak()}
    loaded = load_engine(EngineConfig(model=str(folder_of(subject)), memory=ARENA))
    peaks["loaded"] = _peak()
    run_all(loaded, [prompt_request("one", PREFILL_TOKENS, 16)])
    peaks["answered"] = _peak()
    peaks["arena_bytes"] = loaded.config.memory_bytes
    loaded.engine.close()
    print(json.dumps(peaks))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1])

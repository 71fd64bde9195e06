"""Runs in a process of its own: prints the peak resident memory at each stage of an engine's life."""

from __future__ import annotations

import json
import sys
from pathlib import Path

__all__ = ["main", "peak_bytes"]


def main(subject: str) -> None:
    """Load a subject, answer one prompt of 2,048 tokens, print the peaks in bytes as JSON."""
    from benchmarks.engine_runs import ARENA, PREFILL_TOKENS, prompt_request, run_all
    from benchmarks.subjects import folder_of
    from milepost.config import EngineConfig
    from milepost.llm import load_engine

    peaks = {"imports": peak_bytes()}
    loaded = load_engine(EngineConfig(model=str(folder_of(subject)), memory=ARENA))
    peaks["loaded"] = peak_bytes()
    run_all(loaded, [prompt_request("one", PREFILL_TOKENS, 16)])
    peaks["answered"] = peak_bytes()
    peaks["arena_bytes"] = loaded.config.memory_bytes
    loaded.engine.close()
    print(json.dumps(peaks))


def peak_bytes() -> int:
    """The most resident memory that this process has had."""
    # Not ru_maxrss: that one starts from the peak of the process that started this one.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status tells no VmHWM; this benchmark needs Linux.")


if __name__ == "__main__":
    main(sys.argv[1])

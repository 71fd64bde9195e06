"""Prints which kernels the shipped model's first requests compile or load, one a line; run as a program.

    python -m tests.e2e.serve_after_warm_up THREADS

In a process of its own, because every kernel that an earlier test has used is there already.
"""

from __future__ import annotations

import gc
import sys

from milepost.cli.shipped_model import shipped_model
from milepost.kernels.jit import Kernel
from milepost.llm import LLM
from milepost.types import SamplingParams

LONG = "The code for amber is 7412. " + "The old river stood near the lamp. " * 150
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.7, max_tokens=8, seed=3, ignore_eos=True)


def compiled() -> set[tuple[str, bool, str]]:
    """Name, whether it uses threads, and argument types of every kernel that can run now."""
    kernels = [thing for thing in gc.get_objects() if type(thing) is Kernel]
    return {
        (f"{kernel._function.__module__}.{kernel._function.__name__}", parallel, str(types))
        for kernel in kernels
        for parallel, variant in kernel._compiled.items()
        for types in variant.signatures  # type: ignore[attr-defined]
    }


def serve(llm: LLM) -> None:
    """Cold, hit, long, short, alone and together; snapshots, copies, chunks and single tokens."""
    for prompt in ("a", "What is the code for amber?", "What is the code for amber?", LONG, LONG + "?"):
        llm.generate(prompt, GREEDY)
    llm.generate([f"{number} {LONG[: 97 * number]}" for number in range(1, 20)], SAMPLED)


def main() -> None:
    """Entry point."""
    with LLM(shipped_model(), memory="64MiB", threads=int(sys.argv[1])) as llm:
        before = compiled()
        serve(llm)
        for name, parallel, types in sorted(compiled() - before):
            sys.stdout.write(f"{name} parallel={parallel} {types}\n")
        sys.stdout.write(f"{len(before)} before\n")


if __name__ == "__main__":
    main()

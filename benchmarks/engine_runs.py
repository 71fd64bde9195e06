"""Speed of the engine without a server: prefill, decode, first token, peak memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.results import Result
from benchmarks.subjects import REPOSITORY, SUBJECTS, folder_of, num_parameters
from milepost.config import EngineConfig
from milepost.llm import LoadedEngine, load_engine
from milepost.types import Request, SamplingParams

__all__ = [
    "ARENA",
    "PREFILL_TOKENS",
    "decode",
    "first_token",
    "memory",
    "prefill",
    "prompt_request",
    "run_all",
]

PREFILL_TOKENS = 2048
DECODE_CONTEXT = 512
DECODE_STEPS = 64
BATCHES = (1, 8)
REPEATS = 5
ARENA = "512MiB"


@contextmanager
def running(subject: str) -> Iterator[LoadedEngine]:
    """A loaded engine that has run once: the first steps compile and touch memory."""
    loaded = load_engine(EngineConfig(model=str(folder_of(subject)), memory=ARENA))
    try:
        run_all(loaded, [prompt_request("warm", PREFILL_TOKENS, 4), prompt_request("warm2", 10, 4)])
        yield loaded
    finally:
        loaded.engine.close()


def prefill() -> Iterator[Result]:
    """Prompt tokens per second of one prompt of 2,048 tokens on an idle engine."""
    for subject in SUBJECTS:
        with running(subject) as loaded:
            seconds = [
                run_all(loaded, [prompt_request(f"p{i}", PREFILL_TOKENS, 1, seed=i)]) for i in range(REPEATS)
            ]
            yield Result(
                benchmark="prefill",
                subject=subject,
                quantity=f"prompt of {PREFILL_TOKENS}",
                unit="tokens/s",
                samples=[PREFILL_TOKENS / second for second in seconds],
                settings=_settings(loaded, subject),
            )


def decode() -> Iterator[Result]:
    """Drawn tokens per second of 1 and of 8 sequences at context 512, prompts not counted."""
    for subject in SUBJECTS:
        with running(subject) as loaded:
            for batch in BATCHES:
                yield Result(
                    benchmark="decode",
                    subject=subject,
                    quantity=f"batch {batch}",
                    unit="tokens/s",
                    samples=[_decode_speed(loaded, batch, repeat) for repeat in range(REPEATS)],
                    settings=_settings(loaded, subject) | {"context": DECODE_CONTEXT, "steps": DECODE_STEPS},
                )


def first_token() -> Iterator[Result]:
    """Milliseconds from a request to its first token on an idle engine (TTFT), by prompt length."""
    for subject in SUBJECTS:
        with running(subject) as loaded:
            for length in (64, 256, 1024):
                requests = [prompt_request(f"f{i}", length, 1, seed=i) for i in range(REPEATS)]
                yield Result(
                    benchmark="first-token",
                    subject=subject,
                    quantity=f"prompt of {length}",
                    unit="ms",
                    samples=[1e3 * run_all(loaded, [request]) for request in requests],
                    settings=_settings(loaded, subject),
                )


def memory() -> Iterator[Result]:
    """Peak resident memory of a process of its own that loads a model and answers one long prompt."""
    for subject in SUBJECTS:
        folder_of(subject)  # written here, so that the writing is not measured
        command = [sys.executable, "-m", "benchmarks.peak_memory", subject]
        output = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
        report = json.loads(output)
        settings = {"parameters": num_parameters(subject), "checkpoint_bytes": _checkpoint_bytes(subject)}
        for quantity in ("imports", "loaded", "answered"):
            yield Result(
                benchmark="memory",
                subject=subject,
                quantity=f"peak when {quantity}",
                unit="MB",
                samples=[report[quantity] / 1e6],
                settings=settings | {"arena_bytes": report["arena_bytes"]},
            )


def _checkpoint_bytes(subject: str) -> int:
    return sum(path.stat().st_size for path in folder_of(subject).glob("*.safetensors"))


def prompt_request(name: str, length: int, max_tokens: int, *, seed: int = 0) -> Request:
    """A greedy request for exactly `max_tokens` tokens after a random prompt of `length` tokens."""
    draw = random.Random(seed)
    tokens = tuple(draw.randrange(256) for _ in range(length))
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=tokens, sampling=sampling)


def run_all(loaded: LoadedEngine, requests: list[Request]) -> float:
    """Seconds that the engine takes for all of them together."""
    start = time.perf_counter()
    for request in requests:
        loaded.engine.submit(request)
    while loaded.engine.has_work:
        loaded.engine.step()
    return time.perf_counter() - start


def _decode_speed(loaded: LoadedEngine, batch: int, repeat: int) -> float:
    engine = loaded.engine
    # More tokens than are timed, so that no sequence ends before the clock is stopped.
    limit = DECODE_STEPS + 2 * batch + 8
    names = {f"d{i}" for i in range(batch)}
    for i, name in enumerate(sorted(names)):
        engine.submit(prompt_request(name, DECODE_CONTEXT, limit, seed=batch * repeat + i))
    started: set[str] = set()
    while started != names:
        started |= {output.request_id for output in engine.step() if output.token_ids}
    start = time.perf_counter()
    drawn = sum(len(output.token_ids) for _ in range(DECODE_STEPS) for output in engine.step())
    seconds = time.perf_counter() - start
    for name in names:
        engine.abort(name)
    return drawn / seconds


def _settings(loaded: LoadedEngine, subject: str) -> dict[str, object]:
    config = loaded.config
    return {
        "parameters": num_parameters(subject),
        "dtype": config.dtype,
        "kv_dtype": config.kv_dtype,
        "threads": config.threads,
        "kernels": config.kernels,
        "token_budget": config.max_num_batched_tokens,
        "block_size": loaded.layout.block_size,
    }

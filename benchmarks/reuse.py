"""Time to the first token when a prompt was seen before, wholly or in part, by layout and match unit.

The sides are whole engines in one process that take turns, sample by sample. At each length a fresh
random prompt runs four times on each side, from an empty cache:

    cold      as it is: nobody has seen it
    resend    the same again
    hit       the same and 64 tokens more: the next turn of a conversation
    fork      its first three quarters, some tokens more or less, and then another quarter

The last row is the classic one: prompts of 5,200 tokens that share 5,000, which blocks of 6,000 miss.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import Result
from benchmarks.subjects import CLASSIC, folder_of
from milepost.config import EngineConfig
from milepost.config_json import read_model_spec
from milepost.llm import LoadedEngine, load_engine
from milepost.memory.named_layout import named_layout
from milepost.types import Request, SamplingParams

__all__ = ["reuse"]

ARENA = "1GiB"
THREADS = 1  # sides are compared: threads that wait for a core of a shared machine would drown the difference
CONTEXT = 32_768
LENGTHS = (1024, 4096, 16_384)
REPEATS = 3
TURN = 64
SHARED, OWN = 5000, 200
VOCAB = 768

Tokens = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Side:
    """One engine of the comparison: its name and the options that make it."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What one request took: milliseconds to its only token, and prompt tokens computed for it."""

    milliseconds: float
    computed: int


def reuse() -> Iterator[Result]:
    """Milliseconds to the first token: cold, resend, hit, fork; cache off, paged and aligned."""
    folder = folder_of(CLASSIC)
    sides = sides_of(folder)
    with ExitStack() as stack:
        engines = {side: stack.enter_context(closing(_Asked(folder, side))) for side in sides}
        for engine in engines.values():
            engine.ask(_tokens(random.Random(-1), max(LENGTHS)))  # the first steps compile and touch memory
        for length in LENGTHS:
            yield from _results(engines, f"{length:,}", [_prompts(length, i) for i in range(REPEATS)])
        shared = f"{SHARED:,} of {SHARED + OWN:,} shared"
        yield from _results(engines, shared, [_classic(i) for i in range(REPEATS)])


def sides_of(folder: Path) -> tuple[Side, ...]:
    """The sides; a design of whole blocks leaves its snapshots where blocks end."""
    block = aligned_block(folder)
    whole = {"layout": "aligned", "match_unit": "block", "snapshot_policy": f"every({block})"}
    return (
        Side("cache off", {"prefix_cache": False}),
        Side("paged, adaptive", {}),
        Side("aligned, whole blocks", whole),
        Side("aligned, unit of 16, adaptive", {"layout": "aligned", "match_unit": 16}),
    )


def aligned_block(folder: Path) -> int:
    """Tokens of a block of the aligned layout, as an engine with default options has it."""
    options = EngineConfig(model=str(folder)).layout_options()
    return named_layout("aligned", read_model_spec(folder), **options).block_size


class _Asked:
    """A running engine of one side."""

    def __init__(self, folder: Path, side: Side) -> None:
        config = EngineConfig(
            model=str(folder), memory=ARENA, max_model_len=CONTEXT, threads=THREADS, **side.options
        )
        self.loaded: LoadedEngine = load_engine(config)
        self._caches = config.prefix_cache
        self._count = 0

    def ask(self, prompt: Tokens) -> Answer:
        """Draw one token behind `prompt` on the idle engine."""
        self._count += 1
        sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        request = Request(request_id=str(self._count), prompt_token_ids=prompt, sampling=sampling)
        engine = self.loaded.engine
        start = time.perf_counter()
        engine.submit(request)
        outputs = [output for _ in iter(lambda: engine.has_work, False) for output in engine.step()]
        seconds = time.perf_counter() - start
        usage = outputs[-1].usage
        return Answer(1e3 * seconds, usage.prompt_tokens - usage.cached_tokens)

    def forget(self) -> None:
        """Empty the cache."""
        if self._caches:
            self.loaded.engine.reset_cache()

    def close(self) -> None:
        """Stop the engine."""
        self.loaded.engine.close()


def _results(
    engines: Mapping[Side, _Asked], subject: str, samples: list[dict[str, Tokens]]
) -> Iterator[Result]:
    """Every case of every sample on every side; the sides take turns."""
    answers: dict[tuple[str, str], list[Answer]] = {}
    for prompts in samples:
        for side, engine in engines.items():
            engine.forget()
            for case, prompt in prompts.items():
                answers.setdefault((case, side.name), []).append(engine.ask(prompt))
    sides = {side.name: engine.loaded for side, engine in engines.items()}
    for case in samples[0]:
        for name, loaded in sides.items():
            several = answers[case, name]
            for what, unit, numbers in (
                ("first token", "ms", [answer.milliseconds for answer in several]),
                ("computed", "tokens", [float(answer.computed) for answer in several]),
            ):
                yield Result(
                    benchmark="reuse",
                    subject=subject,
                    quantity=f"{case}: {name}: {what}",
                    unit=unit,
                    samples=numbers,
                    settings=_settings(loaded),
                )


def _settings(loaded: LoadedEngine) -> dict[str, object]:
    config, layout = loaded.config, loaded.layout
    return {
        "threads": config.threads,
        "arena_bytes": config.memory_bytes,
        "block_size": layout.block_size,
        "state_bytes": layout.state_bytes,
        "token_budget": config.max_num_batched_tokens,
    }


def _prompts(length: int, sample: int) -> dict[str, Tokens]:
    """The prompts of one sample, in their order; forks part at a token that no grid foresees."""
    draw = random.Random(f"{length}/{sample}")
    base = _tokens(draw, length)
    parted = length * 3 // 4 + draw.choice((-7, 5, 11))
    return {
        "cold": base,
        "resend": base,
        "hit": base + _tokens(draw, TURN),
        "fork": base[:parted] + _tokens(draw, length - parted),
    }


def _classic(sample: int) -> dict[str, Tokens]:
    draw = random.Random(f"classic/{sample}")
    shared = _tokens(draw, SHARED)
    return {
        "first": shared + _tokens(draw, OWN),
        "second": shared + _tokens(draw, OWN),
        "third": shared + _tokens(draw, OWN),
    }


def _tokens(draw: random.Random, count: int) -> Tokens:
    return tuple(draw.randrange(VOCAB) for _ in range(count))

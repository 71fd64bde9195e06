"""What the keys of the prefix cache cost: hashing a whole prompt, and growing by one token."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from benchmarks.results import Result
from milepost.prefix.keys import KeyHasher

__all__ = ["keys"]

TOKENS = 1_000_000
UNITS = (16, 64)
RUNS = 5
GROWN = 16 * 1024
"""Tokens that are appended one by one; a whole number of every unit."""


def keys() -> Iterator[Result]:
    """Milliseconds to hash a prompt of 1M tokens, nanoseconds for each token appended to it."""
    generator = random.Random(0)
    tokens = [generator.randrange(163_840) for _ in range(TOKENS)]
    for unit in UNITS:
        yield Result(
            benchmark="keys",
            subject=f"unit of {unit}",
            quantity=f"hash of {TOKENS:,} tokens",
            unit="ms",
            samples=[1e3 * _whole(tokens, unit) for _ in range(RUNS)],
        )
        yield Result(
            benchmark="keys",
            subject=f"unit of {unit}",
            quantity=f"one token more, behind {TOKENS:,}",
            unit="ns/token",
            samples=[1e9 * _one_more(tokens, unit) for _ in range(RUNS)],
            settings={"appended": GROWN},
        )


def _whole(tokens: list[int], unit: int) -> float:
    chain = KeyHasher(unit).chain()
    start = time.perf_counter()
    chain.extend(tokens)
    return time.perf_counter() - start


def _one_more(tokens: list[int], unit: int) -> float:
    """Seconds a token, mean over whole units: most tokens only find that their unit is not full yet."""
    grown = list(tokens)
    chain = KeyHasher(unit).chain()
    chain.extend(grown)
    start = time.perf_counter()
    for token in range(GROWN):
        grown.append(token)
        chain.extend(grown)
    return (time.perf_counter() - start) / GROWN

"""Sides that take turns: a machine whose speed wanders slows all of them, and ratios stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.results import Result

__all__ = ["OURS", "alternate", "compared"]

OURS = "Milepost"


def alternate(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each side measures in each round; every other round goes in the opposite order.

    Args:
        sides: a measurement by the side's name.
        rounds: turns of each side.
    """
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in order:
            samples[name].append(sides[name]())
    return samples


def compared(
    benchmark: str,
    subject: str,
    quantity: str,
    unit: str,
    samples: Mapping[str, list[float]],
    *,
    lower_is_better: bool,
    settings: Mapping[str, Any],
) -> Iterator[Result]:
    """Each side's samples, and how many times better ours is than each other's, round by round.

    Args:
        benchmark: as a result's, like the next three.
        subject: what was measured.
        quantity: what the numbers are.
        unit: of the numbers.
        samples: by side, a number a round; `OURS` is one of them.
        lower_is_better: the numbers are times, not speeds.
        settings: what else must be the same in a comparison.
    """
    for name, numbers in samples.items():
        yield Result(
            benchmark=benchmark,
            subject=subject,
            quantity=f"{quantity}: {name}",
            unit=unit,
            samples=numbers,
            settings=dict(settings),
        )
    ours = samples[OURS]
    for name, theirs in samples.items():
        if name == OURS:
            continue
        pairs = zip(ours, theirs, strict=True)
        yield Result(
            benchmark=benchmark,
            subject=subject,
            quantity=f"{quantity}: times better than {name}",
            unit="x",
            samples=[b / a if lower_is_better else a / b for a, b in pairs],
            settings=dict(settings),
        )

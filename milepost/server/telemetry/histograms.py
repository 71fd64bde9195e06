"""Histograms that cost the engine's thread next to nothing.

Prometheus' own client takes a lock for each sample; here one thread adds, with a search in a short tuple, and
any other reads. What is read while something is added may lack it, and never counts anything twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily

__all__ = ["CONTROL_BUCKETS", "COUNT_BUCKETS", "LATENCY_BUCKETS", "Histogram"]

# Seconds. From a small model's step on a laptop to a long prompt on a busy machine.
LATENCY_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75),
    *(1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 2560.0),
)
# Seconds of deciding: tens of microseconds for one request, some milliseconds for hundreds.
CONTROL_BUCKETS = tuple(mantissa * 10.0**exponent for exponent in range(-5, 0) for mantissa in (1, 2.5, 5))
# Tokens of a prompt, a reply or a step.
COUNT_BUCKETS = tuple(float(mantissa * 10**exponent) for exponent in range(7) for mantissa in (1, 2, 5))


class Histogram:
    """Counts of samples by size.

    Args:
        name: without the prefix.
        text: what is counted.
        buckets: upper limits, ascending; what is larger than the last has a bucket of its own.
    """

    def __init__(self, name: str, text: str, buckets: Sequence[float]) -> None:
        self.name = name
        self.text = text
        self._limits = tuple(buckets)
        self._counts = [0] * (len(self._limits) + 1)
        self._sum = 0.0

    @property
    def count(self) -> int:
        """Samples so far."""
        return sum(self._counts)

    def add(self, value: float, count: int = 1) -> None:
        """Add `count` samples of the same size."""
        self._counts[bisect_left(self._limits, value)] += count
        self._sum += value * count

    def family(self, prefix: str, labels: dict[str, str]) -> HistogramMetricFamily:
        """The samples as Prometheus wants them: each bucket counts what the smaller ones do, too."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for limit, count in zip((*self._limits, float("inf")), self._counts, strict=True):
            total += count
            buckets.append((_text(limit), total))
        family = HistogramMetricFamily(f"{prefix}:{self.name}", self.text, labels=[*labels])
        family.add_metric([*labels.values()], buckets, self._sum)
        return family


def _text(limit: float) -> str:
    return "+Inf" if limit == float("inf") else repr(limit)

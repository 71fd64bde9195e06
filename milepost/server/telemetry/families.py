"""Metrics that bear the same prefix and labels."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

__all__ = ["Families"]


class Families:
    """Makes metrics that bear the same prefix and labels.

    Args:
        prefix: before the colon of their names.
        labels: of each of their samples.
    """

    def __init__(self, prefix: str, labels: Mapping[str, str]) -> None:
        self.prefix = prefix
        self.labels = dict(labels)

    def gauge(self, name: str, text: str, value: float) -> Metric:
        """A metric of one sample that may go up and down."""
        return self._one(GaugeMetricFamily, name, text, value)

    def counter(self, name: str, text: str, value: float) -> Metric:
        """A metric of one sample that only ever grows; ``_total`` is put behind its name."""
        return self._one(CounterMetricFamily, name, text, value)

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """A gauge with a sample for each value of a label."""
        return self._many(GaugeMetricFamily, name, text, label, values)

    def counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """A counter with a sample for each value of a label."""
        return self._many(CounterMetricFamily, name, text, label, values)

    def _one(
        self, kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, text: str, value: float
    ) -> Metric:
        family = kind(f"{self.prefix}:{name}", text, labels=[*self.labels])
        family.add_metric([*self.labels.values()], value)
        return family

    def _many(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        label: str,
        values: Mapping[str, float],
    ) -> Metric:
        family = kind(f"{self.prefix}:{name}", text, labels=[*self.labels, label])
        for value, count in values.items():
            family.add_metric([*self.labels.values(), value], count)
        return family

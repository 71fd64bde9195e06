"""The server's own counters; what they say of whole requests is tested in test_life."""

from __future__ import annotations

import pytest

from milepost.server.metrics import Metrics
from tests.engine.harness import Setup


def sample(metrics: Metrics, name: str) -> float:
    values = [
        line.split()[1] for line in metrics.render().decode().splitlines() if line.startswith(f"{name} ")
    ]
    return float(values[0])


@pytest.mark.parametrize("groups", [[1, 1, 1, 1], [2, 2], [4], [1, 3]], ids=str)
def test_latencies_are_counted_once_a_token_however_tokens_come(groups: list[int]) -> None:
    """A slow reader gets several tokens at once."""
    metrics = Metrics(Setup({}).engine.stats)
    metrics.first_tokens(groups[0], 0.5)
    for group in groups[1:]:
        metrics.more_tokens(group, 0.25)
    assert sample(metrics, "milepost_output_tokens_total") == 4
    assert sample(metrics, "milepost_time_to_first_token_seconds_count") == 1
    assert sample(metrics, "milepost_time_to_first_token_seconds_sum") == 0.5
    assert sample(metrics, "milepost_inter_token_latency_seconds_count") == 3
    assert sample(metrics, "milepost_inter_token_latency_seconds_sum") == pytest.approx(
        0.25 * (len(groups) - 1)
    )

"""`budget` spends its snapshots better than equal distances do, however many there are."""

from __future__ import annotations

import pytest

from tests.sim.block_traces import random_trace, replay

PERIODS = (64, 128, 192, 256, 320, 448, 640, 1024)


@pytest.mark.parametrize("snapshots", [1, 2, 4])
def test_no_period_hits_more_with_as_few_snapshots(snapshots: int) -> None:
    """Over some traces together, of which none is that of the rule's making."""
    traces = [random_trace(seed, 120) for seed in range(3)]

    def totals(policy: str) -> tuple[int, int]:
        results = [replay(trace, policy) for trace in traces]
        return sum(r.snapshots_written for r in results), sum(r.hit_tokens for r in results)

    written, hit = totals(f"budget(snapshots={snapshots})")
    assert 0 < written <= snapshots * sum(len(trace.requests) for trace in traces)
    rivals = {period: totals(f"every({period})") for period in PERIODS}
    as_few = [hits for count, hits in rivals.values() if count <= written]
    assert as_few
    assert hit > max(as_few)

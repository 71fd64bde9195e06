"""The ring behind the page: rates and percentiles of each second, by a clock of its own."""

from __future__ import annotations

from milepost.engine.reports import FirstToken, StepReport
from milepost.server.telemetry.history import SAMPLES, History
from milepost.server.telemetry.metrics import RECENT_SAMPLES, Metrics
from tests.engine.harness import Setup, ask


class Scene:
    """An engine, its metrics and their history; time passes by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics()
        self.setup = Setup({"a": "wxyz"}, token_budget=2, clock=lambda: self.now, observer=self.metrics)
        self.history = History(self.metrics, self.setup.engine.stats, clock=lambda: self.now)
        self.history.sample()


def test_rates_are_per_second_and_latencies_those_of_the_second() -> None:
    scene = Scene()
    scene.setup.engine.submit(ask("a", (1, 2, 3), max_tokens=3))
    for _ in range(4):
        scene.now += 0.5
        scene.setup.engine.step()
    scene.metrics.http_error(429, "queue_full")
    scene.history.sample()
    scene.now += 1
    scene.history.sample()
    busy, idle = scene.history.since(0)
    # 3 prompt tokens in two steps, then one drawn token computed in each of two more, in two seconds.
    assert (busy.prompt_rate, busy.output_rate, busy.ended_rate) == (1.5, 1.5, 0.5)
    assert busy.ttft is not None
    assert busy.itl is not None
    assert (busy.ttft.p50, busy.itl.p99) == (1.0, 0.5)
    assert busy.refused_rates == {"queue_full": 0.5}
    assert (idle.prompt_rate, idle.output_rate, idle.refused_rates, idle.ttft) == (0, 0, {}, None)
    assert scene.history.since(1) == [idle]


def test_percentiles_weigh_how_often() -> None:
    scene = Scene()
    gaps = [0.01] * 90 + [0.5] * 9 + [2.0]
    first = (FirstToken(3.0, 5, 2),)
    step = StepReport(control_seconds=0.001, run_seconds=0.3, num_tokens=105, first_tokens=first, gaps=gaps)
    scene.metrics.stepped(step)
    scene.now += 1
    scene.history.sample()
    (moment,) = scene.history.since(0)
    assert moment.itl is not None
    assert (moment.itl.p50, moment.itl.p90, moment.itl.p99) == (0.01, 0.01, 0.5)
    assert moment.busy == 0.301
    assert moment.control is not None
    assert moment.control.p50 == 0.001


def test_it_is_bounded() -> None:
    scene = Scene()
    for _ in range(SAMPLES + 10):
        scene.now += 1
        scene.history.sample()
    kept = scene.history.since(0)
    assert len(kept) == SAMPLES
    assert kept[0].number == 10
    step = StepReport(control_seconds=0, run_seconds=0, num_tokens=1, first_tokens=(), gaps=(1.0,))
    for _ in range(RECENT_SAMPLES + 10):
        scene.metrics.stepped(step)
    assert len(scene.metrics.recent.gaps) == RECENT_SAMPLES, "nobody takes them"

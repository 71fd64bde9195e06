"""States in memory while requests run: sums by hand, and against what each step really holds."""

from __future__ import annotations

import pytest

from milepost.sim.models import find_model
from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.replay.state_watch import StateWatch
from milepost.sim.runs import RunSpec
from milepost.sim.traces.trace import Trace
from milepost.types import Batch, BatchResult
from tests.model_specs import SMALL
from tests.sim.block_traces import random_trace
from tests.sim.replay.test_simulation import LinearCost


def test_sums_by_hand() -> None:
    watch = StateWatch()
    watch.saw(0, writing=0, copying=0, cached=7, seconds=100.0)  # nobody runs
    watch.saw(1, writing=1, copying=0, cached=0, seconds=1.0)
    watch.saw(4, writing=0, copying=0, cached=2, seconds=98.0)
    watch.saw(2, writing=2, copying=2, cached=3, seconds=1.0)
    found = watch.use()
    assert found is not None
    running, needed = 1 + 4 * 98 + 2, 2 + 4 * 98 + 6
    assert found.seconds == 100.0
    assert (found.running_mean, found.running_peak) == (running / 100, 4)
    assert found.needed_mean == needed / running
    assert (found.needed_p99, found.needed_peak) == (2.0, 3.0)  # 99 of 100 seconds: all but the last
    assert (found.extra_mean, found.extra_p99, found.extra_peak) == (5 / 100, 1, 4)
    assert (found.kept_mean, found.kept_peak) == ((2 * 98 + 3) / running, 3)


def test_nobody_ran() -> None:
    watch = StateWatch()
    assert watch.use() is None
    watch.saw(0, writing=0, copying=0, cached=1, seconds=1.0)
    assert watch.use() is None


class Holdings:
    """Counts, in each step, what the scheduler and the cache hold, one by one."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._run = simulation._executor.run
        simulation._executor.run = self  # type: ignore[method-assign]
        self.seconds = self.running = self.needed = 0.0
        self.peak = 0

    def __call__(self, batch: Batch) -> BatchResult:
        result = self._run(batch)
        scheduler = self._simulation._scheduler
        running = scheduler._roster.running
        states = {page for sequence in running if sequence.pages for page in sequence.pages.state_table}
        for row in batch.rows:
            for order in row.snapshots:
                states.update(order.pages)
        for snapshot in self._simulation._setup.cache.index.snapshots:
            if snapshot.pins:
                states.update(snapshot.pages)
        needed = len(states) // self._simulation.parts.layout.pages_per_state
        spent = self._simulation._executor.seconds
        self.running += len(running) * spent
        self.needed += needed * spent
        self.peak = max(self.peak, needed - len(running))
        return result


@pytest.mark.parametrize("pages", [None, 60, 400])
@pytest.mark.parametrize("seed", range(3))
def test_needs_are_pages_that_can_not_be_evicted(seed: int, pages: int | None) -> None:
    """With a policy that leaves no spare ones: the distinct state pages that are leased or pinned."""
    trace = random_trace(seed, num_requests=80)
    page = parts_of(RunSpec(), trace, SMALL).layout.page_bytes
    spec = RunSpec(queueing=True, policy="turns+branch", budget_bytes=pages and pages * page)
    simulation = Simulation(spec, trace, parts_of(spec, trace, SMALL), LinearCost())
    holdings = Holdings(simulation)
    states = simulation.run().states
    assert states is not None
    assert states.needed_mean == pytest.approx(holdings.needed / holdings.running)
    assert states.extra_peak == holdings.peak > 0
    assert states.running_peak > 1


def test_only_a_queue_has_them() -> None:
    trace: Trace = random_trace(0, num_requests=5)
    spec = RunSpec(model="milepost-toy-k3")
    _, model = find_model(spec.model)
    assert Simulation(spec, trace, parts_of(spec, trace, model), LinearCost()).run().states is None


def test_the_warm_up_is_left_out() -> None:
    trace = random_trace(2, num_requests=40)
    whole, half = (
        Simulation(spec, trace, parts_of(spec, trace, SMALL), LinearCost()).run().states
        for spec in (RunSpec(queueing=True), RunSpec(queueing=True, warm_up=0.5))
    )
    assert whole is not None
    assert half is not None
    assert half.seconds < whole.seconds
    assert half.kept_mean > whole.kept_mean

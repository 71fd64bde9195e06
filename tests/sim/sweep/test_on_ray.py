"""The same sweep through Ray: a stand-in for its interface, and Ray itself where it is installed."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest

from milepost.errors import ConfigError, ExecutionError
from milepost.sim.sweep.on_ray import run_sweep_on_ray
from milepost.sim.sweep.sweep import SweepCallbacks, run_sweep
from milepost.sim.traces.trace import Trace
from tests.sim.block_traces import random_trace
from tests.sim.sweep.test_sweep import SPECS, failing, run_small, untimed


class StandIn(ModuleType):
    """Runs a task when asked for its value, the last one first; whatever crosses is pickled, as there."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.addresses: list[str] = []
        self.stored: list[bytes] = []
        self.is_up = False
        self.loses: int | None = None

    def init(self, *, address: str, **_more: Any) -> None:
        if address == "nowhere":
            raise ConnectionError("nobody answers")
        self.addresses.append(address)
        self.is_up = True

    def shutdown(self) -> None:
        self.is_up = False

    def put(self, value: object) -> int:
        self.stored.append(pickle.dumps(value))
        return len(self.stored) - 1

    def remote(self, function: Callable[..., object]) -> Any:
        stand_in = self

        class Task:
            def remote(self, spec: object, stored: int, *more: object) -> Callable[[], bytes]:
                sent = pickle.dumps(spec)

                def value() -> bytes:
                    trace = pickle.loads(stand_in.stored[stored])  # noqa: S301 - our own
                    return pickle.dumps(function(pickle.loads(sent), trace, *more))  # noqa: S301

                return value

        return Task()

    def wait(self, waiting: Sequence[object], *, num_returns: int) -> tuple[list[object], list[object]]:
        assert num_returns == 1
        return [waiting[-1]], [*waiting[:-1]]

    def get(self, task: Callable[[], bytes]) -> object:
        if self.loses is not None:
            raise RuntimeError("the node died")
        return pickle.loads(task())  # noqa: S301


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    return stand_in


@pytest.fixture(scope="module")
def trace() -> Trace:
    return random_trace(3, num_requests=80)


def test_the_results_are_those_of_one_process_in_the_grid_s_order(ray: StandIn, trace: Trace) -> None:
    finished: list[int] = []
    outcomes: dict[int, int] = {}
    callbacks = SweepCallbacks(
        on_result=lambda index, _result: finished.append(index),
        on_outcomes=lambda index, every: outcomes.update({index: sum(one.hit_tokens for one in every)}),
    )
    results = run_sweep_on_ray(SPECS, trace, callbacks=callbacks, run=run_small)
    assert untimed(results) == untimed(run_sweep(SPECS, trace, jobs=1, run=run_small))
    assert finished == [3, 2, 1, 0]
    assert outcomes == {index: result.hit_tokens for index, result in enumerate(results)}
    assert len(ray.stored) == 1, "the trace travels once"
    assert ray.addresses == ["local"]
    assert not ray.is_up


def test_an_address_is_ray_s(ray: StandIn, trace: Trace) -> None:
    run_sweep_on_ray(SPECS[:1], trace, address="ray://head:10001", run=run_small)
    assert ray.addresses == ["ray://head:10001"]
    with pytest.raises(ConfigError, match=r"no Ray cluster at nowhere: nobody answers.*ray start"):
        run_sweep_on_ray(SPECS, trace, address="nowhere", run=run_small)


def test_an_error_names_its_point(ray: StandIn, trace: Trace) -> None:
    with pytest.raises(ConfigError, match=r"^1MB last value paged: too small$"):
        run_sweep_on_ray(SPECS, trace, run=failing(lambda: ConfigError("too small")))
    assert not ray.is_up


def test_a_lost_task_is_told(ray: StandIn, trace: Trace) -> None:
    ray.loses = 0
    with pytest.raises(ExecutionError, match="1MB turns value paged: Ray has lost the task: the node died"):
        run_sweep_on_ray(SPECS, trace, run=run_small)
    assert not ray.is_up


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, trace: Trace) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'milepost\[ray\]'"):
        run_sweep_on_ray(SPECS, trace)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_ray_itself(trace: Trace) -> None:
    assert untimed(run_sweep_on_ray(SPECS, trace, run=run_small)) == untimed(
        run_sweep(SPECS, trace, jobs=1, run=run_small)
    )

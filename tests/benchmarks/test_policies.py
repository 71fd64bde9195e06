"""The table of policies: which rows there are, and how the default compares with the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import policies
from benchmarks.on_traces import OnTraces
from benchmarks.policies import BASE, BEST, DEFAULT, share_won, specs_of
from milepost.errors import ConfigError
from milepost.sim.clairvoyant.oracle import CLAIRVOYANT
from tests.sim.block_traces import random_trace


@pytest.mark.parametrize("quick", [False, True])
def test_every_point_is_there_once(quick: bool) -> None:
    specs = specs_of(quick=quick)
    points = [(spec.policy, spec.eviction, spec.budget_bytes) for spec in specs]
    assert len(points) == len({*points})
    budgets = {spec.budget_bytes for spec in specs} - {None}
    for row in (DEFAULT, BASE, BEST):
        assert {budget for *names, budget in points if tuple(names) == row} >= budgets
    assert {budget for policy, _, budget in points if policy == CLAIRVOYANT} == {*budgets, None}


def test_the_share_is_that_of_what_could_be_won() -> None:
    rates = {(*BASE, "200 GB"): 10.0, (*DEFAULT, "200 GB"): 16.0, (*BEST, "200 GB"): 34.0}
    assert share_won(rates, "200 GB") == 0.25
    assert share_won({(*row, "x"): 5.0 for row in (BASE, DEFAULT, BEST)}, "x") is None


def test_points_run_in_processes_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """With K3's sizes no budget fills on a trace this small."""
    trace = random_trace(0, 12)
    specs = [spec for spec in specs_of(quick=True) if spec.policy in (CLAIRVOYANT, "adaptive", "branch")]
    results = policies._run_all(specs, trace)
    assert [(r.policy, r.eviction, r.budget_bytes) for r in results] == [
        (spec.policy, spec.eviction, spec.budget_bytes) for spec in specs
    ]
    table = policies._table("small", results)
    assert table.row_count == len({(spec.policy, spec.eviction) for spec in specs}) + 2
    assert "clairvoyant, clairvoyant, 200 GB" in capsys.readouterr().err
    quantities = {policies._result(result).quantity for result in results}
    assert "adaptive, value: hit" in quantities


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mooncake-conversation"):
        next(policies.policies(OnTraces(tmp_path)))

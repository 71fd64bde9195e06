"""Reports of real runs, over a small synthetic trace: the figures are the runs' own."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from milepost.sim.cost.step_work import StepWork
from milepost.sim.recommend import recommend
from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.reports import table, to_json, write_csv
from milepost.sim.reports.html import to_html
from milepost.sim.reports.labels import Names
from milepost.sim.reports.looks import Look, looks_of
from milepost.sim.reports.plots import front
from milepost.sim.runs import RunResult, RunSpec
from tests.model_specs import SMALL
from tests.sim.block_traces import random_trace
from tests.sim.reports.results import make_result


class Steady:
    """A millisecond a step and a microsecond a token."""

    name = "steady"

    def seconds(self, work: StepWork) -> float:
        return 1e-3 + 1e-6 * work.tokens


BUDGET = 40_000_000


@pytest.fixture(scope="module")
def results() -> list[RunResult]:
    trace = random_trace(7)
    points = [("last", "lru"), ("turns+branch", "lru"), ("adaptive", "value")]
    specs = [
        RunSpec(policy=policy, eviction=eviction, budget_bytes=budget)
        for policy, eviction in points
        for budget in (BUDGET, None)
    ]
    return [Simulation(spec, trace, parts_of(spec, trace, SMALL), Steady()).run() for spec in specs]


def test_hits_and_losses_of_a_run_are_its_input(results: list[RunResult]) -> None:
    for fields in json.loads(to_json(results)):
        assert fields["hit_tokens"] + sum(fields["losses"].values()) == fields["input_tokens"]


def test_the_table_shows_every_run(results: list[RunResult]) -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(table(results, width=80))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(f"{result.hit_rate:.2%}" in text for result in results)


def test_csv_has_every_run(results: list[RunResult], tmp_path: Path) -> None:
    write_csv(results, tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(newline="") as file:
        assert [float(row["hit_rate"]) for row in csv.DictReader(file)] == [r.hit_rate for r in results]


def test_the_page_draws_the_runs_figures(results: list[RunResult]) -> None:
    page = to_html(results, command="milepost simulate <trace>")
    assert "milepost simulate &lt;trace&gt;" in page
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    (workload,) = json.loads(found[1])["workloads"]
    (hits,) = workload["plots"]["hits"]["views"]
    drawn = {unescape(trace["name"]): trace["y"] for trace in hits["data"]}
    for i, name in enumerate(("last · lru", "turns+branch · lru", "adaptive · value")):
        assert drawn[name] == pytest.approx([r.hit_rate for r in results[2 * i : 2 * i + 2]], rel=1e-4)
    for view, budget in zip(workload["plots"]["losses"]["views"], (BUDGET, None), strict=True):
        runs = [result for result in results if result.budget_bytes == budget]
        for row in range(len(runs)):
            assert sum(bar["x"][row] for bar in view["data"]) == pytest.approx(1, abs=1e-3)
    depth = workload["runs"][0]["plots"]["depth"]["views"][0]["data"]
    assert sum(depth[0]["y"]) == results[0].snapshots_written
    assert sum(depth[1]["y"]) == results[0].snapshots_used


def test_a_page_is_one_file_with_one_library_and_no_address_to_load_from(results: list[RunResult]) -> None:
    page = to_html(results)
    assert page.count('id="library"') == 1
    assert "{{" not in page.replace(re.findall(r'id="library">(.*?)</script>', page, re.DOTALL)[0], "")
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert len(page) < 2_500_000


def test_colours_follow_the_policy_through_all_plots(results: list[RunResult]) -> None:
    found = re.search(r'id="data">(.*?)</script>', to_html(results), re.DOTALL)
    assert found
    plots = json.loads(found[1])["workloads"][0]["plots"]
    colours: dict[str, set[str]] = {}
    for name in ("hits", "latency", "pareto"):
        for view in plots[name]["views"]:
            for trace in view["data"]:
                if trace["name"] != "front":
                    colours.setdefault(trace["name"], set()).add(trace["marker"]["color"])
    assert [len(each) for each in colours.values()] == [1, 1, 1]
    assert len(set.union(*colours.values())) == 3


def test_the_best_run_is_recommended(results: list[RunResult]) -> None:
    chosen = recommend(results, results[0], BUDGET)
    assert chosen.best.hit_rate == max(r.hit_rate for r in results if r.budget_bytes == BUDGET)
    assert "milepost serve --snapshot-policy" in chosen.text()


def looks(results: list[RunResult]) -> list[Look]:
    names = Names(results)
    found = looks_of(results, names)
    return [found[names.series(result)] for result in results]


def test_a_policy_keeps_its_colour_over_its_variants_and_presets_are_dotted() -> None:
    lru, value, other, preset = looks(
        [
            make_result(eviction="lru"),
            make_result(eviction="value"),
            make_result(policy="turns", eviction="lru"),
            make_result(policy="turns", preset="vllm"),
        ]
    )
    assert lru.colour == value.colour != other.colour
    assert (lru.dash, lru.symbol) != (value.dash, value.symbol)
    assert preset.dash == "dot"
    assert preset.colour not in {lru.colour, other.colour}


def test_variants_of_the_only_policy_have_colours_of_their_own() -> None:
    lru, value = looks([make_result(eviction="lru"), make_result(eviction="value")])
    assert lru.colour != value.colour


def test_many_policies_are_told_apart_by_more_than_colour() -> None:
    found = looks([make_result(policy=f"every({i})") for i in range(1, 41)])
    assert len({(look.colour, look.dash, look.symbol) for look in found}) == 40


@pytest.mark.parametrize(
    ("points", "best"),
    [
        ([], set()),
        ([(1, 1)], {0}),
        ([(1, 1), (2, 1)], {0}),
        ([(1, 1), (1, 2)], {1}),
        ([(1, 1), (2, 2), (3, 1.5)], {0, 1}),
        ([(1, 1), (1, 1)], {0, 1}),
        ([(3, 3), (1, 1), (2, 2)], {0, 1, 2}),
    ],
)
def test_front(points: list[tuple[float, float]], best: set[int]) -> None:
    assert front(points) == best

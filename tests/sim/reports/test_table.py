"""The table of results, at a wide terminal and at a narrow one."""

from __future__ import annotations

import io
import math
from itertools import pairwise

import pytest
from rich.console import Console

from milepost.sim.reports import table
from milepost.sim.reports.labels import Names, baselines, bytes_text, count_text, seconds_text
from milepost.sim.runs import RunResult
from tests.sim.reports.results import GB, make_result, make_sweep


def printed(results: list[RunResult], width: int, present: RunResult | None = None) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(table(results, present, width=width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_varies_is_a_column_and_the_rest_is_said_once() -> None:
    text = printed(make_sweep(), 200)
    head, caption = text.splitlines()[1], text.split("unlimited")[-1]
    for title in ("budget", "policy", "eviction", "hit rate", "gain", "states GB", "KV GB", "TTFT p90"):
        assert title in head
    assert "snaps/req" in head
    assert "layout" not in head
    assert "layout paged" in caption
    assert "trace conversation" in caption
    assert "12,031 requests, 144.8 M input tokens" in caption
    assert "never seen" in text


def test_gains_are_over_the_first_setting_at_the_same_budget() -> None:
    results = make_sweep()[8:16]  # turns+branch with lru, then with value, at four budgets
    lines = [line.split() for line in printed(results, 200).splitlines() if "never seen" in line]
    gains = [next(after for word, after in pairwise(line) if word.endswith("%")) for line in lines]
    assert gains == ["·"] * 4 + ["+2.20", "+1.40", "+1.20", "+0.00"]


def test_gains_are_over_the_present_setting_where_one_is_named() -> None:
    results = make_sweep()
    chosen = baselines(results, results[5])  # the preset sglang
    assert [base.preset for base in chosen] == ["sglang"] * len(results)
    assert [base.budget_bytes for base in chosen] == [result.budget_bytes for result in results]


def test_a_setting_that_was_not_run_at_a_budget_is_compared_all_the_same() -> None:
    first, other = make_result(0.2), make_result(0.3, policy="turns", budget_bytes=100 * GB)
    assert baselines([first, other]) == [first, first]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_number_is_cut_at_any_width(width: int) -> None:
    text = printed(make_sweep(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for result in make_sweep():
        assert f"{result.hit_rate:.2%}" in text
    assert ("No room for" in text) == (width < 200)


def test_names_of_results_are_no_markup() -> None:
    text = printed([make_result(policy="[red]x"), make_result(policy="[/]")], 120)
    assert "[red]x" in text
    assert "[/]" in text


def test_without_times_there_are_no_columns_for_them() -> None:
    text = printed(
        [make_result(0.1 * i, policy=str(i), ttft=None, tpot=None, goodput=None) for i in (1, 2)], 200
    )
    assert "TTFT" not in text
    assert "goodput" not in text


def test_no_and_one_result() -> None:
    assert "No results." in printed([], 80)
    assert "26.00%" in printed([make_result(0.26)], 80)


def test_names_are_short_and_tell_apart() -> None:
    results = make_sweep()
    names = Names(results)
    assert names.series(results[0]) == "vllm (preset)"
    assert names.series(results[8]) == "turns+branch · lru"
    assert names.run(results[-1]) == "adaptive · value · unlimited"
    assert len({names.run(result) for result in results}) == len(results)
    units = [make_result(match_unit=unit) for unit in (16, 512)]
    assert [Names(units).series(result) for result in units] == [
        "adaptive · match unit 16",
        "adaptive · match unit 512",
    ]


def test_names_of_presets_tell_apart_what_varies_within_one() -> None:
    results = [make_result(preset="vllm", match_unit=unit) for unit in (16, 512)] + [make_result()]
    assert len({Names(results).series(result) for result in results}) == 3


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (512e6, "512 MB"),
        (1.25e9, "1.25 GB"),
        (12.3e9, "12.3 GB"),
        (1600e9, "1,600 GB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_seconds_and_counts() -> None:
    assert [seconds_text(s) for s in (None, 0.0123, 0.45, 1.5, 250.0)] == [
        "-",
        "12.3 ms",
        "450 ms",
        "1.50 s",
        "250 s",
    ]
    assert [count_text(n) for n in (12_031, 144_793_823, 3_012_680_174)] == ["12,031", "144.8 M", "3.0 G"]
    assert math.isfinite(float(count_text(5)))


def test_a_narrow_terminal_drops_what_follows_from_the_policy_before_gains() -> None:
    """A preset's layout and block say nothing that its name doesn't; gain and latency do."""
    presets = (
        ("", "value", "paged", 512),
        ("vllm", "lru", "aligned", 5760),
        ("sglang", "path-lru", "split", 512),
    )
    results = [
        make_result(
            0.2, preset=preset, eviction=eviction, layout=layout, block_size=block, budget_bytes=budget
        )
        for budget in (200 * GB, 800 * GB, None)
        for preset, eviction, layout, block in presets
    ]
    head = printed(results, 80).splitlines()[1]
    assert "gain" in head
    assert "TTFT p90" in head
    assert "layout" not in head
    evictions = [make_result(0.3), make_result(0.2, eviction="lru")]
    assert "eviction" in printed(evictions, 60).splitlines()[1], "nothing else tells these rows apart"


def test_a_row_that_is_alone_at_its_budget_has_no_gain() -> None:
    """The budget's part of a difference is no gain of the setting."""
    text = printed([make_result(0.2), make_result(0.4, preset="unlimited", budget_bytes=None)], 200)
    assert "+20.00" not in text


def test_small_losses_are_not_shown_as_none() -> None:
    text = printed([make_result(0.2, losses={"unseen": 800, "evicted_kv": 4}, input_tokens=1000)], 200)
    assert "KV evicted 0.4%" in text

"""What a plan of expert parallelism shows."""

from __future__ import annotations

import pytest

from milepost.planner.deployment import Deployment
from milepost.planner.moe.plan import plan_moe
from milepost.planner.moe.question import MoeQuestion
from milepost.planner.moe.report import moe_report
from milepost.planner.report import Report, Table


def report(**deployment: object) -> Report:
    return moe_report(plan_moe(MoeQuestion(deployment=Deployment(**deployment))))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def k3() -> Report:
    return report(data_parallel=32)


def tables(shown: Report) -> list[Table]:
    return [table for section in shown.sections for table in section.tables]


def table(shown: Report, section: str, title: str = "") -> Table:
    [found] = [
        one for part in shown.sections if part.title == section for one in part.tables if one.title == title
    ]
    return found


@pytest.mark.parametrize(
    "deployment",
    [
        {"data_parallel": 32},
        {"tensor_parallel": 8},
        {"model": "kimi-linear", "data_parallel": 4},
        {"model": "milepost-toy-k3", "hardware": "h100", "data_parallel": 4},
    ],
)
def test_every_row_has_a_cell_a_column(deployment: dict[str, object]) -> None:
    for one in tables(report(**deployment)):
        assert one.rows
        assert all(len(row) == len(one.columns) for row in one.rows)


def test_the_headline_answers(k3: Report) -> None:
    answers = dict(k3.headline)
    assert answers["expert parallel degree for decoding"] == "32"
    assert answers["expert parallel degree for prefill"] == "16"
    assert answers["dispatched and combined, a token and layer"] == "172.03 kB"


def test_the_recommended_row_is_marked(k3: Report) -> None:
    shown = table(k3, "Degrees in decoding", "Microseconds of a layer")
    assert shown.best is not None
    assert shown.rows[shown.best][0] == "32"
    assert shown.rows[0][0] == "1 (does not fit)"


def test_both_widths_stand_side_by_side(k3: Report) -> None:
    assert [row[1:] for row in table(k3, "Bytes").rows] == [("172.03 kB", "6,144"), ("344.06 kB", "3,072")]


def test_uneven_ranks_are_shown_by_load_and_by_time() -> None:
    question = MoeQuestion(deployment=Deployment(data_parallel=32), load="zipf(1)")
    found = plan_moe(question)
    known = {(one.ranks, one.phase, one.placement): one for one in found.balance}
    even, numbered = known[32, "prefill", "even"], known[32, "prefill", "numbered"]
    [row] = [row for row in table(moe_report(found), "Balance").rows if row[:2] == ("32", "prefill")]
    assert row[2] == f"{numbered.max_over_mean:.3f}"
    assert row[5] == f"{numbered.serial_seconds / even.serial_seconds - 1:+.1%}"
    assert numbered.serial_seconds > 2 * even.serial_seconds


def test_only_degrees_that_fit_are_balanced(k3: Report) -> None:
    assert {row[0] for row in table(k3, "Balance").rows} == {"16", "32"}


def test_published_times_stand_beside_the_formulas_for_k3_alone(k3: Report) -> None:
    published, *here = table(
        k3, "Tails under tensor parallelism", "Beside the published times on 8 ranks"
    ).rows
    assert published == ("published", "13.20", "10.62", "-19.5%")
    assert here[0] == ("here, 1 token", "18.36", "15.26", "-16.9%")
    assert [row[0] for row in here] == ["here, 1 token", "here, 8 tokens", "here, 16 tokens"]
    toy = report(model="milepost-toy-k3", hardware="h100", data_parallel=2)
    assert not any("published" in one.title for one in tables(toy))


def test_tails_are_shown_for_the_plans_own_ranks() -> None:
    shown = report(tensor_parallel=16, hardware="gb300")
    assert table(shown, "Tails under tensor parallelism", "Microseconds at TP16").rows

"""A plan as JSON: every field, plain values, nothing that JSON lacks."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from milepost.planner.render.as_json import to_json
from tests.planner.render.reports import StatesPlan, make_plan


def test_json_reads_back_as_the_plan() -> None:
    plan = make_plan('a < b " \\ \u2028 é')
    assert msgspec.convert(json.loads(to_json(plan)), StatesPlan) == plan


def test_a_field_and_a_derivation_take_a_line_each() -> None:
    plan = make_plan()
    lines = to_json(plan).splitlines()
    assert len(lines) == 2 + len(StatesPlan.__struct_fields__) + len(plan.derivations) + 1
    names = [json.loads(line.rstrip(","))["name"] for line in lines if line.startswith("  ")]
    assert names == [entry.name for entry in plan.derivations]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_no_finite_number_is_null(value: float) -> None:
    text = to_json(make_plan(step_seconds=value))
    assert json.loads(text)["step_seconds"] is None
    assert "Infinity" not in text
    assert "NaN" not in text


def test_huge_whole_numbers_keep_their_digits() -> None:
    assert f'"free_bytes": {10**30 + 1}' in to_json(make_plan(free_bytes=10**30 + 1))

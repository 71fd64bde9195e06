"""The benchmark of state slots, on a trace of a few requests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.on_traces import OnTraces
from benchmarks.state_slots import CASES, TRACE, markdown_table, state_slots
from milepost.errors import ConfigError


def test_measured_slots_lie_between_one_and_what_others_charge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {
            "timestamp": 500 * number,
            "input_length": 4 * 512,
            "output_length": 8,
            "hash_ids": [0, 1, 10 + 2 * number, 11 + 2 * number],
        }
        for number in range(24)
    ]
    with gzip.open(tmp_path / TRACE, "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    results = list(state_slots(OnTraces(folder=tmp_path, quick=True)))
    assert {result.subject for result in results} == {case.name for case in CASES}
    for case in CASES:
        found = {result.quantity: result.median for result in results if result.subject == case.name}
        assert 1.0 <= found["needed a request, mean"] < 5.0
        batches = [value for name, value in found.items() if name.startswith("batch at")]
        five, measured, one = batches[:3]
        assert five < measured <= one
        assert five == pytest.approx(one / 5, rel=0.4 if case.tensor_parallel > 1 else 0.1)
    assert capsys.readouterr().out.count("**") == 2 * (1 + 2 * len(CASES))


def test_the_trace_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"slots needs mooncake-conversation\.jsonl\.gz"):
        next(state_slots(OnTraces(folder=tmp_path)))


def test_a_table_of_markdown() -> None:
    assert markdown_table("T", ["a", "b"], [["1", "2"]]) == "\n**T**\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"

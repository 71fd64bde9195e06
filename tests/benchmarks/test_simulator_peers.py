"""The comparison of simulators, with a small trace and a stand-in for the other one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks.on_traces import OnTraces
from benchmarks.simulator_peers import TRACE, peer_hit_rates, simulator_peers
from milepost.errors import ConfigError


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with one small trace: four prompts, of which the last two begin as the first."""
    rows = [
        {"timestamp": 1000 * number, "input_length": 512 * len(ids), "output_length": 3, "hash_ids": ids}
        for number, ids in enumerate(([1, 2, 3], [7, 8], [1, 2, 4], [1, 2, 5]))
    ]
    with gzip.open(tmp_path / TRACE, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    return tmp_path


def stand_in(folder: Path, script: str) -> Path:
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def test_both_sides_stand_beside_each_other(traces: Path) -> None:
    points = [{"results": {"lru": {"hitRate": rate}}} for rate in (0.5, 0.625, 0.75)]
    python = stand_in(traces, f"echo '{json.dumps({'points': points})}'")
    results = list(simulator_peers(OnTraces(traces, python)))
    table = {(result.subject, result.quantity): result.median for result in results}
    # Two blocks of three in each of the second half's prompts.
    assert table["200 GB, second half", "stateless"] == pytest.approx(200 / 3)
    assert table["400 GB, second half", "kvcache-simulator 0.1.3"] == 62.5
    difference = table["200 GB, second half", "stateless less kvcache-simulator"]
    assert difference == pytest.approx(200 / 3 - 50)
    # Of eleven blocks: the third prompt finds that it parts, the fourth finds the state that it left.
    assert table["200 GB", "leaf + branch, LRU: ours"] == pytest.approx(100 * 2 / 11)
    assert table["1600 GB", "leaf + branch, LRU: published"] == 35.12
    assert ("800 GB", "Dynamo mocker, no state: ours") in table
    assert ("1600 GB", "Dynamo mocker, no state: ours") not in table


def test_the_other_one_is_asked_for_whole_budgets_in_gib(traces: Path) -> None:
    python = stand_in(traces, f'echo "$@" > {traces}/asked; echo \'{{"points": []}}\'')
    assert peer_hit_rates(python, traces / TRACE, (200, 400)) == {}
    asked = (traces / "asked").read_text().split()
    gib = [float(text) for text in asked[asked.index("--budgets-gib") + 1].split(",")]
    assert [round(number * (1 << 30)) for number in gib] == [200 * 10**9, 400 * 10**9]
    assert asked[asked.index("--trace") + 1] == str(traces / TRACE)


def test_what_the_other_one_says_when_it_fails_is_told(traces: Path) -> None:
    python = stand_in(traces, "echo 'no such model' >&2; exit 3")
    with pytest.raises(ConfigError, match="kvcache-simulator failed: no such model"):
        peer_hit_rates(python, traces / TRACE, (200,))


def test_it_needs_traces(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        runner.main(["simulator-peers"])
    assert caught.value.code == 2
    assert "needs --traces DIR" in capsys.readouterr().err

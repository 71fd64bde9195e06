"""The benchmarks' runner; the numbers themselves are no test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks import prefix_keys, scheduler_cost
from benchmarks.results import Result


def invented() -> Iterator[Result]:
    """One result."""
    yield Result(
        benchmark="invented", subject="nothing", quantity="speed", unit="m/s", samples=[3.0, 1.0, 200.0]
    )


@pytest.fixture(autouse=True)
def invented_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "BENCHMARKS", {"invented": invented})


def test_json_holds_machine_and_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs" / "b.json"
    assert runner.main(["invented", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert {"date", "commit", "cpu", "cores", "flags", "memory", "packages", "load_average"} <= set(
        content["machine"]
    )
    (row,) = content["results"]
    assert (row["samples"], row["median"], row["unit"]) == ([3.0, 1.0, 200.0], 3.0, "m/s")
    assert [path.name for path in file.parent.iterdir()] == ["b.json"]
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["benchmark", "subject", "quantity", "median"]
    assert line.split() == ["invented", "nothing", "speed", "3", "1", "200", "m/s"]


def test_all_is_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["all"]) == 0
    assert "invented" in capsys.readouterr().out


def test_help_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        runner.main(["--help"])
    assert caught.value.code == 0
    assert "invented       One result." in capsys.readouterr().out


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        runner.main(["speed"])
    assert caught.value.code == 2
    assert "invented" in capsys.readouterr().err


def test_scheduler_cost_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_cost, "CASES", ((2, 100),))
    monkeypatch.setattr(scheduler_cost, "STEPS", 3)
    (result,) = scheduler_cost.scheduler()
    assert len(result.samples) == 3
    assert min(result.samples) > 0


def test_prefix_keys_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_keys, "TOKENS", 1000)
    monkeypatch.setattr(prefix_keys, "GROWN", 128)
    results = list(prefix_keys.keys())
    assert [result.unit for result in results] == ["ms", "ns/token"] * 2
    assert all(min(result.samples) > 0 for result in results)

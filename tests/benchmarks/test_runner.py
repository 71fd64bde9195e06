"""The benchmarks' runner; the numbers themselves are no test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks import control_plane, prefix_keys, reuse, scheduler_cost
from benchmarks.on_traces import OnTraces
from benchmarks.results import Result
from milepost.testing.toy_checkpoint import write_toy_checkpoint


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
    assert "invented         One result." in capsys.readouterr().out


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


def test_control_plane_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CASES", ((3, 200),)), ("STEPS", 20), ("RUNS", 2), ("MILLION", 3000)):
        monkeypatch.setattr(control_plane, name, value)
    step, *arrivals = control_plane.control_plane()
    assert len(step.samples) == 20
    assert min(step.samples) > 0
    assert {len(result.samples) for result in arrivals if "look-up" in result.quantity} == {2}


def test_reuse_counts_what_each_side_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a tiny model, whose aligned block is longer than what two prompts share."""
    folder = write_toy_checkpoint(
        tmp_path / "model", num_layers=2, full_attn_layers=[2], kv_lora_rank=16, vision=False
    )
    block = reuse.aligned_block(folder)
    small = {"LENGTHS": (160,), "REPEATS": 1, "ARENA": "8MiB", "CONTEXT": 2048, "VOCAB": 256}
    for name, value in {**small, "TURN": 8, "SHARED": block - 50, "OWN": 20}.items():
        monkeypatch.setattr(reuse, name, value)
    monkeypatch.setattr(reuse, "folder_of", lambda _subject: folder)
    computed = {
        (*result.quantity.split(": ")[:2],): result.samples[0]
        for result in reuse.reuse()
        if result.unit == "tokens"
    }
    assert {computed[case, "cache off"] for case in ("cold", "resend", "fork")} == {160}
    for side in ("paged, adaptive", "aligned, unit of 16, adaptive"):
        assert computed["resend", side] == 1
        assert computed["hit", side] == 8
        assert computed["fork", side] <= 160 - 113 + 64
        assert computed["second", side] <= 20 + 64
    assert computed["second", "aligned, whole blocks"] == computed["second", "cache off"] == block - 30


def test_what_needs_traces_asks_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        runner.main(["policies"])
    assert caught.value.code == 2
    assert "policies needs --traces DIR" in capsys.readouterr().err


def test_all_leaves_out_what_needs_traces_unless_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[Path, bool]] = []

    def replayed(options: OnTraces) -> Iterator[Result]:
        """Nothing."""
        given.append((options.folder, options.quick))
        yield from ()

    monkeypatch.setattr(runner, "TRACE_BENCHMARKS", {"replayed": replayed})
    assert runner.main(["all"]) == 0
    assert not given
    assert runner.main(["all", "--traces", str(tmp_path), "--quick"]) == 0
    assert given == [(tmp_path, True)]
    assert "replayed ..." in capsys.readouterr().err

"""``milepost simulate``, from its options to its results, on a small trace of blocks and on one of tokens."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from milepost.cli.app import run
from tests.cli.conftest import Start

Capture = pytest.CaptureFixture[str]

KEYS = (
    *("trace", "model", "policy", "eviction", "layout", "preset", "match_unit", "budget_bytes", "requests"),
    *("input_tokens", "hit_tokens", "hit_rate", "snapshots_per_request", "state_bytes_mean", "kv_bytes_mean"),
    *("losses", "ttft", "tpot"),
)
BLOCK = 512


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two conversations that share a beginning, in Mooncake's form."""
    rows, fresh = [], iter(range(1000, 2000))
    chats = {0: [0, 1, 2], 1: [0, 1, 9]}
    for turn in range(20):
        ids = chats[turn % 2] = [*chats[turn % 2], next(fresh), next(fresh)]
        rows.append(
            {
                "timestamp": 1000 * turn,
                "input_length": len(ids) * BLOCK - 100,
                "output_length": 20,
                "hash_ids": [*ids[:-1], next(fresh)],
            }
        )
    path = tmp_path_factory.mktemp("traces") / "small.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def error_line(capture: Capture) -> str:
    out, err = capture.readouterr()
    assert out == ""
    assert err.startswith("milepost: error: ")
    return err.removeprefix("milepost: error: ").rstrip()


def simulated(capture: Capture, *arguments: str | Path) -> list[dict[str, Any]]:
    """What --json says on stdout, on which there is nothing else."""
    assert run(["simulate", *map(str, arguments), "--json"]) == 0
    out, err = capture.readouterr()
    assert err == ""
    objects: list[dict[str, Any]] = json.loads(out)
    return objects


def test_without_lists_there_is_a_comparison(trace: Path, capsys: Capture) -> None:
    found = simulated(capsys, trace)
    assert [(row["budget_bytes"], row["preset"]) for row in found] == [
        *(
            (budget, preset)
            for budget in (200 * 10**9, 800 * 10**9)
            for preset in ("", "vllm(retention=0)", "sglang", "marconi")
        ),
        (None, "unlimited"),
    ]
    assert {row["policy"] for row in found if not row["preset"]} == {"adaptive"}
    assert [row["layout"] for row in found[:4]] == ["paged", "aligned", "split", "paged"]
    assert found[0]["hit_rate"] > 0.5


def test_the_objects_have_the_promised_keys_and_add_up(trace: Path, capsys: Capture) -> None:
    found = simulated(
        capsys,
        *(
            trace,
            "--budget",
            "10GB,400GB,unlimited",
            "--policy",
            "turns+branch,every(2048)",
            "--policy",
            "adaptive",
        ),
        *("--eviction", "value,lru", "--layout", "paged", "--match-unit", "512,1024"),
    )
    assert len(found) == 3 * 3 * 2 * 2
    for row in found:
        assert tuple(row)[: len(KEYS)] == KEYS
        assert row["trace"] == "small"
        assert row["model"] == "kimi-k3"
        assert row["requests"] == 20
        assert row["hit_tokens"] + sum(row["losses"].values()) == row["input_tokens"]
        assert row["hit_rate"] == pytest.approx(row["hit_tokens"] / row["input_tokens"])
        for name in ("ttft", "tpot"):
            assert {"mean", "p50", "p90", "p99"} == set(row[name])
    order = [(row["budget_bytes"], row["policy"], row["eviction"], row["match_unit"]) for row in found]
    assert order == [
        (budget, policy, eviction, unit)
        for budget in (10 * 10**9, 400 * 10**9, None)
        for policy in ("turns+branch", "every(2048)", "adaptive")
        for eviction in ("value", "lru")
        for unit in (512, 1024)
    ]


def test_every_prompt_but_its_new_end_is_hit_with_room_for_all(trace: Path, capsys: Capture) -> None:
    (row,) = simulated(capsys, trace, "--budget", "unlimited", "--policy", "turns")
    # A prompt's last block is its own; of what it shares with the turn before all is hit.
    expected = sum(max(0, (2 * (turn // 2) + 2) * BLOCK) for turn in range(2, 20))
    assert row["hit_tokens"] == expected


def test_the_same_point_is_run_once(trace: Path, capsys: Capture) -> None:
    found = simulated(
        capsys,
        trace,
        "--budget",
        "10GB,10000MB",
        "--policy",
        "last,last",
        "--match-unit",
        "512",
        "--block-size",
        "512",
    )
    assert len(found) == 1


def test_processes_find_what_one_finds(trace: Path, capsys: Capture) -> None:
    lists = ("--budget", "4GB,10GB", "--policy", "turns,last", "--preset", "sglang")
    alone, both = (simulated(capsys, trace, *lists, "--jobs", jobs) for jobs in ("1", "2"))
    for row in (*alone, *both):
        del row["wall_seconds"]
    assert alone == both


def test_json_may_stand_before_the_trace(trace: Path, capsys: Capture) -> None:
    assert run(["simulate", "--budget", "10GB", "--policy", "last", "--json", str(trace)]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert trace.read_text().count("\n") == 20


def test_results_in_files_and_a_table_on_the_terminal(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    names = ("r.json", "r.csv", "r.parquet", "r.html", "deeper/r.jsonl")
    files = {name.rpartition(".")[2]: tmp_path / name for name in names}
    lists = ("--budget", "10GB,unlimited", "--policy", "turns,last")
    outputs = [f"--{kind}={path}" for kind, path in files.items() if kind != "jsonl"]
    assert run(["simulate", str(trace), *lists, *outputs, f"--per-request={files['jsonl']}"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "hit rate" in out
    objects = json.loads(files["json"].read_text())
    assert [row["policy"] for row in csv.DictReader(files["csv"].read_text().splitlines())] == [
        row["policy"] for row in objects
    ]
    assert files["parquet"].read_bytes()[:4] == b"PAR1"
    assert "<html" in files["html"].read_text()[:200]
    lines = [json.loads(line) for line in files["jsonl"].read_text().splitlines()]
    assert [line["point"] for line in lines] == [point for point in range(4) for _ in range(20)]
    assert [line["request_id"] for line in lines] == [line["request_id"] for line in lines[:20]] * 4
    for point, row in enumerate(objects):
        assert sum(line["hit_tokens"] for line in lines if line["point"] == point) == row["hit_tokens"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[:4], "deeper"]), (
        "nothing is left over"
    )


def test_it_recommends_and_compares_with_the_present(trace: Path, capsys: Capture) -> None:
    lists = (
        "--budget",
        "10GB,400GB",
        "--policy",
        "turns,every(8192)",
        "--recommend",
        "--present",
        "preset=vllm",
    )
    assert run(["simulate", str(trace), *lists]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("milepost serve --snapshot-policy") == 2
    assert "vllm (preset) (present)" in out
    assert run(["simulate", str(trace), *lists, "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 6
    assert err.count("milepost serve --snapshot-policy") == 2


def test_requests_of_the_warm_up_are_marked(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "requests.jsonl"
    lists = ("--policy", "turns", "--budget", "400GB", "--warm-up", "0.25", "--per-request", str(path))
    (row,) = simulated(capsys, trace, *lists)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["counted"] for line in lines] == [False] * 5 + [True] * 15
    assert sum(line["hit_tokens"] for line in lines if line["counted"]) == row["hit_tokens"]


def test_a_load_that_is_too_much_is_noted(trace: Path, capsys: Capture) -> None:
    lists = ("--policy", "turns", "--budget", "400GB", "--hardware", "cpu", "--queueing")
    assert run(["simulate", str(trace), *lists, "--time-scale", "5"]) == 0
    err = capsys.readouterr().err
    assert "one replica can't keep up with this load" in err
    scale = re.search(r"--time-scale (\d+) times", err)
    assert scale is not None
    assert run(["simulate", str(trace), *lists, "--time-scale", str(5 * int(scale[1]))]) == 0
    assert capsys.readouterr().err == ""


def test_the_page_says_what_made_it_and_counts_over_the_present(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    command = ["simulate", str(trace), "--budget", "10GB", "--policy", "turns", "--html", str(page)]
    monkeypatch.setattr("sys.argv", ["milepost", *command])
    assert run(command) == 0
    assert "--policy turns --html" in page.read_text()


def test_no_line_is_filled_up_with_blanks_in_a_pipe(trace: Path, capsys: Capture) -> None:
    assert run(["simulate", str(trace), "--policy", "turns,last", "--budget", "400GB"]) == 0
    assert run(["trace", "stats", str(trace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("hit rate" in line for line in lines)
    assert [line for line in lines if line != line.rstrip()] == []


def test_presets_are_explained(capsys: Capture) -> None:
    assert run(["simulate", "--list-presets"]) == 0
    out = capsys.readouterr().out
    assert out.count("Source: ") == out.count("Simplifications:") == 5


def test_queueing_is_slower_than_an_idle_engine(trace: Path, capsys: Capture) -> None:
    crowd = (trace, "--budget", "400GB", "--policy", "turns", "--time-scale", "0.00001")
    (alone,) = simulated(capsys, *crowd)
    (together,) = simulated(capsys, *crowd, "--queueing")
    assert (alone["queueing"], together["queueing"]) == (False, True)
    assert together["ttft"]["p90"] > 2 * alone["ttft"]["p90"]


def test_the_warm_up_is_not_counted(trace: Path, capsys: Capture) -> None:
    point = (trace, "--budget", "400GB", "--policy", "turns")
    (cold,), (warm,) = simulated(capsys, *point), simulated(capsys, *point, "--warm-up", "0.5")
    assert warm["requests"] == 10
    assert warm["hit_rate"] > cold["hit_rate"]


def test_sizes_are_those_of_the_ranks_and_dtypes(trace: Path, capsys: Capture) -> None:
    point = (trace, "--budget", "unlimited", "--policy", "turns")
    (whole,) = simulated(capsys, *point)
    (rank,) = simulated(capsys, *point, "--tp", "8")
    (small,) = simulated(capsys, *point, "--kv-dtype", "fp8", "--state-dtype", "bf16")
    assert rank["kv_bytes_mean"] == whole["kv_bytes_mean"]
    assert rank["state_bytes_mean"] == pytest.approx(whole["state_bytes_mean"] / 8, rel=0.3)
    assert small["kv_bytes_mean"] == whole["kv_bytes_mean"] / 2
    assert small["state_bytes_mean"] == pytest.approx(whole["state_bytes_mean"] / 2, rel=0.1)


def test_token_ids_and_chat_logs(tmp_path: Path, capsys: Capture) -> None:
    chat = [{"role": "user", "content": "What is 3 plus 4?"}]
    more = [*chat, {"role": "assistant", "content": "7"}, {"role": "user", "content": "And 5 more?"}]
    log = tmp_path / "chats.jsonl"
    log.write_text(
        "".join(
            json.dumps({"timestamp": second, "messages": messages, "response": "12"}) + "\n"
            for second, messages in enumerate((chat, more, more))
        )
    )
    point = ("--model", "milepost-toy-k3", "--budget", "64MiB", "--policy", "adaptive", "--match-unit", "4")
    (row,) = simulated(capsys, log, *point, "--tokenizer", "milepost-toy-k3")
    assert row["hit_tokens"] > 0
    assert run(["simulate", str(log), *point]) == 2
    assert "--tokenizer" in error_line(capsys)


def test_lengths_alone_report_no_reuse(tmp_path: Path, capsys: Capture) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    assert run(["simulate", str(azure)]) == 2
    assert "has lengths only" in error_line(capsys)
    assert run(["simulate", str(azure), "--policy", "none", "--budget", "100GB", "--queueing"]) == 2
    assert "has lengths only" in error_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "adaptve"], "Did you mean 'adaptive'"),
        (["--policy", "every(2048"], "the parentheses don't match"),
        (["--eviction", "lur"], "Did you mean 'lru'"),
        (["--layout", "pagd"], "Did you mean 'paged'"),
        (["--preset", "vlm"], "Did you mean 'vllm'"),
        (["--budget", "200"], "must hold at least one state"),
        (["--budget", "unlimted"], "Did you mean 'unlimited'"),
        (["--budget", "999999TB"], "at most 8,388,608 pages"),
        (["--match-unit", "100", "--policy", "last"], "multiple or a divisor of the 512 tokens"),
        (["--preset", "vllm", "--block-size", "64"], "block_size is that of policies"),
        (["--model", "kimi-k4"], "Did you mean 'kimi-k3'"),
        (["--hardware", "h300"], "h300"),
        (["--tp", "0"], "--tp must be at least 1. Given: 0"),
        (["--tp", "7"], "must divide"),
        (["--kv-dtype", "fp9"], "--kv-dtype must be one of bf16, fp8. Given: 'fp9'. Did you mean 'fp8'"),
        (["--state-dtype", "fp8"], "--state-dtype must be one of fp32, bf16"),
        (["--warm-up", "1"], "--warm-up must be a share from 0 to below 1"),
        (["--warm-up", "nan"], "--warm-up must be a share"),
        (["--ttft-limit", "0"], "--ttft-limit must be above 0"),
        (["--tpot-limit", "inf"], "--tpot-limit must be above 0"),
        (["--token-budget", "0"], "--token-budget must be at least 1"),
        (["--max-num-seqs", "-1"], "--max-num-seqs must be at least 1"),
        (["--jobs", "-1"], "--jobs must be at least 1"),
        (["--present", "polcy=last"], "Did you mean 'policy'"),
        (["--preset", "vllm", "--recommend"], "Add --policy"),
        (["--first", "0"], "first must be"),
        (["--form", "moncake"], "Did you mean 'mooncake'"),
        (["--csv", "."], "--csv must name a file"),
        (["--csv", "a.out", "--html", "a.out"], "would overwrite the file of --csv"),
        (["--html", "/dev/null/such.html"], "can't be written"),
        (["--budgett", "1GB"], "Did you mean"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    trace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    def runs(*_arguments: object, **_more: object) -> None:
        pytest.fail("it runs")

    monkeypatch.setattr("milepost.cli.simulate_results.run_sweep", runs)
    assert run(["simulate", str(trace), *arguments]) == 2
    assert says in error_line(capsys)


@pytest.mark.parametrize(("option", "library"), [("--parquet", "polars"), ("--html", "plotly")])
def test_what_is_not_installed_is_said_before_anything_runs(
    trace: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, option: str, library: str
) -> None:
    monkeypatch.setattr("milepost.cli.output_files.find_spec", lambda name: None if name == library else 1)
    assert run(["simulate", str(trace), option, str(tmp_path / "r")]) == 2
    assert f"{option} needs {library}" in error_line(capsys)


def test_the_trace_is_not_overwritten(trace: Path, capsys: Capture) -> None:
    assert run(["simulate", str(trace), "--csv", str(trace)]) == 2
    assert "would overwrite the file of TRACE" in error_line(capsys)


def test_a_trace_whose_name_is_no_text(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    named = tmp_path / os.fsdecode(b"\xff.jsonl")
    named.write_bytes(trace.read_bytes())
    files = {kind: tmp_path / f"r.{kind}" for kind in ("json", "csv")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    assert run(["simulate", str(named), "--policy", "last", "--budget", "100GB", *options]) == 0
    (point,) = json.loads(files["json"].read_text(encoding="utf-8"))
    assert point["trace"] == "\ufffd"
    assert "\ufffd" in files["csv"].read_text(encoding="utf-8")


def test_all_reasons_come_at_once(trace: Path, capsys: Capture) -> None:
    assert (
        run(["simulate", str(trace), "--budget", "1MB,100GB", "--match-unit", "512,100", "--policy", "last"])
        == 2
    )
    message = error_line(capsys)
    assert message.startswith("3 of 4 points can't be run:\n")
    assert "1MB last value paged match unit 512: A budget must hold" in message
    assert "1MB last value paged match unit 100 and 1 more: match_unit must be" in message


def test_no_trace_and_a_missing_one(capsys: Capture, tmp_path: Path) -> None:
    assert run(["simulate"]) == 2
    assert "Missing argument 'TRACE'" in error_line(capsys)
    assert run(["simulate", str(tmp_path / "nowhere.jsonl")]) == 2
    assert "nowhere.jsonl" in error_line(capsys)


def test_the_bar_is_only_drawn_on_a_terminal(
    trace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        "milepost.cli.sweep_progress.notes", lambda: Console(file=screen, force_terminal=True, width=100)
    )
    assert len(simulated(capsys, trace, "--budget", "10GB", "--policy", "last,turns", "--jobs", "1")) == 2
    drawn = screen.getvalue()
    for text in ("0 of 2 points", "1 of 2 points", "2 of 2 points", "40/40"):
        assert text in drawn


def test_who_knows_the_future_is_not_beaten(trace: Path, capsys: Capture) -> None:
    lists = ("--budget", "4GB", "--policy", "clairvoyant,adaptive", "--eviction", "clairvoyant,value,lru")
    found = simulated(capsys, trace, *lists)
    assert [(row["policy"], row["eviction"]) for row in found[:1]] == [("clairvoyant", "clairvoyant")]
    assert len(found) == 6
    assert found[0]["hit_tokens"] == max(row["hit_tokens"] for row in found)


def test_requests_that_never_fit_are_told(trace: Path, capsys: Capture) -> None:
    lists = ("--model", "milepost-toy-k3", "--budget", "4MB,1GB", "--policy", "turns")
    assert run(["simulate", str(trace), *lists, "--json"]) == 0
    out, err = capsys.readouterr()
    small, large = json.loads(out)
    assert (small["requests"] + small["refused"], large["refused"]) == (20, 0)
    assert 0 < small["refused"] < 20
    assert (
        f"1 of 2 points refused requests that can never fit their budget, up to {small['refused']} (4MB"
        in err
    )


def test_help_is_in_groups(capsys: Capture) -> None:
    assert run(["simulate", "--help"]) == 0
    out = capsys.readouterr().out
    headings = re.findall(r"^(\w.*):$", out, re.MULTILINE)
    assert headings == [
        "What is compared; lists with commas, and options may be repeated",
        "Model and engine",
        "Time",
        "The trace",
        "Results",
        "How it runs",
        "Help",
    ]


def test_ctrl_c_ends_it_with_130(start: Start, tmp_path: Path) -> None:
    rows = (
        {
            "timestamp": n,
            "input_length": 512 * 200,
            "output_length": 1,
            "hash_ids": [*range(200 * n, 200 * n + 200)],
        }
        for n in range(3000)
    )
    trace = tmp_path / "long.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    process = start(
        *("simulate", str(trace), "--budget", "800GB", "--policy", "adaptive,every(512)", "--jobs", "2"),
        *("--per-request", str(tmp_path / "r.jsonl")),
    )
    deadline = time.monotonic() + 30
    while not (workers := _children(process.pid)) or len(workers) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err.strip()) == (130, "", "")
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert [*tmp_path.iterdir()] == [trace]


def _children(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []

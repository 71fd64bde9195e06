"""``milepost plan memory``, from its options to what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from milepost.cli.app import run
from tests.cli.plan_runs import Capture, error_line, planned


def test_options_reach_the_plan(capsys: Capture) -> None:
    arguments = "--tp 8 --cp 8 --kv-dtype fp8 --layout aligned --alignment 128 --context 8192 --context 128k"
    found = planned(
        capsys, "memory", *arguments.split(), "--slots", "2.5", "--memory", "50GB", "--drafts", "1"
    )
    (layout,) = found["layouts"]
    assert layout["sequence_block_tokens"] == 8 * layout["block_tokens"] == 12_288
    assert [row["context_tokens"] for row in found["batches"]] == [8_192, 131_072]
    assert found["slots"] == 2.5
    assert found["device"]["budget_bytes"] == 50 * 10**9
    assert found["question"]["drafts"] == 1
    assert {"name", "value", "formula"} <= found["derivations"][0].keys()


def test_tables_pictures_and_layouts_side_by_side(capsys: Capture) -> None:
    assert run(["plan", "memory", "--tp", "8", "--compare"]) == 0
    out = capsys.readouterr().out
    assert "Memory of kimi-k3 on 8 x gb300" in out
    assert "routed experts" in out
    assert "12 x 64 = 768 tokens" in out
    assert "A state over 32 pages (paged)" in out
    assert "shortest shared prefix, whole blocks" in out


def test_a_trace_measures_the_states_of_a_request(capsys: Capture, tmp_path: Path) -> None:
    rows = [
        {"timestamp": 40 * n, "input_length": 512, "output_length": 9, "hash_ids": [n]} for n in range(20)
    ]
    trace = tmp_path / "few.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = planned(capsys, "memory", "--tp", "8", "--trace", str(trace), "--first", "12")
    assert found["measured"]["requests"] == 12
    assert found["slots"] == found["measured"]["needed_slots_mean"] >= 1
    assert found["slots_source"] == "measured on few"


def test_a_number_says_where_it_comes_from(capsys: Capture) -> None:
    assert run(["plan", "memory", "--tp", "8", "--explain", "batch.ideal.8k"]) == 0
    out = capsys.readouterr().out
    assert "floor(budget_bytes / (slots * state_bytes + 8192 * kv_bytes_per_token))" in out
    assert "gb300" in out


def test_a_page_holds_the_pictures(capsys: Capture, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert run(["plan", "memory", "--tp", "8", "--compare", "--html", str(page)]) == 0
    capsys.readouterr()
    assert page.read_text(encoding="utf-8").count("<svg") >= 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--context", "8q"], "--context must be tokens, such as 8192, 128k"),
        (["--context", "0k"], "--context must be tokens"),
        (["--memory", "lots"], "--memory must be a positive number of bytes"),
        (["--reserve", "-1"], "--reserve must be a positive number of bytes"),
        (["--trace", "nowhere.jsonl"], "There is no file nowhere.jsonl"),
        (["--tp", "7"], "The nearest that does"),
        (["--tp", "0"], "--tp must be 1 to"),
        (["--slots", "nan"], "slots must be 1, the state"),
        (["--explain", "batch.ideal.9k"], "Did you mean 'batch.ideal.8k'"),
        (["--tp", "8", "--dp", "1", "--hardware", "h200"], "groups: 16 devices, tensor_parallel 16"),
    ],
)
def test_nonsense_is_one_line(capsys: Capture, arguments: list[str], message: str) -> None:
    assert message in error_line(capsys, "memory", *arguments)


def test_it_answers_in_a_second_and_loads_no_plots() -> None:
    code = (
        "import sys; from milepost.cli.app import run; run(['plan', 'memory', '--tp', '8', '--compare']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'polars', 'plotly', 'ray')))"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0
    assert time.monotonic() - started < 10  # on a busy machine; alone it takes 0.3 s

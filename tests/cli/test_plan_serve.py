"""``milepost plan serve``, from its options to what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from milepost.cli.app import run
from tests.cli.plan_runs import Capture, error_line, planned

TRACE = [
    {"timestamp": 1000 * number, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2 + number // 2]}
    for number in range(6)
]


def test_options_reach_the_plan(capsys: Capture) -> None:
    arguments = (
        "--tp 8 --dp 2 --ep 8 --cp 2 --kv-dtype fp8 --input 4k --output 256 --hit-rate 0.5 --slots 2 "
        "--ttft 1.5s --tpot-limit 40ms --price 3 --token-budget 4096 --drafts 7 --acceptance 3.85 "
        "--draft-states snapshots"
    )
    found = planned(capsys, "serve", *arguments.split())
    question, point = found["question"], found["point"]
    assert (question["input_tokens"], question["output_tokens"], question["hit_tokens"]) == (4096, 256, 2048)
    assert (question["ttft_limit_seconds"], question["tpot_limit_seconds"]) == (1.5, 0.04)
    assert (question["slots"], question["price_per_hour"]) == (2.0, 3.0)
    assert question["speculation"] == {
        "drafts": 7,
        "accepted_length": 3.85,
        "draft_parameters": 3.56e9,
        "draft_layers": 5,
        "draft_passes": 1,
        "states": "snapshots",
    }
    ranks = ("tensor_parallel", "data_parallel", "expert_parallel", "context_parallel")
    assert [point[name] for name in ranks] == [8, 2, 8, 2]
    assert point["token_budget_tokens"] == 4096
    assert point["tpot_seconds"] <= 0.04
    assert found["costs"]["cost_per_million_output_tokens"] > 0
    assert {"name", "value", "formula"} <= found["derivations"][0].keys()


def test_tables_of_one_arrangement(capsys: Capture) -> None:
    assert run(["plan", "serve", "--tp", "8", "--drafts", "2", "--acceptance", "0.93,0.81"]) == 0
    out = capsys.readouterr().out
    assert "Serve kimi-k3 on 8 x gb300 (TP8 x DP1)" in out
    assert "routed experts" in out
    assert "KDA recurrence" in out
    assert "A step yields 2.74 of 3 tokens" in out
    assert "Other batches" in out


def test_a_search_shows_the_front_and_what_it_refused(capsys: Capture) -> None:
    assert run(["plan", "serve", "--gpus", "8-16", "--hardware", "gb300", "--tpot", "12ms"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "do not fit in memory" in out
    assert "miss the TPOT limit even at batch 1" in out
    assert "The best under the limits by number of devices" in out


def test_a_number_says_where_it_comes_from(capsys: Capture) -> None:
    assert run(["plan", "serve", "--tp", "8", "--explain", "decode.routed_experts.seconds"]) == 0
    out = capsys.readouterr().out
    assert "max(decode.routed_experts.flops / rate.experts, decode.routed_experts.bytes / rate.memory)" in out
    assert "config.json" in out
    assert "hardware gb300" in out


def test_lengths_hits_and_slots_come_from_a_trace_unless_given(capsys: Capture, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in TRACE))
    base = ["--model", "kimi-linear", "--hardware", "h200", "--trace", str(trace)]
    found = planned(capsys, "serve", *base)["question"]
    assert (found["input_tokens"], found["output_tokens"]) == (1024, 8)
    assert found["hit_tokens"] > 0
    assert found["slots"] > 1.0
    assert "6 requests of trace" in found["slots_source"]
    given = planned(capsys, "serve", *base, "--input", "2000", "--slots", "3")["question"]
    assert (given["input_tokens"], given["output_tokens"]) == (2000, 8)
    assert (given["hit_tokens"], given["slots"], given["slots_source"]) == (0, 3.0, "--slots")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--tpot abc", "--tpot must be a time above 0 such as 2, 2s or 500ms. Given: 'abc'."),
        (
            "--tpot 50",
            "--tpot without a unit is in seconds: write 50ms, or 50s if that is meant. Given: '50'.",
        ),
        (
            "--ttft 2000",
            "--ttft without a unit is in seconds: write 2000ms, or 2000s if that is meant. Given: '2000'.",
        ),
        ("--input 8q", "--input must be tokens, such as 8192, 128k (of 1,024) or 1M. Given: '8q'."),
        ("--ttft -1", "--ttft must be a time above 0 such as 2, 2s or 500ms. Given: '-1'."),
        ("--gpus 8-", "--gpus must be a number or a range such as 8-64. Given: '8-'."),
        ("--gpus 8-4", "A range of gpus must go up. Given: 8-4."),
        ("--hit-rate 1", "--hit-rate must be at least 0 and below 1. Given: 1.0."),
        ("--hit-rate 0.5 --hit-tokens 5", "--hit-tokens and --hit-rate say the same."),
        ("--drafts 3", "--drafts needs --acceptance"),
        ("--acceptance 2", "--acceptance as a length needs --drafts."),
        ("--acceptance 0.9,x", "--acceptance must be a number of tokens, or shares"),
        ("--drafts 3 --acceptance 0.9,0.8", "--acceptance must have one share a draft: 3. Given: 2."),
        ("--tp 8 --hardware gb200x", "Hardware must be one of"),
        ("--tp 8 --explain decod.seconds", "Did you mean 'decode.seconds'?"),
        ("--gpus 2 --hardware gb300", "The fewest gb300 that do: 8"),
    ],
)
def test_nonsense_is_one_line(capsys: Capture, arguments: str, message: str) -> None:
    assert message in error_line(capsys, "serve", *arguments.split())


def test_a_plan_answers_within_a_second_and_imports_little() -> None:
    script = (
        "import sys; from milepost.cli.app import run; "
        "code = run(['plan', 'serve', '--tp', '8']); "
        "heavy = {'torch', 'polars', 'plotly', 'ray'} & set(sys.modules); "
        "print(code, sorted(heavy), file=sys.stderr)"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    elapsed = time.perf_counter() - started
    assert done.stderr.strip() == "0 []"
    assert elapsed < 5.0  # a second on a machine of its own

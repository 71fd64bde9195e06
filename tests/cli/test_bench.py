"""``milepost bench`` on a small model: speeds, limits, parts that add up, pictures, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from milepost.cli.app import run
from milepost.cli.bench import _doubts
from milepost.cli.bench_report import BenchResult, bench_report
from milepost.config_json import read_model_spec
from milepost.llm.step_profile import OUTSIDE, PartProfile, StepProfile
from milepost.llm.stored_shape import stored_shape
from milepost.models import parts
from milepost.sim.cost.part_work import StepParts
from milepost.sim.cost.roofline import ONE_RANK
from milepost.sim.cost.step_work import StepWork

ENGINE = ("--memory", "16MiB", "--threads", "1", "--max-model-len", "400", "--max-num-batched-tokens", "64")
SMALL = ("--repeats", "2", "--prefill", "70", "--decode", "1,3", "--context", "20")
Capture = pytest.CaptureFixture[str]


def bench(model: Path, *arguments: str) -> int:
    return run(["bench", str(model), *ENGINE, *SMALL, *arguments])


def test_from_measuring_to_a_table_a_picture_and_a_page(
    quiet_k3: Path, tmp_path: Path, capsys: Capture
) -> None:
    out, page = tmp_path / "found.json", tmp_path / "found.html"
    assert bench(quiet_k3, "--profile", "--json", str(out), "--html", str(page)) == 0
    printed = capsys.readouterr().out
    assert "decode batch 3 at 20" in printed
    assert "░" in printed
    assert "<svg" in page.read_text(encoding="utf-8")
    found = msgspec.json.decode(out.read_bytes(), type=BenchResult)
    assert [speed.tokens for speed in found.speeds] == [70, 1, 3]
    assert all(speed.limit_seconds > 0 and 0 < speed.seconds < 10 for speed in found.speeds)
    # A prompt of 70 goes in chunks of 64 and 6.
    assert [(step.work.tokens, step.work.rows) for step in found.profiles] == [
        (64, 1),
        (6, 1),
        (1, 1),
        (3, 3),
    ]
    for step in found.profiles:
        check_parts(step)


def check_parts(step: StepProfile) -> None:
    """Parts are known, add up to the step, and each that the model counts has a limit."""
    assert sum(part.seconds for part in step.parts) == pytest.approx(step.seconds, rel=0.02)
    names = {part.name for part in step.parts}
    assert names <= {OUTSIDE, *(getattr(parts, name) for name in parts.__all__)}
    # A chunk that draws nothing needs no head.
    counted = names - {OUTSIDE, parts.EMBEDDING, *(() if step.work.sampled else (parts.HEAD,))}
    assert {parts.KDA_RECURRENCE, parts.MLA_ATTENTION, parts.EXPERTS, parts.NORMS} <= counted
    for part in step.parts:
        assert (part.limit_seconds > 0) == (part.name in counted), part
        assert part.calls >= len(part.kernels)


def test_what_the_cost_model_counts_is_timed_under_the_same_name(quiet_k3: Path) -> None:
    counting = StepParts(stored_shape(read_model_spec(quiet_k3), quiet_k3, "auto"), ONE_RANK)
    assert counting.recurrence_name == parts.KDA_RECURRENCE
    assert counting.attention_name == parts.MLA_ATTENTION
    named = {part.name for part in counting.by_tokens(1)} | {counting.head(1).name}
    assert {parts.KDA_PROJECTIONS, parts.MLA_PROJECTIONS, parts.EXPERTS, parts.DENSE} <= named
    assert {parts.NORMS, parts.HEAD} <= named


@pytest.mark.parametrize(
    ("weights", "dense", "experts"),
    [("float32", 4.0, 17 / 32), ("bfloat16", 2.0, 17 / 32), ("int8", 1.0, 17 / 32), ("mxfp4", 2.0, 17 / 32)],
)
def test_limits_count_the_bytes_that_weights_take(
    quiet_k3: Path, weights: str, dense: float, experts: float
) -> None:
    shape = stored_shape(read_model_spec(quiet_k3), quiet_k3, weights)
    assert shape.recurrent is not None
    assert shape.experts is not None
    head = StepParts(shape, ONE_RANK).head(1)
    table = shape.vocab_size * shape.hidden_size
    assert head.bytes == table * dense + shape.vocab_size * 8  # and the logits, written and read
    assert shape.recurrent.bytes_per_parameter == shape.head_bytes_per_parameter == dense
    assert shape.experts.bytes_per_parameter == experts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--decode", "0"), "--decode must be whole numbers of at least 1"),
        (("--prefill", "2k"), "Given: '2k'"),
        (("--prefill", "", "--decode", ""), "must name something to measure"),
        (("--decode", "5000"), "must fit the engine"),
        (("--prefill", "999999999999"), "must fit the engine"),
        (("--prefill", "9" * 5000), "--prefill must be whole numbers of at least 1 and at most 12 digits"),
        (("--context", "400"), "must fit the engine"),
        (("--kernels", "reference"), "bench measures the compiled kernels"),
        (("--dtype", "float64"), "bench measures the compiled kernels"),
    ],
)
def test_what_can_not_be_measured_is_said_in_a_line(
    quiet_k3: Path, capsys: Capture, arguments: tuple[str, ...], message: str
) -> None:
    assert bench(quiet_k3, *arguments) == 2
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert error.count("milepost: error") == 1


def test_json_on_stdout_stands_alone(quiet_k3: Path, capsys: Capture) -> None:
    assert bench(quiet_k3, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profiles"] == []
    assert found["read_bytes_per_second"] > 0


def test_a_bar_ends_where_its_limit_does() -> None:
    work = StepWork(tokens=1, rows=1, sampled=1, context=1, pairs=1)
    half = PartProfile(name="half", calls=1, seconds=0.004, limit_seconds=0.002, bound="memory")
    beaten = PartProfile(name="beaten", calls=1, seconds=0.002, limit_seconds=0.003, bound="memory")
    step = StepProfile(what="a step", work=work, seconds=0.006, limit_seconds=0.005, parts=(half, beaten))
    found = BenchResult(
        model="m",
        machine="a machine",
        kernels="cpu (avx2)",
        weights="auto",
        weight_bytes=1,
        read_bytes_per_second=1e9,
        flops_per_second=1e9,
        speeds=(),
        profiles=(step,),
    )
    drawing = bench_report(found).sections[1].drawings[0]
    lines = drawing.text.splitlines()
    assert (lines[0].count("█"), lines[0].count("░")) == (24, 24)
    assert (lines[1].count("█"), lines[1].count("░")) == (24, 0)


@pytest.mark.parametrize(
    ("bound", "limit", "doubted"),
    [("compute", 0.0011, False), ("compute", 0.002, True), ("memory", 0.002, False)],
)
def test_what_computes_faster_than_it_can_casts_doubt_on_the_limit(
    bound: str, limit: float, doubted: bool
) -> None:
    work = StepWork(tokens=1, rows=1, sampled=1, context=1, pairs=1)
    part = PartProfile(name="a part", calls=1, seconds=0.001, limit_seconds=limit, bound=bound)
    step = StepProfile(what="a step", work=work, seconds=0.001, limit_seconds=limit, parts=(part,))
    assert bool(_doubts([step])) is doubted

"""``milepost calibrate`` on a small model: steps are timed, the file is whole, and the simulator takes it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from milepost.cli.app import run
from milepost.cli.calibrate import _doubts, _steps_bar
from milepost.llm.step_timing import PlannedStep, StepTimer, plan_steps
from milepost.memory.named_layout import named_layout
from milepost.sim.cost.by_name import find_cost_model
from milepost.sim.cost.calibration import Calibration
from milepost.sim.cost.step_work import work_of
from milepost.sim.models import find_model
from milepost.types import Batch, BatchResult, RowResult
from tests.llm.checkpoints import ENGINE_FLAGS

# No step of more than 64 tokens, but one of those that check the fit.
SMALL = ("--max-num-batched-tokens", "64", "--max-num-seqs", "8", "--max-model-len", "600")
# The package's attribute of this name is the command.
module = sys.modules[_steps_bar.__module__]
Capture = pytest.CaptureFixture[str]


def calibrate(model: Path, *arguments: str) -> int:
    return run(["calibrate", str(model), *ENGINE_FLAGS, *SMALL, "--repeats", "1", *arguments])


def test_from_measuring_to_a_cost_model(quiet_k3: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "this machine.json"
    assert calibrate(quiet_k3, "--out", str(out)) == 0
    printed = capsys.readouterr().out
    assert "predicted ms" in printed
    assert f"Written to {out}" in printed.replace("\n", "")
    found = msgspec.json.decode(out.read_bytes(), type=Calibration)
    assert found.model == quiet_k3.name
    assert found.engine["kernels"] == "reference"
    assert found.machine.endswith(", 1 thread")
    assert len(found.points) >= 10
    assert {point.fitted for point in found.points} == {True, False}
    assert all(point.seconds > 0 and point.repeats == 1 for point in found.points)
    _, spec = find_model(str(quiet_k3))
    cost = find_cost_model(str(out), spec)
    assert all(cost.seconds(point.work) > 0 for point in found.points)
    assert [*tmp_path.iterdir()] == [out]


def test_an_error_that_is_too_large_is_noted(quiet_k3: Path, tmp_path: Path, capsys: Capture) -> None:
    assert calibrate(quiet_k3, "--out", str(tmp_path / "c.json")) == 0
    capsys.readouterr()
    found = msgspec.json.decode((tmp_path / "c.json").read_bytes(), type=Calibration)
    good = msgspec.structs.replace(found, fitted_error=0.05, checked_error=None)
    assert _doubts(good) == []
    (doubt,) = _doubts(msgspec.structs.replace(good, checked_error=0.5))
    assert "A mean error of 50% is more than 25%" in doubt
    assert "measure again when it is idle" in doubt


def test_json_is_the_file(quiet_k3: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.json"
    few = ("--max-num-batched-tokens", "16", "--max-num-seqs", "4", "--max-model-len", "80")
    assert calibrate(quiet_k3, *few, "--json", "--out", str(out)) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--out"),
        (("--out", "/"), "is a folder"),
        (("--out", "nowhere/at/all.json"), "lies in no folder"),
        (("--out", "x.json", "--max-model-len", "5"), "Steps of 16 tokens must fit"),
        (("--out", "x.json", "--repeats", "0"), "--repeats"),
        (("--out", "x.json", "--block-size", "0"), "block_size"),
    ],
)
def test_what_cannot_be(
    quiet_k3: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["calibrate", str(quiet_k3), *ENGINE_FLAGS, *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_bar_on_a_terminal_and_none_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    step = PlannedStep(what="4 decoding at 64", rows=((64, 1),) * 4)
    shown = io.StringIO()
    with _steps_bar(2) as on_step:
        assert on_step is None
    monkeypatch.setattr(module, "notes", lambda: Console(file=shown, force_terminal=True, width=80))
    with _steps_bar(2) as on_step:
        assert on_step is not None
        on_step(step)
    assert "Timing steps" in shown.getvalue()
    assert "4 decoding at 64" in shown.getvalue()


class Clockwork:
    """An executor whose steps take what their work says, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[Batch] = []

    def run(self, batch: Batch) -> BatchResult:
        self.ran.append(batch)
        if batch.rows:
            self.now += 1e-3 * work_of(batch).tokens
        rows = tuple(RowResult(request_id=row.request_id) for row in batch.rows)
        return BatchResult(step=batch.step, rows=rows)

    def close(self) -> None:
        """Nothing is held."""


def timed(step: PlannedStep, repeats: int = 3) -> tuple[Clockwork, StepTimer]:
    executor = Clockwork()
    layout = named_layout("paged", find_model("milepost-toy-k3")[1], block_size=64)
    return executor, StepTimer(executor, layout, 100, repeats=repeats, clock=lambda: executor.now)


def test_a_short_step_is_timed_behind_one_of_its_kind() -> None:
    step = PlannedStep(what="decode", rows=((64, 1),) * 4, snapshots=1, copies=3)
    executor, timer = timed(step)
    (measured,) = timer.measure([step])
    assert measured.seconds == pytest.approx(4e-3)
    assert measured.repeats == 3
    assert measured.work.rows == measured.work.tokens == measured.work.snapshots == measured.work.sampled == 4
    assert (measured.work.copied_pages, measured.work.context) == (3, 4 * 65)
    scrub, first, second, release = executor.ran[:4]
    assert len(executor.ran) == 3 * 4
    assert not scrub.rows
    assert len(first.new_requests) == 4
    assert [row.num_output_tokens for row in second.rows] == [1] * 4
    assert set(release.released) == {row.request_id for row in first.rows}
    # Nobody shares a page, and all that are used were written before.
    pages = [page for row in first.rows for page in (*row.block_table, *row.state_table)]
    pages += [page for row in first.rows for order in row.snapshots for page in order.pages]
    pages += [page for pair in first.copies for page in pair]
    assert len(set(pages)) == len(pages)
    assert set(pages) == set(scrub.scrubs)


def test_repeats_end_when_time_is_up() -> None:
    step = PlannedStep(what="long", rows=((0, 30_000),))
    executor, timer = timed(step, repeats=50)
    (measured,) = timer.measure([step])
    assert measured.repeats == 2
    assert len(executor.ran) == 2 * 3


def test_a_plan_keeps_to_the_limits() -> None:
    from milepost.config import EngineConfig
    from milepost.memory.sizing import resolve

    _, spec = find_model("milepost-toy-k3")
    layout = named_layout("paged", spec, block_size=64)
    config = EngineConfig.from_options(
        {"model": "x", "memory": "64MiB", "max_num_seqs": 8, "max_num_batched_tokens": 300}
    )
    planned = plan_steps(resolve(config, spec, layout), layout)
    assert max(len(step.rows) for step in planned) == 8
    assert max(sum(length for _, length in step.rows) for step in planned) == 256
    assert not any("16 decoding" in step.what for step in planned)


def test_what_is_no_file_is_not_replaced_by_one(quiet_k3: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.symlink_to("/dev/null")
    few = ("--max-num-batched-tokens", "16", "--max-num-seqs", "4", "--max-model-len", "80")
    assert calibrate(quiet_k3, *few, "--out", str(out)) == 0
    assert [*tmp_path.iterdir()] == [out]
    assert out.is_symlink()
    assert out.is_char_device()

"""An exception while rows compute is the step's failure; the runner itself is well, or says that it isn't."""

from __future__ import annotations

import logging
import re

import pytest
import torch

from milepost.errors import InvariantError
from milepost.memory.layout import PagedLayout
from milepost.models.inputs import StepInputs
from milepost.models.outputs import StepOutput
from milepost.types import Batch, Row
from tests.runtime.test_model_runner import SumModel, chunk, new, runner_of


class Breaking(SumModel):
    """Raises, after it has written, when a row holds the token 9; for ever once `dead`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.dead = False

    def forward(self, inputs: StepInputs) -> StepOutput:
        output = super().forward(inputs)
        if 9 in inputs.token_ids.tolist() or self.dead:
            raise self.error
        return output


def batch_of(step: int, *rows: Row, announced: str = "") -> Batch:
    return Batch(step=step, new_requests=tuple(map(new, announced)), rows=rows)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (RuntimeError("/secret/path is broken"), r"could not be computed \(RuntimeError\), so it ends"),
        (InvariantError("kda: shapes differ"), r"could not be computed \(ExecutionError\)"),
        (MemoryError(), "too little memory to compute this request"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: ..."), "too little memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "too little memory"),
    ],
)
def test_rows_fail_together_and_nothing_was_drawn(
    layout: PagedLayout, error: Exception, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    runner = runner_of(layout, Breaking(error))
    rows = chunk("a", layout, (3, 4)), chunk("b", layout, (9, 1))
    with caplog.at_level(logging.ERROR):
        result = runner.run(batch_of(0, *rows, announced="ab"))
    assert result.rows == ()
    assert result.failure is not None
    assert re.search(sentence, result.failure)
    assert "secret" not in result.failure
    assert str(error) in caplog.text  # with the traceback, for whoever runs the server
    # The sampler has counted nothing: the same first token is drawn once the row runs by itself.
    [outcome] = runner.run(batch_of(1, chunk("a", layout, (3, 4)))).rows
    assert outcome.token_ids == (7,)


def test_scrubs_and_copies_of_a_failed_step_are_done(layout: PagedLayout) -> None:
    runner = runner_of(layout, Breaking(RuntimeError()))
    runner.arena.poison([30, 31])
    row = chunk("a", layout, (9,))
    runner.run(Batch(step=0, new_requests=(new("a"),), rows=(row,), scrubs=(30,), copies=((31, 32),)))
    pages = runner.arena.pages()
    assert not pages[30].any()
    assert (pages[32] == 0xFF).all()


def test_sizes_that_a_failed_step_left_behind_are_not_believed(
    layout: PagedLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may be refused in the middle of filling the inputs."""
    runner = runner_of(layout)
    rows = chunk("a", layout, (3, 4)), chunk("b", layout, (1,))
    runner.run(batch_of(0, *rows, announced="ab"))
    sampled = runner._inputs._sampled  # type: ignore[union-attr]

    def refuse(values: list[int]) -> None:
        raise MemoryError

    monkeypatch.setattr(sampled, "write", refuse)
    failed = runner.run(
        batch_of(1, chunk("a", layout, (5,), start=2, drawn=1), chunk("b", layout, (1, 2, 3), 1, 1))
    )
    assert failed.failure is not None
    one = runner.run(batch_of(2, chunk("a", layout, (3, 4, 5), drawn=1), chunk("b", layout, (4,), drawn=1)))
    assert [outcome.token_ids for outcome in one.rows] == [(12 % 11,), (4,)]


def test_a_model_that_does_not_run_any_more_is_the_executors_failure(layout: PagedLayout) -> None:
    model = Breaking(RuntimeError("device lost"))
    runner = runner_of(layout, model)
    model.dead = True
    with pytest.raises(RuntimeError, match="device lost"):
        runner.run(batch_of(0, chunk("a", layout, (1,)), announced="a"))


def test_a_batch_that_contradicts_itself_is_nobodys_request(layout: PagedLayout) -> None:
    runner = runner_of(layout)
    with pytest.raises(InvariantError, match="without tokens"):
        runner.run(batch_of(0, chunk("a", layout, ()), announced="a"))

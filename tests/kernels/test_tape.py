"""Tapes, the memory they write, and the guard under which they are recorded."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.add.cpu import add
from milepost.kernels.native import empty, native, use_workspace
from milepost.kernels.native.views_only import ViewsOnly
from milepost.kernels.rms_norm.cpu import rms_norm
from milepost.kernels.take_rows.cpu import take_rows

ONES = torch.ones(48)


def record(x: Tensor, index: Tensor, workspace: native.Workspace) -> tuple[native.Tape, Tensor]:
    """norm(x)[index] + norm(norm(x))[index], on a tape that reads both from memory."""
    tape = native.Tape()
    tape.start()
    with use_workspace(workspace), ViewsOnly():
        once = rms_norm(x, ONES, 1.0)
        out = take_rows(once, index)
        add(out, take_rows(rms_norm(once, ONES, 1.0), index))
    tape.stop()
    return tape, out


def expected(x: Tensor, index: Tensor) -> Tensor:
    once = rms_norm(x, ONES, 1.0)
    return once[index] + rms_norm(once, ONES, 1.0)[index]


def test_a_tape_computes_what_its_buffers_hold_now() -> None:
    x, index = torch.randn(9, 48), torch.tensor([3, 3, 0])
    tape, out = record(x, index, native.Workspace())
    assert len(tape) == 5
    assert torch.equal(out, expected(x, index))
    for _ in range(5):
        x.copy_(torch.randn(9, 48))
        index.copy_(torch.randint(9, (3,)))
        tape.play()
        assert torch.equal(out, expected(x, index))


def test_tapes_of_one_workspace_take_turns() -> None:
    """What a tape wrote is read before another is played; then each is right, whatever they share."""
    workspace = native.Workspace()
    sizes = [(rows, samples) for rows in (9, 5, 7) for samples in (1, 4)]
    tapes = []
    for rows, samples in sizes:
        x, index = torch.randn(rows, 48), torch.randint(rows, (samples,))
        tape, out = record(x, index, workspace)
        lent = torch.frombuffer(workspace.lend(out.data_ptr(), out.nbytes), dtype=torch.float32)
        tapes.append((tape, x, index, lent.view(samples, 48)))
    del out
    once = workspace.num_bytes
    for turn in torch.randint(len(tapes), (40,)).tolist():
        tape, x, index, out = tapes[turn]
        x.copy_(torch.randn(x.shape))
        tape.play()
        assert torch.equal(out, expected(x, index))
    assert workspace.num_bytes == once


def test_memory_is_used_again_and_outlives_its_workspace() -> None:
    workspace = native.Workspace()
    with use_workspace(workspace):
        first = empty(5, 7)
        second = empty(5, 7)
        address = first.data_ptr()
        assert address != second.data_ptr()
        del first
        assert empty(5, 7).data_ptr() == address
        assert empty(0, 7).shape == (0, 7)
    assert empty(5, 7).data_ptr() != address  # outside, it is torch's
    del workspace
    gc.collect()
    second.fill_(2.0)
    assert second.sum() == 70


def test_another_thread_does_not_take_from_the_workspace() -> None:
    workspace, others = native.Workspace(), []
    with use_workspace(workspace):
        thread = threading.Thread(target=lambda: others.append(empty(1000)))
        thread.start()
        thread.join()
    assert workspace.num_bytes == 0
    assert others[0].shape == (1000,)


def test_a_tape_is_played_from_another_thread() -> None:
    x, index = torch.randn(9, 48), torch.tensor([3])
    tape, out = record(x, index, native.Workspace())
    x.copy_(torch.randn(9, 48))
    thread = threading.Thread(target=tape.play)
    thread.start()
    thread.join()
    assert torch.equal(out, expected(x, index))


def test_another_threads_calls_are_not_recorded() -> None:
    tape = native.Tape()
    tape.start()
    thread = threading.Thread(target=rms_norm, args=(torch.randn(2, 48), ONES, 1.0))
    thread.start()
    thread.join()
    tape.stop()
    assert len(tape) == 0


def test_a_tape_does_one_thing_at_a_time() -> None:
    tape, other = native.Tape(), native.Tape()
    with pytest.raises(RuntimeError, match="does not record"):
        tape.stop()
    tape.start()
    try:
        with pytest.raises(RuntimeError, match="records another tape"):
            other.start()
        with pytest.raises(RuntimeError, match="records another tape"):
            tape.start()
        with pytest.raises(RuntimeError, match="recorded from another"):
            other.play()
    finally:
        tape.stop()
    other.play()  # an empty one


def test_a_tape_that_is_dropped_while_it_records_does_no_harm() -> None:
    def forgotten() -> None:
        tape = native.Tape()
        tape.start()
        del tape
        gc.collect()
        rms_norm(torch.randn(2, 48), ONES, 1.0)

    thread = threading.Thread(target=forgotten)
    thread.start()
    thread.join()
    rms_norm(torch.randn(2, 48), ONES, 1.0)


COMPUTES = {
    "add": lambda x: x + 1,
    "in place": lambda x: x.mul_(2),
    "copy": lambda x: x.clone(),
    "cast": lambda x: x.double(),
    "reshape that copies": lambda x: x.T.reshape(-1),
    "memory": lambda x: torch.empty(3),
    "zeros": torch.zeros_like,
    "item": lambda x: x[0, 0].item(),
    "truth": lambda x: bool(x[0, 0]),
    "list": lambda x: x.tolist(),
    "numpy": np.asarray,
    "matmul": lambda x: x @ x.T,
    "cat": lambda x: torch.cat([x, x]),
}


@pytest.mark.parametrize("compute", COMPUTES.values(), ids=COMPUTES.keys())
def test_the_guard_refuses_whatever_a_tape_would_miss(compute: object) -> None:
    x = torch.randn(4, 6)
    with (
        torch.inference_mode(),
        pytest.raises(InvariantError, match="Only native kernels"),
        ViewsOnly(),
    ):
        compute(x)  # type: ignore[operator]


@pytest.mark.parametrize("inference", [True, False])
def test_the_guard_lets_views_through(inference: bool) -> None:
    x = torch.randn(4, 6)
    with torch.inference_mode(inference), ViewsOnly():
        left, right = torch.split(x, [2, 4], dim=-1)
        assert left.view(4, 2, 1).flatten(1).shape == (4, 2)
        assert [part.data_ptr() for part in right.chunk(2, dim=-1)] == [
            right.data_ptr(),
            right[:, 2:].data_ptr(),
        ]
        assert x.to(torch.float32) is x
        assert torch.empty(0, 7).shape == (0, 7)
        assert x.reshape(-1)[3:].is_contiguous()

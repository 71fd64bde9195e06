"""Choosing kernels by name, the paging views, and how compiled kernels fall back."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from numba import prange

from milepost.errors import ConfigError, InvariantError
from milepost.kernels import jit
from milepost.kernels.ops import KERNELS, load_ops
from milepost.kernels.paging import PagedState, Ragged
from tests.kernels.arenas import ragged

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", KERNELS)
def test_every_version_has_every_op(name: str) -> None:
    ops = load_ops(name)
    for field in dataclasses.fields(ops):
        if field.name in {"name", "writer"}:
            continue
        op = getattr(ops, field.name)
        assert op.__module__.startswith(f"milepost.kernels.{field.name}.{name}")


def test_versions_have_the_same_signatures() -> None:
    first, second = (load_ops(name) for name in KERNELS)
    for field in dataclasses.fields(first)[2:]:  # all but the name and the matrices
        assert inspect.signature(getattr(first, field.name)) == inspect.signature(getattr(second, field.name))


def test_an_unknown_name_is_an_error_with_the_nearest_match() -> None:
    with pytest.raises(ConfigError, match=r"Given: 'refrence'\. Did you mean 'reference'\?"):
        load_ops("refrence")
    with pytest.raises(ConfigError, match="must be one of reference, cpu"):
        load_ops("")


def test_the_reference_needs_no_compiler() -> None:
    code = "import sys; sys.modules['numba'] = None\n"
    code += "from milepost.kernels.ops import load_ops\nload_ops('reference')"
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


def test_ragged_derives_rows_and_positions() -> None:
    rows = ragged([2, 1, 3], [5, 0, 64])
    assert (rows.num_rows, rows.num_tokens) == (3, 6)
    assert rows.lengths().tolist() == [2, 1, 3]
    assert rows.row_ids().tolist() == [0, 0, 1, 2, 2, 2]
    assert rows.positions().tolist() == [5, 6, 0, 64, 65, 66]
    assert rows.positions() is rows.positions(), "derived once"


def test_ragged_refuses_what_does_not_fit() -> None:
    with pytest.raises(InvariantError, match="one number more"):
        Ragged(cu_seqlens=torch.tensor([0, 1]), starts=torch.tensor([0, 0]))
    with pytest.raises(InvariantError, match="must be int64"):
        Ragged(cu_seqlens=torch.tensor([0, 1], dtype=torch.int32), starts=torch.tensor([0]))
    with pytest.raises(InvariantError, match="at least one token"):
        _ = Ragged(cu_seqlens=torch.tensor([0, 1, 1]), starts=torch.tensor([0, 0])).offsets


def test_tiles_follow_the_state_table() -> None:
    tiles = torch.zeros(30, 1, 1)
    state = PagedState(
        recurrent=tiles, conv=tiles[:, 0], table=torch.tensor([[7, 2, 4], [1, 9, 3]]), tiles_per_page=3
    )
    assert state.tile_ids(2, 3).tolist() == [[23, 6, 7], [5, 27, 28]]


def _double(source: np.ndarray, target: np.ndarray) -> None:
    for i in prange(source.shape[0]):
        target[i] = 2 * source[i]


def _run(kernel: jit.Kernel, work: int = 0) -> None:
    source, target = torch.arange(6.0), torch.zeros(6)
    kernel(work, *jit.arrays(source, target))
    assert torch.equal(target, 2 * source)


def test_a_kernel_runs_without_a_place_for_its_cache(tmp_path: Path) -> None:
    """Read-only installation, no home: compiled code can't be kept, and works all the same."""
    package = tmp_path / "loops"
    package.mkdir()
    (package / "doubling.py").write_text(
        "from numba import prange\n"
        "def double(a, b):\n"
        "    for i in prange(a.shape[0]):\n"
        "        b[i] = 2 * a[i]\n"
    )
    code = (
        "import torch, numba.core.caching as caching\n"
        "def refuse(*args, **options): raise OSError(30, 'Read-only file system')\n"
        "caching.tempfile.TemporaryFile = refuse\n"  # how numba tries whether a directory can be written
        "from milepost.kernels.jit import Kernel, arrays\n"
        "from doubling import double\n"
        "a, b = torch.ones(3), torch.zeros(3)\n"
        "Kernel(double)(0, *arrays(a, b))\n"
        "assert b.tolist() == [2.0, 2.0, 2.0]\n"
    )
    path = os.pathsep.join([str(ROOT), str(package)])
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
    )
    assert not (package / "__pycache__").exists() or not list((package / "__pycache__").glob("*.nbi"))


def test_a_kernel_runs_when_its_cache_cannot_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    _run(jit.Kernel(_double))


def test_small_work_stays_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    kernel = jit.Kernel(_double)
    _run(kernel, jit.PARALLEL_WORK - 1)
    assert set(kernel._compiled) == {False}
    _run(kernel, jit.PARALLEL_WORK)
    assert set(kernel._compiled) == {False, True}


def test_a_kernel_is_serial_while_another_thread_is_parallel() -> None:
    torch.set_num_threads(2)
    kernel = jit.Kernel(_double)
    with jit._pool.lock:
        worker = threading.Thread(target=_run, args=(kernel, jit.PARALLEL_WORK))
        worker.start()
        worker.join(60)
    assert not worker.is_alive()
    assert set(kernel._compiled) == {False}


def test_a_forked_child_does_not_touch_the_parents_threads() -> None:
    """A thread pool doesn't survive a fork: the child must neither hang nor be killed."""
    code = (
        "import os, torch\n"
        "torch.set_num_threads(2)\n"
        "from milepost.kernels.jit import PARALLEL_WORK, arrays\n"
        "from milepost.kernels.mxfp4.cpu import dequantize\n"
        "p, s = torch.zeros(512, 512, dtype=torch.uint8), torch.zeros(512, 32, dtype=torch.uint8)\n"
        "assert p.numel() * 2 >= PARALLEL_WORK\n"
        "dequantize(p, s, torch.float32)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    torch.set_num_threads(2)\n"
        "    dequantize(p, s, torch.float32)\n"
        "    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

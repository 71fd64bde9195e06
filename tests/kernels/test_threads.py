"""The kernels' threads: results never depend on them, whoever calls, forks or competes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from milepost.kernels import native as kernels
from milepost.kernels.linear import cpu
from milepost.kernels.matrix import DenseMatrix
from milepost.kernels.native import native
from milepost.kernels.native.packed import PackedMatrix, pack
from milepost.kernels.rms_norm.cpu import rms_norm


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = native.num_threads()
    yield
    native.set_num_threads(before)


def work() -> tuple[Tensor, PackedMatrix]:
    """A product that is large enough for many chunks."""
    return torch.randn(40, 256), pack(DenseMatrix(torch.randn(700, 256)))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, matrix = work()
    native.set_num_threads(1)
    alone = cpu.linear(x, matrix)
    for threads in (2, 3, 8, 5, 1, 2):
        native.set_num_threads(threads)
        assert native.num_threads() == threads
        for _ in range(20):
            assert torch.equal(cpu.linear(x, matrix), alone)


@pytest.mark.parametrize("threads", [0, -1])
def test_no_threads_are_refused(threads: int) -> None:
    before = native.num_threads()
    with pytest.raises(ValueError, match=f"at least 1 thread. Given: {threads}"):
        native.set_num_threads(threads)
    assert native.num_threads() == before


def test_python_threads_compute_at_once_and_threads_come_and_go() -> None:
    """One has the pool, the others go on alone; meanwhile the pool changes its size."""
    x, matrix = work()
    native.set_num_threads(1)
    alone, normed = cpu.linear(x, matrix), rms_norm(x, torch.ones(256), 1e-6)
    wrong: list[int] = []

    def compute(number: int) -> None:
        for _ in range(200):
            if not torch.equal(cpu.linear(x, matrix), alone):
                wrong.append(number)
            if not torch.equal(rms_norm(x, torch.ones(256), 1e-6), normed):
                wrong.append(number)

    callers = [threading.Thread(target=compute, args=(number,)) for number in range(3)]
    for caller in callers:
        caller.start()
    sizes = 0
    while any(caller.is_alive() for caller in callers):
        sizes += 1
        native.set_num_threads(1 + sizes % 4)
    for caller in callers:
        caller.join()
    assert sizes
    assert not wrong


def test_the_pool_starts_no_more_threads_than_it_needs() -> None:
    x, matrix = work()
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("threads are counted in /proc, which is Linux's")
    native.set_num_threads(4)
    cpu.linear(x, matrix)
    started = len(list(tasks.iterdir()))
    for threads in (1, 2, 4, 3) * 10:
        native.set_num_threads(threads)
        cpu.linear(x, matrix)
    assert len(list(tasks.iterdir())) == started


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    x, matrix = work()
    native.set_num_threads(3)
    want = cpu.linear(x, matrix)
    child = os.fork()
    if child == 0:  # pragma: no cover - measured in the parent only
        right = native.num_threads() == 3 and all(torch.equal(cpu.linear(x, matrix), want) for _ in range(20))
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(cpu.linear(x, matrix), want)


def test_a_process_ends_while_threads_wait_and_while_one_computes() -> None:
    code = (
        "import threading, torch\n"
        "from milepost.kernels.linear.cpu import linear\n"
        "from milepost.kernels.matrix import DenseMatrix\n"
        "from milepost.kernels.native import native\n"
        "from milepost.kernels.native.packed import pack\n"
        "native.set_num_threads(3)\n"
        "x, matrix = torch.randn(64, 512), pack(DenseMatrix(torch.randn(4096, 512)))\n"
        "y = linear(x, matrix)\n"
        # No torch beside the kernel: its calls may end the process when they end with the interpreter.
        "call = matrix.handle, x.data_ptr(), 512, 0, y.data_ptr(), 4096, 0, 64, False\n"
        "def forever():\n"
        "    while True: native.linear(*call)\n"
        "threading.Thread(target=forever, daemon=True).start()\n"
        "for _ in range(5): linear(x, matrix)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_threads_do_no_harm_where_others_want_the_cores() -> None:
    """Two processes spin on the cores: two threads must not wait for whole time slices of theirs."""
    x, matrix = torch.randn(400, 512), pack(DenseMatrix(torch.randn(2048, 512)))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        seconds: dict[int, float] = {}
        for threads in (1, 2):
            native.set_num_threads(threads)
            cpu.linear(x, matrix)
            begin = time.perf_counter()
            for _ in range(60):
                cpu.linear(x, matrix)
            seconds[threads] = time.perf_counter() - begin
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert seconds[2] < 2 * seconds[1]


def test_torch_has_no_threads_beside_the_kernels() -> None:
    before = torch.get_num_threads()
    kernels.set_num_threads(2)
    assert (torch.get_num_threads(), native.num_threads()) == (1, 2)
    torch.set_num_threads(before)

"""Kernels against the machine's limits, and against torch where it has the same product.

An op adds its cases to `CASES`: a name, what a call reads and computes at least, and the call. A case's
share is the time that the slower of the two limits allows, by the time that it takes. Limits are measured
before each case and a peer in turns with the kernel, so that other work on the machine touches both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch

from benchmarks.results import Result
from milepost.kernels.linear import cpu
from milepost.kernels.matrix import DenseMatrix, Int8Matrix, Matrix, Mxfp4Matrix
from milepost.kernels.native import set_num_threads
from milepost.kernels.native.limits import measure_limits
from milepost.kernels.native.packed import PackedMatrix, pack
from milepost.machine import usable_cores

__all__ = ["CASES", "KernelCase", "kernels"]

ROUNDS = 3
SECONDS = 0.1  # of a sample at least

INPUTS = 7168
# Few rows meet a matrix that no cache holds in any format; many have work enough with a smaller one.
ROWS = {16384: (1, 2, 4, 8, 32), 2048: (256, 2048)}


@dataclass(frozen=True, kw_only=True)
class KernelCase:
    """One call that is measured.

    Attributes:
        name: op, format and shape.
        num_bytes: that must come from memory.
        flops: that must be done; a multiplication and an addition are two.
        call: the kernel's call.
        peer: the same work by torch, if it can.
    """

    name: str
    num_bytes: int
    flops: int
    call: Callable[[], object]
    peer: Callable[[], object] | None = None


def kernels() -> Iterator[Result]:
    """Kernels: share of the limit that memory or arithmetic sets; speed against torch's."""
    set_num_threads(usable_cores())
    for make in CASES:
        for case in make():
            yield from _measure(case)


def _linear_cases() -> Iterator[KernelCase]:
    """Products with every weight format, for few rows and for many."""
    for out, many_rows in ROWS.items():
        for name, matrix in _matrices(out, INPUTS).items():
            packed = pack(matrix)
            for rows in many_rows:
                yield _linear_case(name, matrix, packed, torch.randn(rows, INPUTS))


def _linear_case(name: str, matrix: Matrix, packed: PackedMatrix, x: torch.Tensor) -> KernelCase:
    weight = matrix.weight if isinstance(matrix, DenseMatrix) and name == "f32" else None
    rows, (_, out, inputs) = x.shape[0], packed.shape
    return KernelCase(
        name=f"linear {name} {rows} x {inputs} x {out}",
        num_bytes=packed.num_bytes,
        flops=2 * rows * inputs * out,
        call=lambda: cpu.linear(x, packed),
        peer=None if weight is None else lambda: torch.nn.functional.linear(x, weight),
    )


def _matrices(out: int, inputs: int) -> dict[str, Matrix]:
    dense = torch.randn(out, inputs)
    codes = torch.randint(0, 256, (out, inputs // 2), dtype=torch.uint8)
    return {
        "f32": DenseMatrix(dense),
        "bf16": DenseMatrix(dense.bfloat16()),
        "int8": Int8Matrix(torch.randint(-127, 128, (out, inputs), dtype=torch.int8), torch.rand(out)),
        "mxfp4": Mxfp4Matrix(codes, torch.randint(120, 130, (out, inputs // 32), dtype=torch.uint8)),
    }


CASES: list[Callable[[], Iterator[KernelCase]]] = [_linear_cases]
"""One maker an op: cases are made when their turn comes, for their operands are large."""


def _measure(case: KernelCase) -> Iterator[Result]:
    shares, times, peers = [], [], []
    limits = measure_limits()
    for _ in range(ROUNDS):
        taken = _seconds(case.call)
        times.append(taken * 1e6)
        least = max(case.num_bytes / limits.read_bytes_per_second, case.flops / limits.flops_per_second)
        shares.append(least / taken)
        if case.peer is not None:
            peers.append(_peer_seconds(case.peer) / taken)
    settings: dict[str, object] = {"limits": asdict(limits)}
    found = [("time", "us", times), ("share of the limit", "", shares), ("speed by torch's", "x", peers)]
    for quantity, unit, samples in found:
        if samples:
            yield Result(
                benchmark="kernels",
                subject=case.name,
                quantity=quantity,
                unit=unit,
                samples=samples,
                settings=settings,
            )


def _peer_seconds(call: Callable[[], object]) -> float:
    """By torch on as many threads; these spin for a while after a call, which must not slow others down."""
    torch.set_num_threads(usable_cores())
    taken = _seconds(call)
    torch.set_num_threads(1)
    time.sleep(0.3)
    return taken


def _seconds(call: Callable[[], object]) -> float:
    """The best of several calls."""
    call()
    best = float("inf")
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best

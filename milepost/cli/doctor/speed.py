"""What the kernels could do at most here, measured for a fraction of a second."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from milepost.cli.doctor.finding import Finding, Level
from milepost.machine import usable_cores

if TYPE_CHECKING:
    from milepost.kernels.native.limits import MachineLimits

__all__ = ["examine_speed", "measured"]

_REPEATS = 5


def measured() -> MachineLimits | None:
    """The machine's rates with all usable cores, None without compiled kernels."""
    if importlib.util.find_spec("torch") is None:
        return None
    from milepost.kernels.native import available, set_num_threads

    if not available():
        return None
    from milepost.kernels.native.limits import measure_limits

    set_num_threads(usable_cores())
    return measure_limits(_REPEATS)


def examine_speed(limits: MachineLimits) -> Finding:
    """Say what was measured."""
    rates = (
        f"memory is read at {limits.read_bytes_per_second / 1e9:.1f} GB/s, "
        f"{limits.flops_per_second / 1e9:.0f} GFLOP/s in float32, {limits.threads} threads"
    )
    return Finding(topic="machine", name="speed", level=Level.OK, found=rates)

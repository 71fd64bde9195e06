"""What the machine offers."""

from __future__ import annotations

from milepost.machine import available_memory, usable_cores


def test_the_machine_has_memory_and_cores() -> None:
    assert available_memory() > 1 << 20
    assert usable_cores() >= 1

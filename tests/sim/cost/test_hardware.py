"""Hardware files: all that ship are whole, and what is wrong in a user's own is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.sim.cost.hardware import find_hardware, hardware_names

NAMES = ("b200", "b300", "cpu", "gb300", "h100", "h200")


def test_what_ships() -> None:
    assert hardware_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_whole(name: str) -> None:
    hardware = find_hardware(name.upper())
    assert hardware.name == name
    assert hardware.sources
    assert len(hardware.date) >= len("2024-01")
    peak = hardware.peak_flops
    assert peak.bf16 <= (peak.fp8 or peak.bf16) <= (peak.fp4 or peak.fp8 or peak.bf16)
    assert hardware.interconnect_bytes_per_second < hardware.memory_bytes_per_second


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("memory_bytes",), 0, "memory_bytes of hardware 'h200' must be above 0"),
        (("memory_bytes_per_second",), -1.0, "must be above 0 and finite"),
        (("peak_flops", "bf16"), 0.0, r"peak_flops.bf16"),
        (("efficiency", "memory"), 1.5, "efficiency.memory of hardware 'h200' must be at most 1"),
        (("sources",), [], "sources"),
        (("colour",), "red", "unknown field `colour`"),
        (("step_seconds",), "soon", r"Expected `float`, got `str` - at `\$.step_seconds`"),
    ],
)
def test_wrong_figures(tmp_path: Path, path: tuple[str, ...], value: Any, words: str) -> None:
    content: dict[str, Any] = msgspec.to_builtins(find_hardware("h200"))
    place = content
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=words):
        find_hardware(str(file))


def test_unknown_names_list_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"one of b200, b300, cpu, gb300, h100, h200.*Did you mean 'h200'"):
        find_hardware("h20")

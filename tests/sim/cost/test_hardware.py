"""Hardware files: all that ship are whole and plausible, and what is wrong in a user's own is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.sim.cost.by_name import find_cost_model
from milepost.sim.cost.hardware import Hardware, find_hardware, hardware_names
from milepost.sim.cost.step_work import StepWork
from milepost.sim.models import find_model

NAMES = (
    *("ascend-910b", "ascend-910c", "ascend-910c-die", "b200", "b300", "cpu", "gb200", "gb300", "h100"),
    *("h200", "mi300x", "mi325x", "mi355x", "rtx-pro-6000"),
)
ACCELERATORS = tuple(name for name in NAMES if name != "cpu")
PER_SECOND = {"bf16": (1e14, 1e16), "memory": (1e12, 1e13), "interconnect": (5e10, 1e12)}
"""Bounds of what one accelerator of these years can do."""


def test_what_ships() -> None:
    assert hardware_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_whole(name: str) -> None:
    hardware = find_hardware(name.upper())
    assert hardware.name == name
    assert hardware.memory_kind
    assert hardware.compute_units is not None
    assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", hardware.date)
    assert all(len(source) > 20 for source in hardware.sources)
    assert any("http" in source for source in hardware.sources)
    peak = hardware.peak_flops
    assert peak.bf16 <= (peak.fp8 or peak.bf16) <= (peak.fp4 or peak.fp8 or peak.bf16)
    assert hardware.scale_out_bytes_per_second <= hardware.interconnect_bytes_per_second
    assert hardware.interconnect_bytes_per_second < hardware.memory_bytes_per_second


@pytest.mark.parametrize("name", ACCELERATORS)
def test_figures_are_plausible(name: str) -> None:
    hardware = find_hardware(name)
    found = {
        "bf16": hardware.peak_flops.bf16,
        "memory": hardware.memory_bytes_per_second,
        "interconnect": hardware.interconnect_bytes_per_second,
    }
    for what, value in found.items():
        least, most = PER_SECOND[what]
        assert least < value < most, what
    assert 60e9 < hardware.memory_bytes < 300e9
    # the ridge: FLOPs for each byte of memory below which a product waits for memory
    assert 100 < hardware.peak_flops.bf16 / hardware.memory_bytes_per_second < 400
    assert hardware.domain_devices >= (hardware.node_devices or 0) >= 4
    reported = hardware.reported_memory_bytes
    assert reported is not None
    assert hardware.memory_bytes < reported < 1.08 * hardware.memory_bytes


@pytest.mark.parametrize("name", ACCELERATORS)
def test_fp8_is_twice_bf16_and_fp4_twice_that_or_more(name: str) -> None:
    peak = find_hardware(name).peak_flops
    if peak.fp8 is not None:
        assert peak.fp8 == pytest.approx(2 * peak.bf16, rel=1e-4)
    if peak.fp4 is not None:
        assert peak.fp8 is not None
        assert 2 <= round(peak.fp4 / peak.fp8, 3) <= 3


def test_what_can_run_packed_weights() -> None:
    found = {name: find_hardware(name).peak_flops for name in ACCELERATORS}
    assert {name for name, peak in found.items() if peak.fp4 is None} == {
        *("ascend-910b", "ascend-910c", "ascend-910c-die", "h100", "h200", "mi300x", "mi325x")
    }
    assert {name for name, peak in found.items() if peak.fp8 is None} == {
        *("ascend-910b", "ascend-910c", "ascend-910c-die")
    }


def test_racks_against_their_sheets() -> None:
    """72 devices give what the vendor prints of a rack, its peaks with sparsity."""
    for name, fp4_dense, memory in (("gb200", 720e15, 13.4e12), ("gb300", 1080e15, 20e12)):
        one = find_hardware(f"{name} NVL72")
        assert one.name == name
        assert one.domain_devices == 72
        assert 72 * (one.peak_flops.fp4 or 0) == pytest.approx(fp4_dense)
        assert 2 * 72 * (one.peak_flops.fp8 or 0) == pytest.approx(720e15)
        assert 2 * 72 * one.peak_flops.bf16 == pytest.approx(360e15)
        assert 72 * one.memory_bytes == pytest.approx(memory, rel=0.04)
        assert 72 * one.memory_bytes_per_second == pytest.approx(576e12)
        assert 2 * 72 * one.interconnect_bytes_per_second == pytest.approx(130e12, rel=0.01)


def test_peaks_of_amd_by_their_clock() -> None:
    for name, flop_a_cycle, clock in (
        ("mi300x", 2048, 2.1e9),
        ("mi325x", 2048, 2.1e9),
        ("mi355x", 4096, 2.4e9),
    ):
        hardware = find_hardware(name)
        assert hardware.compute_units is not None
        product = hardware.compute_units * flop_a_cycle * clock
        assert hardware.peak_flops.bf16 == pytest.approx(product, rel=1e-4)


def test_two_dies_are_a_package() -> None:
    package, die = find_hardware("ascend-910c"), find_hardware("ascend-910c-die")
    for field in (
        "memory_bytes",
        "memory_bytes_per_second",
        "interconnect_bytes_per_second",
        "compute_units",
    ):
        assert getattr(package, field) == 2 * getattr(die, field)
    assert package.peak_flops.bf16 == 2 * die.peak_flops.bf16
    assert 2 * package.domain_devices == die.domain_devices == 768


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("gb300", "gb300"),
        ("GB300 NVL72", "gb300"),
        ("gb300_nvl72", "gb300"),
        ("NVIDIA GB200  NVL72", "gb200"),
        ("h200_sxm", "h200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Huawei Ascend 910C", "ascend-910c"),
        ("910b", "ascend-910b"),
        ("RTX PRO 6000", "rtx-pro-6000"),
        ("rtx_pro_6000_server", "rtx-pro-6000"),
    ],
)
def test_other_words_for_it(asked: str, name: str) -> None:
    assert find_hardware(asked).name == name


def test_no_word_stands_for_two() -> None:
    words = [word for name in NAMES for word in (name, *find_hardware(name).aliases)]
    assert len(words) == len(set(words))
    assert all(word == word.lower() and " " not in word and "_" not in word for word in words)


@pytest.mark.parametrize("name", NAMES)
def test_each_can_run_kimi_k3_in_theory(name: str) -> None:
    """A step of one token takes at least the weights that it reads, and less than a second."""
    cost = find_cost_model(name, find_model("kimi-k3")[1], tensor_parallel=8)
    token = StepWork(tokens=1, rows=1, sampled=1, context=8192, pairs=8192)
    experts = 92 * 16 * 17.5e6 / 64  # the routed ones that a token reads, were they spread over 64 devices
    hardware = find_hardware(name)
    assert experts / hardware.memory_bytes_per_second < cost.seconds(token) < 1.0


def test_old_files_of_users_still_do(tmp_path: Path) -> None:
    content: dict[str, Any] = msgspec.to_builtins(find_hardware("h200"))
    added = (
        "aliases",
        "memory_kind",
        "reported_memory_bytes",
        "node_devices",
        "compute_units",
        "power_watts",
    )
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({name: value for name, value in content.items() if name not in added}))
    mine: Hardware = find_hardware(str(file))
    assert (mine.node_devices, mine.compute_units, mine.power_watts) == (None, None, None)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("memory_bytes",), 0, "memory_bytes of hardware 'h200' must be above 0"),
        (("memory_bytes_per_second",), -1.0, "must be above 0 and finite"),
        (("peak_flops", "bf16"), 0.0, r"peak_flops.bf16"),
        (("efficiency", "memory"), 1.5, "efficiency.memory of hardware 'h200' must be at most 1"),
        (("compute_units",), 0, "compute_units of hardware 'h200' must be above 0"),
        (
            ("memory_bytes",),
            10**400,
            "memory_bytes of hardware .* must be 1e\\+06 to 1e\\+18. Given: more",
        ),
        (("domain_devices",), 10**18, "domain_devices of hardware 'h200' must be 1 to 1e\\+09"),
        (("memory_bytes_per_second",), 1e-300, "must be 1000 to 1e\\+18. Given: 1e-300"),
        (("peak_flops", "bf16"), 1e300, "peak_flops.bf16 of hardware 'h200' must be 1e\\+06 to 1e\\+21"),
        (("efficiency", "cache"), 1e-300, "efficiency.cache of hardware 'h200' must be 0.0001 to 1"),
        (("kernel_seconds",), 1e300, "kernel_seconds of hardware 'h200' must be 1e-12 to 100"),
        (("sources",), [], "sources"),
        (("colour",), "red", "unknown field `colour`"),
        (("price_per_hour",), 3.0, "unknown field `price_per_hour`"),
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


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("h20", "h200"),
        ("MI300", "mi300x"),
        ("gb30", "gb300"),
        ("ascend 910", "ascend-910"),
        ("RTX 6000 Pr", "rtx"),
    ],
)
def test_unknown_names_list_what_there_is(asked: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"one of ascend-910b, .*, b200, .*Given: .*Did you mean '{near}"):
        find_hardware(asked)


def test_a_name_like_nothing() -> None:
    with pytest.raises(ConfigError, match=r"Given: 'abacus'\.$"):
        find_hardware("abacus")

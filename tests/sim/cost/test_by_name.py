"""A model of time found by name: defaults, how many devices, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.model_spec import ModelSpec
from milepost.sim.cost.by_name import default_hardware, find_cost_model
from milepost.sim.cost.hardware import PeakFlops, find_hardware
from milepost.sim.models import find_model


@pytest.fixture(scope="module")
def k3() -> ModelSpec:
    return find_model("kimi-k3")[1]


def test_default_hardware_holds_the_weights() -> None:
    names = {
        name: default_hardware(find_model(name)[1]) for name in ("kimi-k3", "kimi-linear", "milepost-toy-k3")
    }
    assert names == {"kimi-k3": "gb300", "kimi-linear": "h200", "milepost-toy-k3": "cpu"}


def test_as_many_devices_as_the_weights_need(k3: ModelSpec) -> None:
    assert find_cost_model("", k3).name == "16 x gb300 (TP1 x DP16)"
    assert find_cost_model("", k3, tensor_parallel=8).name == "8 x gb300 (TP8 x DP1)"
    assert find_cost_model("H200", k3, tensor_parallel=8).name == "16 x h200 (TP8 x DP2)"
    assert find_cost_model("h100", find_model("kimi-linear")[1]).name == "2 x h100 (TP1 x DP2)"


@pytest.mark.parametrize(
    ("hardware", "options", "words"),
    [
        ("h100", {}, "113,4.*Raise tensor_parallel"),
        ("gb300", {"tensor_parallel": 7}, "divide the 96 KDA.*nearest that does: [68]"),
        ("gb300", {"tensor_parallel": 0}, "tensor_parallel must be at least 1"),
        ("gb300", {"data_parallel": -1}, "data_parallel must be at least 1"),
        ("gb30", {}, "Did you mean 'gb300'"),
        ("nowhere.json", {}, "can't be read"),
    ],
)
def test_what_cannot_be(k3: ModelSpec, hardware: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_cost_model(hardware, k3, **options)


def test_a_description_of_ones_own(tmp_path: Path, k3: ModelSpec) -> None:
    path = tmp_path / "mine.json"
    mine = msgspec.structs.replace(find_hardware("gb300"), name="mine", peak_flops=PeakFlops(bf16=1e15))
    path.write_bytes(msgspec.json.encode(mine))
    cost = find_cost_model(str(path), k3, data_parallel=16)
    assert cost.name == "16 x mine (TP1 x DP16)"
    path.write_text(json.dumps({"kind": "something"}))
    with pytest.raises(ConfigError, match="neither a description of hardware nor a calibration"):
        find_cost_model(str(path), k3)

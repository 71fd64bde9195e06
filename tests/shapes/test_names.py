"""Shapes by name and by path."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from milepost.config_json import parse_config
from milepost.shapes.names import SHAPES, find_shape
from milepost.shapes.of_spec import shape_of


@pytest.mark.parametrize("name", SHAPES)
def test_names_and_paths_are_the_same_model(name: str, tmp_path: Path) -> None:
    found, shape = find_shape(name.upper())
    assert found == name
    assert find_shape(str(SHAPES[name]))[1] == shape
    assert find_shape(str(SHAPES[name] / "config.json"))[1] == shape
    mine = tmp_path / "mine.json"
    shutil.copy(SHAPES[name] / "config.json", mine)
    assert find_shape(str(mine)) == ("mine", shape)


@pytest.mark.parametrize("name", ["kimi-k3", "kimi-linear", "milepost-toy-k3"])
def test_what_the_engine_runs_is_read_by_its_own_rules(name: str) -> None:
    config = json.loads((SHAPES[name] / "config.json").read_text())
    assert find_shape(name)[1] == shape_of(parse_config(config))


def test_settings_of_quantisation_beside_the_file(tmp_path: Path) -> None:
    """A checkpoint may keep them in hf_quant_config.json; config.json's own count before those."""
    shutil.copy(SHAPES["nemotron-3-super"] / "config.json", tmp_path)
    settings = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(settings))
    _, shape = find_shape(str(tmp_path))
    assert shape.experts is not None
    assert shape.experts.bytes_per_parameter == shape.experts.latent_bytes_per_parameter == 1.0
    plain = find_shape("nemotron-3-super")[1]
    assert plain.experts is not None
    assert plain.experts.bytes_per_parameter == 2.0

    config = json.loads((SHAPES["minimax-m2.5"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_shape(str(tmp_path))[1] == find_shape("minimax-m2.5")[1]

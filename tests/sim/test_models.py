"""Models by name and by path."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from milepost.errors import CheckpointError, ConfigError
from milepost.shapes.names import SHAPES
from milepost.sim.models import MODELS, find_model


@pytest.mark.parametrize("name", MODELS)
def test_names_and_paths_are_the_same_model(name: str, tmp_path: Path) -> None:
    found, spec = find_model(name.upper())
    assert found == name
    assert find_model(str(MODELS[name])) == (name, spec)
    assert find_model(str(MODELS[name] / "config.json")) == (name, spec)
    mine = tmp_path / "mine.json"
    shutil.copy(MODELS[name] / "config.json", mine)
    assert find_model(str(mine))[0] == "mine"
    assert find_model(str(mine))[1].layers == spec.layers


def test_unknown_models() -> None:
    with pytest.raises(ConfigError, match=r"one of kimi-k3, .*Given: 'kimi-k4'. Did you mean 'kimi-k3'"):
        find_model("kimi-k4")


@pytest.mark.parametrize(
    ("text", "words"), [("[]", "must hold a JSON object"), ("{", "not valid JSON"), ("{}", "model_type")]
)
def test_broken_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=words):
        find_model(str(path))


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        find_model(str(tmp_path))


def test_models_of_which_only_sizes_are_known(tmp_path: Path) -> None:
    """By name, by path, and in a folder of the user's own."""
    folder = SHAPES["qwen3-next-80b-a3b"]
    shutil.copy(folder / "config.json", tmp_path)
    for name in ("Qwen3-Next-80B-A3B", str(folder), str(tmp_path / "config.json"), str(SHAPES["qwen3.5-4b"])):
        with pytest.raises(ConfigError, match=r"only sizes are known: milepost plan knows it") as caught:
            find_model(name)
        assert (
            "They take kimi-k3, kimi-linear, milepost-toy-k3, and a config.json of kimi_k3 or kimi_linear."
            in (str(caught.value))
        )
        assert "\n" not in str(caught.value)

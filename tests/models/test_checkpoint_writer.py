"""Checkpoint folders appear whole or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from milepost.errors import CheckpointError
from milepost.models import checkpoint_writer
from milepost.models.checkpoint_writer import write_checkpoint


def _tensors() -> list[tuple[str, torch.Tensor]]:
    return [
        ("a.weight", torch.arange(600, dtype=torch.float32).view(20, 30)),
        ("b.bias", torch.arange(7, dtype=torch.int64)),
        ("c.weight", torch.arange(600).view(20, 30).to(torch.bfloat16)),
        ("d.packed", torch.arange(200, dtype=torch.uint8)),
    ]


def _read_back(folder: Path) -> dict[str, torch.Tensor]:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    out: dict[str, torch.Tensor] = {}
    for name, file_name in index["weight_map"].items():
        with safe_open(folder / file_name, framework="pt") as file:
            out[name] = file.get_tensor(name)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in out.values())
    return out


@pytest.mark.parametrize("shards", [1, 2, 3, 4])
def test_round_trip(tmp_path: Path, shards: int) -> None:
    folder = write_checkpoint(
        tmp_path / "deep" / "model",
        {"hidden_size": 7},
        _tensors(),
        shards=shards,
        files={"tiktoken.model": b"IQ== 0\n"},
    )
    expected_files = {f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)}
    expected_files |= {"config.json", "model.safetensors.index.json", "tiktoken.model"}
    assert {path.name for path in folder.iterdir()} == expected_files
    assert json.loads((folder / "config.json").read_text()) == {"hidden_size": 7}
    read = _read_back(folder)
    assert list(read) == [name for name, _ in _tensors()]
    for name, tensor in _tensors():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_views_and_shared_tensors_are_stored_apart(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    folder = write_checkpoint(
        tmp_path / "m", {}, [("all", base), ("same", base), ("row", base[1]), ("turned", base.T)]
    )
    read = _read_back(folder)
    assert torch.equal(read["same"], base)
    assert torch.equal(read["row"], base[1])
    assert torch.equal(read["turned"], base.T)


def test_others_may_read_it(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", {}, _tensors())
    probe = tmp_path / "probe"
    probe.write_bytes(b"")
    assert all(path.stat().st_mode == probe.stat().st_mode for path in folder.iterdir())


def test_an_existing_folder_is_kept_unless_asked(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", {"version": 1}, _tensors())
    with pytest.raises(CheckpointError, match="exists"):
        write_checkpoint(folder, {"version": 2}, _tensors())
    assert json.loads((folder / "config.json").read_text()) == {"version": 1}
    write_checkpoint(folder, {"version": 2}, _tensors()[:1], overwrite=True)
    assert json.loads((folder / "config.json").read_text()) == {"version": 2}
    assert list(_read_back(folder)) == ["a.weight"]
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_failing_write_leaves_nothing_and_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "m", {"version": 1}, _tensors())
    real = safetensors.torch.save_file

    def fail_on_second(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        if "00002-of" in path.name:
            raise OSError(28, "No space left on device")
        real(tensors, path, metadata=metadata)

    monkeypatch.setattr(checkpoint_writer, "save_file", fail_on_second)
    for target in (folder, tmp_path / "other"):
        with pytest.raises(CheckpointError, match=r"Can't write .*No space left.*make room"):
            write_checkpoint(target, {"version": 2}, _tensors(), shards=3, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert json.loads((folder / "config.json").read_text()) == {"version": 1}


def test_a_real_limit_of_the_system_is_reported_the_same_way(tmp_path: Path) -> None:
    script = """
import resource, signal, sys, torch
from milepost.errors import CheckpointError
from milepost.models.checkpoint_writer import write_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_checkpoint(sys.argv[1], {}, [("a", torch.zeros(1000)), ("b", torch.zeros(100_000))], shards=2)
except CheckpointError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "Can't write" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_said_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 100

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(CheckpointError, match="has 100 free"):
        write_checkpoint(tmp_path / "m", {}, _tensors())
    assert list(tmp_path.iterdir()) == []


def test_parents_that_were_made_for_nothing_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 100

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage)
    (tmp_path / "mine").mkdir()
    with pytest.raises(CheckpointError, match="has 100 free"):
        write_checkpoint(tmp_path / "mine" / "a" / "b" / "m", {}, _tensors())
    with pytest.raises(CheckpointError, match="Can't make a folder"):
        write_checkpoint(tmp_path / "mine" / "a" / "b" / ("m" * 300), {}, _tensors())
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]
    assert list((tmp_path / "mine").iterdir()) == []


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Two tensors"):
        write_checkpoint(tmp_path / "m", {}, [("a", torch.zeros(1)), ("a", torch.zeros(1))])
    with pytest.raises(CheckpointError, match="Given: 3"):
        write_checkpoint(tmp_path / "m", {}, [("a", torch.zeros(1))], shards=3)
    assert list(tmp_path.iterdir()) == []

"""A checkpoint is data: nothing in its folder is ever run."""

from __future__ import annotations

import ast
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from milepost.config import EngineConfig
from milepost.errors import CheckpointError
from milepost.llm.loading import load_engine
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.repository.paths import ROOT

RUNS_WHAT_IT_READS = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "transformers", "runpy"}
# Errors of a sweep's own processes, in this machine's memory.
OF_OUR_OWN_BYTES = {"milepost/sim/sweep/processes.py"}
CALLS = {"eval", "exec", "compile", "__import__"}
LOADS = {("torch", "load"), ("torch", "hub"), ("np", "load"), ("numpy", "load"), ("jit", "load")}


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_code_and_pickles_beside_the_weights_are_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    folder = write_toy_checkpoint(tmp_path / "toy", "kimi_k3", 3)
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    for name in ("modeling_kimi", "configuration_kimi", "tokenization_kimi", "processing_kimi", "__init__"):
        (folder / f"{name}.py").write_text(code)
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin"):
        (folder / name).write_bytes(pickle.dumps(Trap(mark)))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "configuration_kimi.C", "AutoModelForCausalLM": "modeling_kimi.M"}
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load_engine(EngineConfig(model=str(folder), memory="64MiB"))
    loaded.engine.close()
    assert not mark.exists()
    pickle.loads((folder / "model.pt").read_bytes())  # noqa: S301 - the trap works
    assert mark.exists()


def test_pickled_weights_alone_are_no_checkpoint(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    folder = write_toy_checkpoint(tmp_path / "toy", "kimi_k3", 3)
    for shard in (*folder.glob("*.safetensors"), *folder.glob("*.index.json")):
        shard.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(mark)))
    with pytest.raises(CheckpointError):
        load_engine(EngineConfig(model=str(folder), memory="64MiB"))
    assert not mark.exists()


def test_no_module_can_run_what_it_reads() -> None:
    found = []
    for path in sorted((ROOT / "milepost").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom) and name not in OF_OUR_OWN_BYTES:
                found += [
                    f"{name}:{node.lineno} imports {what}" for what in imported(node) & RUNS_WHAT_IT_READS
                ]
            if isinstance(node, ast.Call) and called(node.func) in LOADS | {("", call) for call in CALLS}:
                found.append(f"{name}:{node.lineno} calls {called(node.func)}")
            if isinstance(node, ast.keyword) and node.arg in {"trust_remote_code", "allow_pickle"}:
                found.append(f"{name}:{node.lineno} has {node.arg}")
    assert found == []


def imported(node: ast.AST) -> set[str]:
    """The top-level packages that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
        return {node.module.partition(".")[0]}
    return set()


def called(function: ast.expr) -> tuple[str, str]:
    """What is called, and the last name before it."""
    if isinstance(function, ast.Attribute):
        owner = function.value
        name = (
            owner.id
            if isinstance(owner, ast.Name)
            else owner.attr
            if isinstance(owner, ast.Attribute)
            else "?"
        )
        return name, function.attr
    return "", function.id if isinstance(function, ast.Name) else "?"

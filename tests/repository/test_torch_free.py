"""The half that decides runs on a machine without torch."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.repository.paths import ROOT

CONTROL_PLANE = (
    "types",
    "errors",
    "config",
    "model_spec",
    "config_json",
    "memory",
    "prefix",
    "scheduler",
    "engine",
    "chat",
    "server",
    "transfer",
    "sim",
    "planner",
)

SCRIPT = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "triton"}:
            raise ImportError(f"{name} is not installed (a test says so)")
        return None

sys.meta_path.insert(0, Refuse())
module = importlib.import_module(sys.argv[1])
for part in pkgutil.walk_packages(getattr(module, "__path__", []), sys.argv[1] + "."):
    importlib.import_module(part.name)
"""


def existing(names: tuple[str, ...]) -> list[str]:
    package = ROOT / "milepost"
    return [name for name in names if (package / name).is_dir() or (package / f"{name}.py").is_file()]


def import_without_torch(module: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), module]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", existing(CONTROL_PLANE))
def test_every_module_imports_without_torch(name: str) -> None:
    result = import_without_torch(f"milepost.{name}")
    assert result.returncode == 0, result.stderr


def test_the_refusal_works() -> None:
    assert "a test says so" in import_without_torch("torch").stderr

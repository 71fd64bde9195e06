"""Which kernels run when nobody says, and what is said where they aren't the compiled ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milepost.cli.shipped_model import shipped_model
from milepost.config import EngineConfig
from milepost.config_json import parse_config, read_model_spec
from milepost.errors import ConfigError
from milepost.llm.kernel_choice import choose_kernels
from milepost.llm.llm import LLM
from milepost.llm.loading import resolve_engine
from milepost.memory.layout import paged_layout
from milepost.testing.toy_checkpoint import toy_k3_config, write_toy_checkpoint
from milepost.types import SamplingParams
from tests.repository.paths import ROOT

# What `import` finds on a machine where no compiler was at installation.
NOT_BUILT = "import sys; sys.modules['milepost.kernels.native._native'] = None\n"


def run_without_the_extension(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = NOT_BUILT + "from milepost.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


@pytest.mark.parametrize(
    ("options", "kernels"),
    [({}, "cpu"), ({"dtype": "bfloat16"}, "cpu"), ({"kernels": "reference"}, "reference")],
)
def test_compiled_kernels_run_unless_one_says_otherwise(options: dict[str, str], kernels: str) -> None:
    config = EngineConfig.from_options({"model": shipped_model(), "memory": "4MiB", **options})
    spec = read_model_spec(shipped_model())
    resolved = resolve_engine(config, spec, paged_layout(spec, **config.layout_options()))
    assert resolved.kernels == kernels
    assert not any("kernels" in note for note in resolved.notes)


@pytest.mark.parametrize("option", ["dtype", "kv_dtype"])
def test_float64_takes_the_reference_kernels_and_says_so(option: str) -> None:
    config = EngineConfig.from_options({"model": shipped_model(), "memory": "4MiB", option: "float64"})
    spec = read_model_spec(shipped_model())
    resolved = resolve_engine(config, spec, paged_layout(spec, **config.layout_options()))
    assert resolved.kernels == "reference"
    assert "do not know float64" in resolved.notes[0]


TOO_LARGE = [
    ({"num_layers": 2, "conv_size": 17}, "convolutions of at most 16 taps, and this model's have 17"),
    (
        {"num_layers": 64, "attn_res_block": 1},
        "residuals of at most 64 sums, and this model's layers bank 64 beside the running one",
    ),
]


@pytest.mark.parametrize(("sizes", "limit"), TOO_LARGE)
def test_a_model_beyond_the_compiled_kernels_takes_the_reference(sizes: dict[str, Any], limit: str) -> None:
    spec = parse_config(toy_k3_config(**sizes))
    config = EngineConfig(model="anything")
    kernels, (note,) = choose_kernels(config, spec)
    assert kernels == "reference"
    assert note == f"The reference kernels run, slowly: the compiled ones take {limit}."
    with pytest.raises(ConfigError, match=f"{limit}. Choose kernels reference"):
        choose_kernels(EngineConfig(model="anything", kernels="cpu"), spec)


@pytest.mark.parametrize(
    "sizes", [{"num_layers": 2, "conv_size": 16}, {"num_layers": 63, "attn_res_block": 1}]
)
def test_the_largest_model_that_compiled_kernels_take(sizes: dict[str, Any], tmp_path: Path) -> None:
    folder = write_toy_checkpoint(tmp_path / "toy", num_experts=1, top_k=1, **sizes)
    with LLM(folder, memory="8MiB", threads=1, max_model_len=100) as llm:
        assert llm.config.kernels == "cpu"
        sampling = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
        assert len(llm.generate([[1, 2, 3]], sampling)[0].token_ids) == 2


def test_without_the_extension_the_reference_kernels_answer() -> None:
    prompt = "The code for amber is 7412. What is the code for amber?"
    done = run_without_the_extension(
        "generate",
        "--chat",
        "--temperature",
        "0",
        "--max-tokens",
        "8",
        "--memory",
        "8MiB",
        "--prompt",
        prompt,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "7412")
    (note,) = [line for line in done.stderr.splitlines() if "kernels" in line]
    assert "The reference kernels run, slowly: the compiled ones are not built." in note
    assert "Install a C++20 compiler" in note


def test_without_the_extension_compiled_kernels_are_refused() -> None:
    done = run_without_the_extension("generate", "--kernels", "cpu", "--prompt", "x")
    assert done.returncode == 2
    assert "kernels cpu can't run: the compiled ones are not built." in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_extension_that_cannot_be_loaded_is_not_called_missing(tmp_path: Path) -> None:
    """Such as one of another machine: the linker's words are passed on."""
    code = (
        "import importlib, sys\n"
        "from importlib.machinery import EXTENSION_SUFFIXES\n"
        "import milepost.kernels\n"
        f"broken = {str(tmp_path)!r} + '/_native' + EXTENSION_SUFFIXES[0]\n"
        "open(broken, 'wb').write(b'no library')\n"
        "import importlib.util\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name.endswith('native._native'):\n"
        "            return importlib.util.spec_from_file_location(name, broken)\n"
        "sys.meta_path.insert(0, Finder)\n"
        "from milepost.kernels.native import available, why_not_available\n"
        "assert not available()\n"
        "print(why_not_available())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.startswith("the compiled ones can't be loaded (")

"""Engines of every dtype and weight format, built as commands build them: options, numbers, runner."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from milepost.config import EngineConfig
from milepost.config_json import read_model_spec
from milepost.kernels.ops import load_ops
from milepost.llm.loading import resolve_engine
from milepost.memory.layout import paged_layout
from milepost.models import load_model
from milepost.runtime.dtypes import torch_dtype, weight_format
from milepost.runtime.model_runner import ModelRunner
from milepost.testing.reference_model import ReferenceModel
from milepost.types import SamplingParams
from tests.e2e.engines import NoteTaker, TestEngine, Toy, make_request

STEPS = 6
GREEDY = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)


def served_logits(folder: Path, name: str, options: dict[str, str]) -> tuple[NoteTaker, list[int]]:
    """Logits and tokens of a 70-token prompt, in steps of 33 tokens."""
    config = EngineConfig.from_options({"model": folder, "memory": "4MiB", "block_size": 16, **options})
    spec = read_model_spec(folder)
    layout = paged_layout(spec, **config.layout_options())
    resolved = resolve_engine(config, spec, layout)
    model = load_model(
        folder,
        dtype=torch_dtype(resolved.dtype),
        ops=load_ops(resolved.kernels),
        weights=weight_format(resolved.weights),
    )
    toy = Toy(folder, model, layout)
    notes = NoteTaker(toy)
    runner = ModelRunner.from_config(notes, layout, resolved)
    engine = TestEngine(toy, num_pages=resolved.num_pages, budget=33, runner=runner)
    request = make_request(toy, name, 70, GREEDY)
    reply = engine.run([request])[name]
    assert reply.error is None
    assert len(reply.tokens) == STEPS
    return notes, [*request.prompt_token_ids, *reply.tokens]


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"dtype": "float64", "kernels": "reference"}, 1e-9),
        ({"dtype": "float32", "kernels": "reference"}, 1e-4),
        ({"dtype": "float32", "kernels": "cpu"}, 1e-4),
    ],
)
def test_served_logits_are_the_reference_models(
    folder: Path, options: dict[str, str], tolerance: float
) -> None:
    """Relative error over the row of logits, after chunks and single tokens, against float64."""
    notes, tokens = served_logits(folder, "exact", options)
    reference = ReferenceModel.load(folder, dtype=torch.float64).logits(tokens[:-1])[-STEPS:]
    served = torch.tensor(notes.logits, dtype=torch.float64)
    assert float((served - reference).norm() / reference.norm()) < tolerance


def errors_of(logits: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Relative error of each row of logits: [rows]."""
    return (logits.double() - exact).norm(dim=1) / exact.norm(dim=1)


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"kv_dtype": "bfloat16"}])
def test_bfloat16_errs_no_more_than_a_plain_bfloat16_model(folder: Path, options: dict[str, str]) -> None:
    """Rounding flips a random router's choices now and then, so rows are compared by their median."""
    notes, tokens = served_logits(folder, "narrow", options)
    exact = ReferenceModel.load(folder, dtype=torch.float64).logits(tokens[:-1])
    plain = errors_of(ReferenceModel.load(folder, dtype=torch.bfloat16).logits(tokens[:-1]), exact)
    served = errors_of(torch.tensor(notes.logits), exact[-STEPS:])
    assert 0 < float(served.median()) < 1.5 * float(plain.median())


@pytest.mark.parametrize("weights", ["auto", "float32", "bfloat16", "int8"])
def test_compiled_kernels_compute_with_the_numbers_that_a_format_holds(folder: Path, weights: str) -> None:
    """Against the reference kernels in float64, which read the same rounded weights."""
    served, tokens = served_logits(folder, "format", {"weights": weights, "kernels": "cpu"})
    wide = {"weights": weights, "kernels": "reference", "dtype": "float64"}
    exact, exact_tokens = served_logits(folder, "format", wide)
    assert tokens == exact_tokens
    errors = errors_of(torch.tensor(served.logits), torch.tensor(exact.logits))
    assert float(errors.max()) < 1e-4

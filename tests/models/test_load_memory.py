"""Peak memory of loading, measured from outside: the weights, 10 % and 200 MB are the limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from milepost.testing.toy_checkpoint import write_toy_checkpoint

MB = 1_000_000
# One process per measurement: ru_maxrss never falls. Baseline and peak are of the same process.
MEASURE = """
import json, resource, sys
from pathlib import Path
import psutil, torch
from milepost.kernels.ops import load_ops
from milepost.models import load_model
torch.set_num_threads(1)
ops = load_ops("reference")
torch.zeros(1).to(torch.bfloat16)
before = psutil.Process().memory_info().rss
model = load_model(Path(sys.argv[1]), dtype=getattr(torch, sys.argv[2]), ops=ops)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"weights": model.num_bytes, "used": peak - before}))
"""


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 80 M parameters, most of them in matrices far larger than the staging buffer, in two shards."""
    return write_toy_checkpoint(
        tmp_path_factory.mktemp("large") / "model",
        "kimi_linear",
        dtype=getattr(torch, request.param),
        base_vocab=60_000,
        hidden_size=512,
        dense_intermediate=4096,
        num_layers=2,
        moe_intermediate=256,
        num_experts=12,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_memory(large: Path, dtype: str) -> None:
    command = [sys.executable, "-c", MEASURE, str(large), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    on_disk = sum(shard.stat().st_size for shard in large.glob("*.safetensors"))
    assert measured["weights"] > 100 * MB
    assert on_disk > 100 * MB
    assert measured["used"] <= 1.1 * measured["weights"] + 200 * MB
    # What the loader promises itself is less: a mapped shard that stays resident would break it.
    assert measured["used"] <= 1.1 * measured["weights"] + 40 * MB

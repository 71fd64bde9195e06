"""kvcache-simulator, which knows no states, judges our preset `stateless` on traces of many shapes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.simulator_peers import peer_hit_rates
from milepost.config_json import read_model_spec
from milepost.sim.presets import find_preset
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RunSpec
from milepost.sim.traces.block_tokens import BlockTokens, runs_of
from milepost.sim.traces.trace import Trace
from tests.sim.block_traces import random_trace

pytestmark = pytest.mark.oracle

BLOCK = 512
MODEL = Path(__file__).parents[2] / "milepost" / "assets" / "models" / "kimi-k3"


def partly_filled(trace: Trace) -> Trace:
    """The same, with one token more behind each prompt, in a block of its own: nobody sends a prompt again.

    The tool hits the last block of a prompt that is sent again as it was; an engine computes its last token.
    """
    requests = []
    for number, request in enumerate(trace.requests):
        assert isinstance(request.prompt, BlockTokens)
        whole = request.num_prompt // BLOCK
        ids = [block_id for run in request.prompt.runs for block_id in run][:whole]
        prompt = BlockTokens(runs_of([*ids, 10**6 + number]), whole * BLOCK + 1, BLOCK)
        requests.append(msgspec.structs.replace(request, prompt=prompt))
    return msgspec.structs.replace(trace, requests=requests)


def write_mooncake(trace: Trace, path: Path) -> None:
    with path.open("w", encoding="utf-8") as lines:
        for request in trace.requests:
            assert isinstance(request.prompt, BlockTokens)
            ids = [block_id for run in request.prompt.runs for block_id in run]
            row = {"timestamp": int(1000 * request.arrival), "input_length": request.num_prompt}
            lines.write(json.dumps(row | {"output_length": 1, "hash_ids": ids}) + "\n")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("blocks", [80, 250])
def test_stateless_finds_what_it_finds(tmp_path: Path, seed: int, blocks: int) -> None:
    pytest.importorskip("kvcache_sim", reason="kvcache-simulator is not installed; see docs/oracles.md")
    trace = partly_filled(random_trace(seed, 600, BLOCK))
    write_mooncake(trace, tmp_path / "trace.jsonl")
    model = read_model_spec(MODEL)
    # Half a block more, so that both round down to the same number of blocks.
    budget = int((blocks + 0.5) * BLOCK * len(model.mla_layers) * model.mla.row_dim * 2)
    theirs = peer_hit_rates(Path(sys.executable), tmp_path / "trace.jsonl", (budget / 1e9,))
    spec = RunSpec(preset="stateless", budget_bytes=budget, warm_up=0.5)
    preset = find_preset("stateless")
    assert preset is not None
    ours = Simulation(spec, trace, preset.parts(spec, trace, model)).run()
    (theirs_percent,) = theirs.values()
    assert 100 * ours.hit_rate == pytest.approx(theirs_percent, abs=1e-9)

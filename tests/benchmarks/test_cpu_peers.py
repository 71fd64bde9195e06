from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from benchmarks.cpu_peers import models
from benchmarks.cpu_peers.alternating import alternate, compared
from benchmarks.cpu_peers.client import read_events
from benchmarks.cpu_peers.gguf_writer import pieces, visible
from benchmarks.cpu_peers.options import Peers
from benchmarks.cpu_peers.step_bytes import distinct_experts, step_bytes
from benchmarks.cpu_peers.workers import Worker
from milepost.chat.tokenizer_folder import load_tokenizer
from milepost.config_json import read_model_spec
from milepost.errors import ConfigError
from milepost.models.checkpoint_writer import write_checkpoint
from milepost.testing.toy_config import toy_kimi_linear_config
from milepost.testing.toy_weights import toy_tensors

# ---- bytes of a step ----------------------------------------------------------------------------------


def test_tokens_choose_experts_together() -> None:
    assert distinct_experts(22, 4, 1) == pytest.approx(4)
    # Of two choices of 1 out of 2, half are the same.
    assert distinct_experts(2, 1, 2) == pytest.approx(1.5)
    assert distinct_experts(16, 4, 10_000) == pytest.approx(16)


def test_a_step_reads_each_weight_once(tmp_path: Path) -> None:
    config = toy_kimi_linear_config(num_experts=4, top_k=4)
    tensors = dict(toy_tensors(config))
    write_checkpoint(tmp_path / "toy", config, tensors.items())
    spec = read_model_spec(tmp_path / "toy")
    counted = sum(tensor.numel() for name, tensor in tensors.items() if "embed_tokens" not in name)
    row = spec.hidden_size  # one row of the embedding
    one = step_bytes(spec, weights="float32", experts="float32", batch=1, context=0)
    # All experts are chosen, so that nothing is left out.
    assert one.weights + one.experts == pytest.approx(4 * (counted + row))
    more = step_bytes(spec, weights="float32", experts="float32", batch=3, context=99)
    assert more.weights - one.weights == pytest.approx(4 * 2 * row)
    assert more.experts == one.experts
    assert more.kv == 300 * one.kv
    assert more.states == 3 * one.states


def test_a_step_counts_formats_of_experts_and_of_the_rest(tmp_path: Path) -> None:
    config = toy_kimi_linear_config()
    write_checkpoint(tmp_path / "toy", config, toy_tensors(config))
    spec = read_model_spec(tmp_path / "toy")
    full = step_bytes(spec, weights="float32", experts="float32", batch=2, context=10)
    small = step_bytes(spec, weights="bfloat16", experts="mxfp4", batch=2, context=10, kv_item=2)
    assert small.weights == pytest.approx(full.weights / 2)
    assert small.experts == pytest.approx(full.experts * 17 / 32 / 4)
    assert small.kv == full.kv / 2
    state = 5 * 32 * 32 * 4 * 2 * 2 * len(spec.kda_layers)  # heads, k, v, float32, in and out, sequences
    assert full.states - state == pytest.approx(2 * (small.states - state))


# ---- taking turns -------------------------------------------------------------------------------------


def test_every_other_round_goes_backwards() -> None:
    calls: list[str] = []

    def side(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    samples = alternate({name: lambda name=name: side(name) for name in "abc"}, 3)  # type: ignore[misc]
    assert calls == list("abccbaabc")
    assert samples == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


@pytest.mark.parametrize(("lower_is_better", "ratios"), [(False, [2.0, 0.5]), (True, [0.5, 2.0])])
def test_ratios_are_of_the_same_round(lower_is_better: bool, ratios: list[float]) -> None:
    samples = {"Milepost": [4.0, 3.0], "other": [2.0, 6.0]}
    results = list(
        compared("b", "s", "q", "u", samples, lower_is_better=lower_is_better, settings={"threads": 2})
    )
    assert [result.quantity for result in results] == [
        "q: Milepost",
        "q: other",
        "q: times better than other",
    ]
    assert results[-1].samples == ratios
    assert results[-1].unit == "x"


ECHO = """
from benchmarks.cpu_peers.protocol import serve_lines
class Echo:
    def twice(self, number):
        print("a library's chatter")
        return 2 * number
    def die(self):
        raise SystemExit("the last words")
serve_lines(Echo)
"""


def test_a_worker_answers_and_its_last_words_are_told() -> None:
    with Worker("echo", [sys.executable, "-c", ECHO]) as worker:
        assert [worker.call("twice", number=number) for number in (2, 5)] == [4, 10]
        with pytest.raises(ConfigError, match=r"echo ended with status 1: [\s\S]*the last words"):
            worker.call("die")


# ---- streams ------------------------------------------------------------------------------------------


def test_events_are_read_to_the_end() -> None:
    stream = io.BytesIO(b'data: {"choices": [1]}\n\n: a comment\n\ndata:{"usage": 2}\n\ndata: [DONE]\n\n')
    assert list(read_events(stream)) == [{"choices": [1]}, {"usage": 2}]


# ---- the same vocabulary in every engine --------------------------------------------------------------


def test_every_byte_has_a_character_of_its_own() -> None:
    spelled = visible(bytes(range(256)))
    assert len(set(spelled)) == 256
    assert visible(b"word") == "word"
    assert visible(b" ") == "Ġ"  # GPT-2's
    assert visible(b"\n") == "Ċ"


@pytest.mark.parametrize("family", ["kimi_k3", "kimi_linear"])
def test_words_are_the_same_in_both_files(family: str, tmp_path: Path) -> None:
    for name, content in models._tokenizer_files(family).items():
        (tmp_path / name).write_bytes(content)
    tokenizer = load_tokenizer(tmp_path, model_vocab_size=models.VOCAB)
    assert tokenizer.vocab_size == models.VOCAB
    spelled = pieces(tmp_path)
    assert len(set(spelled)) == len(spelled) == models.VOCAB
    for token in (0, 65, 300, models.BASE_VOCAB - 1):
        assert visible(tokenizer.token_bytes(token)) == spelled[token]
    for token in (models.BASE_VOCAB, models.VOCAB - 1):
        assert tokenizer.special_name(token) == spelled[token]


def test_what_is_lacking_is_told_with_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks .*bin/python.*install\.sh"):
        _ = Peers(tmp_path).python

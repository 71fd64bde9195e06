"""Logit bias, shortest replies and grammars, as the sampler obeys them."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from milepost.grammar.compiler import GrammarCompiler
from milepost.grammar.texts import choice, grammar, json_object, json_schema, literal, regex, sequence, token
from milepost.runtime.sampler import Sampler
from milepost.types import Grammar, NewRequest, Row, RowResult, SamplingParams
from tests.grammar.random_schemas import random_schema, valid
from tests.grammar.vocabularies import END, EOS, MODEL_VOCAB, STOPS, VOCAB, Words, compiler
from tests.runtime.sampling_oracle import log_probabilities

GRAMMARS = compiler()
GREEDY = SamplingParams(temperature=0.0)


def sampler() -> Sampler:
    return Sampler(seed=1, stop_token_ids=STOPS, grammars=GRAMMARS)


def row(request_id: str, num_output_tokens: int) -> Row:
    return Row(
        request_id=request_id,
        start=5,
        token_ids=(4,),
        block_table=(),
        state_table=(),
        samples=True,
        num_output_tokens=num_output_tokens,
    )


def new(request_id: str, sampling: SamplingParams) -> NewRequest:
    return NewRequest(request_id=request_id, prompt_token_ids=(1, 2, 3), sampling=sampling)


def logits_of(step: int, name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step * 1000 + sum(name.encode()))
    return torch.randn(MODEL_VOCAB, generator=generator) * 3


def reply(sampling: SamplingParams, name: str = "r", most: int = 400) -> list[int]:
    """Draw until a stop token, which is the last."""
    drawing, tokens = sampler(), list[int]()
    drawing.learn([new(name, sampling)])
    while len(tokens) < most and not (tokens and tokens[-1] in STOPS):
        (result,) = drawing.draw([row(name, len(tokens))], logits_of(len(tokens), name)[None])
        assert result.error is None
        tokens += result.token_ids
    return tokens


def text_of(tokens: list[int]) -> str:
    assert tokens[-1] in STOPS
    return b"".join(map(Words().token_bytes, tokens)).decode()


MANNERS = (
    GREEDY,
    SamplingParams(seed=3),
    SamplingParams(seed=4, temperature=2.5, top_k=40),
    SamplingParams(seed=5, top_p=0.7, min_p=0.01, repetition_penalty=1.1, logit_bias={ord("a"): 2.0}),
)


@pytest.mark.parametrize("seed", range(120))
def test_whatever_the_logits_a_reply_parses_and_its_schema_allows_it(seed: int) -> None:
    chance = random.Random(seed)
    schema = random_schema(chance)
    sampling = _with(MANNERS[seed % len(MANNERS)], grammar=json_schema(schema))
    text = text_of(reply(sampling, f"r{seed}", most=5000))
    value = json.loads(text)
    assert valid(value, schema), (schema, text)


def _with(sampling: SamplingParams, **changes: Any) -> SamplingParams:
    fields = {name: getattr(sampling, name) for name in SamplingParams.__struct_fields__}
    return SamplingParams(**(fields | changes))


def test_a_request_draws_the_same_alone_and_in_any_batch() -> None:
    whole = json_schema({"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 12})
    kinds = {
        **{f"grammar {index}": _with(manner, grammar=whole) for index, manner in enumerate(MANNERS)},
        "least": SamplingParams(temperature=0.0, min_tokens=12, logit_bias={END: 100.0}),
        "biased": SamplingParams(seed=8, logit_bias={7: 3.0, 9: -4.0, EOS: -100.0, END: -100.0}),
        "plain": _with(GREEDY, logit_bias={EOS: -100.0, END: -100.0}),
    }
    alone = {name: reply(sampling, name, most=12) for name, sampling in kinds.items()}
    together: dict[str, list[int]] = {name: [] for name in kinds}
    drawing, order = sampler(), np.random.default_rng(0)
    drawing.learn([new(name, sampling) for name, sampling in kinds.items()])
    while waiting := [name for name, tokens in together.items() if len(tokens) < 12]:
        chosen = [str(name) for name in order.permutation(waiting)[: order.integers(1, 6)]]
        rows = [row(name, len(together[name])) for name in chosen]
        logits = torch.stack([logits_of(len(together[name]), name) for name in chosen])
        for result in drawing.draw(rows, logits):
            together[result.request_id] += result.token_ids
    assert together == alone


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_of_a_hundred_forces_and_forbids(temperature: float) -> None:
    forced = SamplingParams(temperature=temperature, seed=1, logit_bias={77: 100})
    assert reply(forced, most=8) == [77] * 8
    best = int(logits_of(0, "r").argmax())
    forbidden = SamplingParams(temperature=temperature, seed=1, logit_bias={best: -100})
    assert best not in reply(forbidden, most=1)


def test_a_bias_comes_before_the_penalties() -> None:
    """7 is made positive, then divided by the penalty for being in the prompt; 2 is larger then."""
    logits = torch.zeros(1, MODEL_VOCAB)
    logits[0, 3], logits[0, 2] = -1.0, -3.0
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, logit_bias={3: 8.0, 9: 4.0, 2: 3.0})
    drawing = sampler()
    drawing.learn([new("r", params)])
    assert drawing.draw([row("r", 0)], logits)[0].token_ids == (9,)  # 3.5 for token 3, 4 for token 9


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_ends_a_reply_before_its_least_length(temperature: float) -> None:
    wish = {END: 60.0, EOS: 65.0, 40: 99.0}
    params = SamplingParams(
        temperature=temperature, seed=2, min_tokens=5, stop_token_ids=(40,), logit_bias=wish
    )
    tokens = reply(params, most=6)
    assert not {END, EOS, 40} & set(tokens[:5])
    assert tokens[5] == 40


def test_tokens_that_end_nothing_are_drawn_at_any_length() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=5, ignore_eos=True, logit_bias={EOS: 100.0})
    assert reply(params, most=3)[0] == EOS


def test_a_grammar_that_ends_early_ends_the_reply_all_the_same() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=50, grammar=choice(["abc", "bc"]))
    assert text_of(reply(params)) in ("abc", "bc")


def test_a_grammar_that_may_go_on_does_until_the_least_length() -> None:
    params = SamplingParams(
        temperature=0.0, min_tokens=20, grammar=regex("a*"), logit_bias={END: 100.0, 256: -100.0}
    )
    assert reply(params) == [ord("a")] * 20 + [END]


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    params = SamplingParams(
        temperature=0.0, logprobs=2, grammar=choice(["ab"]), logit_bias={ord("a"): 50.0}, min_tokens=1
    )
    drawing = sampler()
    drawing.learn([new("r", params)])
    logits = logits_of(0, "r")
    (result,) = drawing.draw([row("r", 0)], logits[None])
    expected = log_probabilities(logits.tolist())
    (entry,) = result.logprobs
    assert entry.token_id == ord("a")
    assert entry.logprob == pytest.approx(expected[ord("a")])
    assert [token_id for token_id, _ in entry.top] == np.argsort(expected)[::-1][:2].tolist()


BROKEN = {
    "dead end": grammar(token(VOCAB + 3)),
    "does not compile": regex("("),
    "dead end later": grammar(sequence(literal("a"), token(VOCAB + 3))),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_grammar_that_fails_fails_its_row_alone(name: str) -> None:
    drawing = sampler()
    kinds = {
        "bad": _with(GREEDY, grammar=BROKEN[name]),
        "good": _with(GREEDY, grammar=json_object()),
        "plain": GREEDY,
    }
    drawing.learn([new(each, sampling) for each, sampling in kinds.items()])
    errors: list[str] = []
    for step in range(2):
        alive = [each for each in kinds if each != "bad" or not errors]
        logits = torch.stack([logits_of(step, each) for each in alive])
        for result in drawing.draw([row(each, step) for each in alive], logits):
            if result.error is not None:
                assert result.request_id == "bad"
                assert result.token_ids == ()
                errors.append(result.error)
    assert len(errors) == 1
    assert "grammar" in errors[0]


class Broken(GrammarCompiler):
    """A compiler with a bug."""

    def matcher(self, grammar: Grammar) -> Any:
        raise ZeroDivisionError("of all things")


def test_any_exception_in_a_draw_fails_its_row_alone(caplog: pytest.LogCaptureFixture) -> None:
    drawing = Sampler(grammars=Broken(Words(), vocab_size=MODEL_VOCAB, stop_token_ids=STOPS))
    drawing.learn([new("bad", _with(GREEDY, grammar=json_object())), new("good", GREEDY)])
    logits = torch.stack([logits_of(0, "bad"), logits_of(0, "good")])
    bad, good = drawing.draw([row("bad", 0), row("good", 0)], logits)
    assert bad == RowResult(
        request_id="bad", error="No token could be drawn (ZeroDivisionError). The server's log says more."
    )
    assert good.token_ids == (int(logits_of(0, "good").argmax()),)
    assert "bad" in caplog.text


def test_a_mask_of_another_size_fails_its_row_alone() -> None:
    drawing = sampler()
    drawing.learn([new("bad", SamplingParams(grammar=choice(["ab"]))), new("good", GREEDY)])
    logits = torch.zeros(2, MODEL_VOCAB + 1)
    bad, good = drawing.draw([row("bad", 0), row("good", 0)], logits)
    assert bad.error is not None
    assert good.token_ids == (0,)


def test_without_a_compiler_a_request_with_a_grammar_fails() -> None:
    drawing = Sampler()
    drawing.learn([new("r", _with(GREEDY, grammar=json_object()))])
    (result,) = drawing.draw([row("r", 0)], logits_of(0, "r")[None])
    assert result.error == "This engine takes no grammars."

"""Grammars and shortest replies on the shipped model: the whole engine, real tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tokenizer_folder import load_tokenizer
from milepost.cli.shipped_model import shipped_model
from milepost.errors import RequestError
from milepost.grammar.compiler import GrammarCompiler
from milepost.grammar.texts import choice, json_object, json_schema, regex
from milepost.llm import LLM
from milepost.runtime.model_runner import ModelRunner
from milepost.runtime.sampler import Sampler
from milepost.types import FinishReason, Request, SamplingParams
from tests.e2e.engines import TestEngine, Toy, load_toy

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20},
        "visits": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1900, "maximum": 2100},
            "maxItems": 3,
        },
        "kind": {"enum": ["town", "village", 'so-called "city"']},
    },
    "required": ["city", "visits", "kind"],
    "additionalProperties": False,
}
TOWNS = "((town|village), ){6}etc"
PROMPTS = ["The road to the", "A harbour, and", "12 + 12 is", "{"]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(shipped_model(), memory="256MB") as loaded:
        yield loaded


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_reply_is_json_that_the_schema_allows(llm: LLM, temperature: float) -> None:
    sampling = SamplingParams(grammar=json_schema(CITY), temperature=temperature, seed=5, max_tokens=600)
    for completion in llm.generate(PROMPTS, sampling):
        assert completion.finish_reason is FinishReason.STOP
        value = json.loads(completion.text)
        assert list(value) == ["city", "visits", "kind"]
        assert 1 <= len(value["city"]) <= 20
        assert all(1900 <= year <= 2100 for year in value["visits"])
        assert value["kind"] in CITY["properties"]["kind"]["enum"]  # type: ignore[index]


def test_an_object_parses_or_ends_by_length(llm: LLM) -> None:
    sampling = SamplingParams(grammar=json_object(), temperature=0.8, seed=2, max_tokens=120)
    for completion in llm.generate(PROMPTS, sampling):
        assert completion.text.startswith("{")
        if completion.finish_reason is FinishReason.STOP:
            assert isinstance(json.loads(completion.text), dict)
        else:
            assert completion.finish_reason is FinishReason.LENGTH


def test_what_cant_be_used_is_refused_before_anything_runs(llm: LLM) -> None:
    before = llm.stats().prompt_tokens
    for wrong in (regex("("), json_schema({"not": {}}), json_schema({"type": "integer", "multipleOf": 1e9})):
        with pytest.raises(RequestError) as error:
            llm.generate(PROMPTS, SamplingParams(grammar=wrong))
        assert error.value.param == "grammar"
        with pytest.raises(RequestError):
            llm.chat([{"role": "user", "content": "hello"}], SamplingParams(grammar=wrong))
    with pytest.raises(RequestError, match="logit_bias"):
        llm.generate("a", SamplingParams(logit_bias={1_000_000: 1.0}))
    assert llm.stats().prompt_tokens == before


def test_a_reply_is_no_shorter_than_asked(llm: LLM) -> None:
    wish = dict.fromkeys(llm.tokenizer.encode(" "), 100.0)
    stop = SamplingParams(temperature=0.0, max_tokens=20, stop=(" ",), logit_bias=wish)
    short = llm.generate("The road", stop)[0]
    assert (len(short.token_ids), short.stop_reason) == (1, " ")
    for least in (1, 7):
        sampling = SamplingParams(
            temperature=0.0, max_tokens=20, stop=(" ",), logit_bias=wish, min_tokens=least
        )
        long = llm.generate("The road", sampling)[0]
        assert (len(long.token_ids), long.text, long.stop_reason) == (least + 1, " " * least, " ")


def test_a_preemption_keeps_what_a_grammar_has_seen() -> None:
    """Replies are the same tokens alone and among others that are preempted again and again."""
    toy = load_toy(shipped_model(), "cpu")
    tokenizer = load_tokenizer(shipped_model(), model_vocab_size=toy.vocab_size)
    requests = [_request(tokenizer, index) for index in range(4)]
    alone = [_engine(toy, tokenizer).run([request])[request.request_id].tokens for request in requests]
    together = _engine(toy, tokenizer, preempt=0.2).run(requests, arrivals=2)
    assert [together[request.request_id].tokens for request in requests] == alone
    assert sum(reply.usage.num_preemptions for reply in together.values() if reply.usage) > 3
    assert all(re.fullmatch(TOWNS, tokenizer.decode(tokens)) for tokens in alone)


def _request(tokenizer: Tokenizer, index: int) -> Request:
    sampling = SamplingParams(
        grammar=regex(TOWNS), temperature=index % 2, seed=index, max_tokens=60, min_tokens=3
    )
    prompt = tuple(tokenizer.encode(PROMPTS[index % len(PROMPTS)]))
    return Request(request_id=f"r{index}", prompt_token_ids=prompt, sampling=sampling)


def _engine(toy: Toy, tokenizer: Tokenizer, *, preempt: float = 0.0) -> TestEngine:
    stops = toy.model.spec.stop_token_ids
    grammars = GrammarCompiler(tokenizer, vocab_size=toy.vocab_size, stop_token_ids=stops)
    sampler = Sampler(7, stop_token_ids=stops, grammars=grammars)
    runner = ModelRunner(toy.model, toy.layout, 200, sampler=sampler)
    return TestEngine(toy, num_pages=200, runner=runner, preempt=preempt)


def test_a_choice_is_one_of_its_options(llm: LLM) -> None:
    options = ["yes", "no", "yes and no", 'a "third"\n']
    for completion in llm.generate(PROMPTS, SamplingParams(grammar=choice(options), seed=9)):
        assert completion.text in options


def test_in_a_chat_the_grammar_is_of_the_content(llm: LLM) -> None:
    sampling = SamplingParams(grammar=json_schema(CITY), seed=5, max_tokens=600)
    for thinking in (False, True):
        answer = llm.chat([{"role": "user", "content": "Where?"}], sampling, thinking=thinking)
        if answer.completion.finish_reason is FinishReason.STOP:
            assert list(json.loads(answer.reply.content)) == ["city", "visits", "kind"]
        else:
            assert thinking

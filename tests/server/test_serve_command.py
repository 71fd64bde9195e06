"""`milepost serve` as a process, with a real model, driven by OpenAI's own client."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from milepost.cli.app import run
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.server.scripted_server import read_metric
from tests.soak.watched import Watched

MODEL = "toy"
MESSAGES: Any = [{"role": "user", "content": "The code for amber is 7412."}]
OPTIONS = ("--memory", "64MiB", "--threads", "1")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_checkpoint(tmp_path_factory.mktemp("checkpoints") / MODEL, "kimi_k3", 3)


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Watched]:
    served = Watched.start(folder, MODEL, *OPTIONS)
    try:
        yield served
        assert served.stop() == 0
    finally:
        served.kill()


def client_of(served: Watched) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0, timeout=60)


@pytest.fixture
def client(served: Watched) -> Iterator[OpenAI]:
    with client_of(served) as client:
        yield client


def complete(client: OpenAI, **options: Any) -> Any:
    asked: Any = {"model": MODEL, "prompt": "the road and the mile", "max_tokens": 12} | options
    return client.completions.create(**asked, extra_body={"ignore_eos": True})


def test_streamed_chat_is_the_whole_chat(client: OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 20}
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    message = whole.choices[0].message.model_dump()
    for part in ("content", "reasoning_content"):
        deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
        assert "".join(delta.get(part) or "" for delta in deltas) == (message.get(part) or "")
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )
    # The same again: all but the last token of the prompt comes from the cache.
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_the_cache_from_outside(served: Watched, client: OpenAI, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "a prompt that only this test sends, and that is longer than a unit"
    explain = ["explain", "--url", served.url, "--prompt", prompt]

    def explained() -> dict[str, Any]:
        assert run([*explain, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    before = explained()
    assert before["hit_tokens"] < before["prompt_tokens"] - 1
    first = complete(client, prompt=prompt, temperature=0)
    after = explained()
    assert after["hit_tokens"] == after["prompt_tokens"] - 1
    again = complete(client, prompt=prompt, temperature=0)
    assert again.choices[0].text == first.choices[0].text
    assert again.usage.prompt_tokens_details.cached_tokens == after["hit_tokens"]
    assert run(explain) == 0
    assert "resumes here" in capsys.readouterr().out
    client.post("../cache/reset", cast_to=object)
    assert explained()["hit_tokens"] == 0
    assert read_metric(served.url, "milepost:prefix_cache_snapshots_written_total") > 0


def test_greedy_alone_and_beside_others(client: OpenAI) -> None:
    alone = complete(client, temperature=0).choices[0].text
    assert alone
    prompts = ["the road and the mile", "b", "there are those who set them thick", "d"]
    together = complete(client, prompt=prompts, temperature=0)
    assert together.choices[0].text == alone
    assert [choice.finish_reason for choice in together.choices] == ["length"] * 4


def test_a_seed_repeats_a_draw_beside_others_too(client: OpenAI) -> None:
    first = complete(client, seed=7, max_tokens=24).choices[0].text
    beside = complete(client, prompt=["the road and the mile", "x", "y"], seed=7, max_tokens=24)
    assert beside.choices[0].text == first
    assert complete(client, seed=8, max_tokens=24).choices[0].text != first


def test_stop_string_cuts_the_greedy_text(client: OpenAI) -> None:
    text = complete(client, temperature=0, max_tokens=24).choices[0].text
    stop = text[len(text) // 2 :][:3]
    cut = complete(client, temperature=0, max_tokens=24, stop=stop).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == text[: text.index(stop)]


def test_logprobs_of_greedy_tokens_are_the_best(client: OpenAI) -> None:
    logprobs = complete(client, temperature=0, max_tokens=5, logprobs=3).choices[0].logprobs
    assert len(logprobs.tokens) == 5
    for chosen, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(top) == 3
        assert chosen == max(top.values()) <= 0


def test_choices_differ_and_the_first_is_the_request_alone(client: OpenAI) -> None:
    options: Any = {"seed": 5, "max_tokens": 12, "temperature": 1.0}
    texts = [choice.text for choice in complete(client, n=3, **options).choices]
    assert texts[0] == complete(client, **options).choices[0].text
    assert len(set(texts)) == 3
    assert texts == [choice.text for choice in complete(client, n=3, **options).choices]


def test_what_a_reply_may_spell_is_obeyed(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": "the road", "max_tokens": 50}
    for seed in range(3):
        guided = {"guided_choice": ["yes", "never"]}
        choice = client.completions.create(**asked, seed=seed, extra_body=guided).choices[0]
        assert (choice.text in {"yes", "never"}, choice.finish_reason) == (True, "stop")
    reply = client.completions.create(**asked, extra_body={"guided_regex": "[a-f]{5}"})
    assert re.fullmatch("[a-f]{5}", reply.choices[0].text)


def test_a_chat_is_held_to_a_schema(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        "additionalProperties": False,
    }
    reply = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Sure?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        max_tokens=100,
        extra_body={"chat_template_kwargs": {"thinking": False}},
    )
    assert reply.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(reply.choices[0].message.content or "")["sure"], bool)


def test_error_bodies(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, n=0)
    assert caught.value.param == "n"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_a_disconnect_frees_the_pages(served: Watched, client: OpenAI) -> None:
    with complete(client, stream=True, max_tokens=10_000) as stream:
        next(iter(stream))
        assert read_metric(served.url, "milepost:num_requests_running") == 1
    deadline = time.monotonic() + 10
    while read_metric(served.url, 'milepost:pages{state="owned"}') > 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_sighup_reads_the_keys_again_and_sigterm_drains(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[tenants.ann]\nkeys = ["ann-0123456789abcdef"]\n')
    keys.chmod(0o600)
    served = Watched.start(folder, MODEL, *OPTIONS, "--api-keys", str(keys))
    with ExitStack() as stack:
        stack.callback(served.kill)
        client = stack.enter_context(client_of(served))
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        client.with_options(api_key="ann-0123456789abcdef").models.list()
        keys.write_text('[tenants.bob]\nkeys = ["bob-0123456789abcdef"]\n')
        served.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 5
        while not opens(client, "bob-0123456789abcdef"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not opens(client, "ann-0123456789abcdef")
        bob = client.with_options(api_key="bob-0123456789abcdef")
        chunks = iter(complete(bob, stream=True, max_tokens=60))
        next(chunks)
        served.process.send_signal(signal.SIGTERM)
        assert [*chunks][-1].choices[0].finish_reason == "length"
        assert served.process.wait(30) == 0


def opens(client: OpenAI, key: str) -> bool:
    try:
        client.with_options(api_key=key).models.list()
    except openai.AuthenticationError:
        return False
    return True

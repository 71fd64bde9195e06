"""What clients and operators see of the prefix cache over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai import OpenAI

from milepost.chat.encoding import ChatOptions
from milepost.errors import ConfigError
from milepost.types import Request
from milepost.types.requests import MAX_SALT_CHARS
from tests.engine.scripted_cache import EXPLANATION, STATS, ScriptedCache
from tests.server.scripted_server import END_OF_REPLY, MODEL, ServedEngine

MESSAGES: Any = [{"role": "user", "content": "What is the code for amber?"}]


@pytest.fixture
def cache(served: ServedEngine) -> ScriptedCache:
    """The server's cache, scripted."""
    return ScriptedCache().install(served.scheduler)


@pytest.fixture
def accepted(served: ServedEngine, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Every request that the scheduler was given."""
    seen: list[Request] = []
    add = served.scheduler.add

    def note(request: Request) -> None:
        seen.append(request)
        add(request)

    monkeypatch.setattr(served.scheduler, "add", note)
    return seen


@pytest.mark.parametrize("thinking", [True, False])
def test_a_chat_tells_the_scheduler_where_messages_end_and_what_comes_again(
    served: ServedEngine, client: OpenAI, accepted: list[Request], thinking: bool
) -> None:
    served.script.write(f"Yes.{END_OF_REPLY}")
    form = {"chat_template_kwargs": {"thinking": thinking}, "cache_salt": "tenant"}
    client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=form)
    (request,) = accepted
    prompt = served.services.encoding.encode(MESSAGES, ChatOptions(thinking=thinking))
    assert request.prompt_token_ids == prompt.token_ids
    assert request.message_ends == prompt.message_ends != ()
    assert request.output_reusable is not thinking
    assert request.cache_salt == "tenant"


def test_every_prompt_of_a_completion_has_the_salt(client: OpenAI, accepted: list[Request]) -> None:
    client.completions.create(model=MODEL, prompt=["a", "b"], extra_body={"cache_salt": "tenant"})
    client.completions.create(model=MODEL, prompt="a")
    assert [request.cache_salt for request in accepted] == ["tenant", "tenant", ""]
    assert all(request.output_reusable for request in accepted)


def ask(client: OpenAI, messages: Any, **extra: Any) -> Any:
    form = {"chat_template_kwargs": {"thinking": False}} | extra
    return client.chat.completions.create(model=MODEL, messages=messages, extra_body=form)


def cached(reply: Any) -> int:
    return int(reply.usage.prompt_tokens_details.cached_tokens)


def test_cached_tokens_of_a_resend_and_of_the_next_turn(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"7412{END_OF_REPLY}")
    first = ask(client, MESSAGES)
    again = ask(client, MESSAGES)
    assert cached(first) == 0
    assert cached(again) == first.usage.prompt_tokens - 1
    said = first.choices[0].message.content
    following = [*MESSAGES, {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    # All that the reply's last step computed: the end-of-message token is drawn and never computed.
    assert cached(ask(client, following)) == first.usage.total_tokens - 1


def test_streams_and_completions_say_it_too(served: ServedEngine, client: OpenAI) -> None:
    prompt = "To be, or not to be, that is the question"
    first = client.completions.create(model=MODEL, prompt=[prompt, prompt[:20] + "?"])
    assert cached(first) < len(prompt)
    chunks = client.completions.create(
        model=MODEL, prompt=prompt, stream=True, stream_options={"include_usage": True}
    )
    assert cached(list(chunks)[-1]) == len(prompt) - 1
    events = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    assert cached(list(events)[-1]) == 0


def test_only_the_same_salt_hits(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"7412{END_OF_REPLY}")
    hits = [cached(ask(client, MESSAGES, cache_salt=salt)) > 0 for salt in ("a", "b", "a", "", "b")]
    assert hits == [False, False, True, False, True]


def test_a_real_explanation_and_a_real_reset(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"7412{END_OF_REPLY}")
    prompt_tokens = ask(client, MESSAGES).usage.prompt_tokens
    body = {"messages": MESSAGES, "chat_template_kwargs": {"thinking": False}}
    found = json.loads(served.call("/cache/explain", body).body)
    assert found["prompt_tokens"] == prompt_tokens
    assert found["hit_tokens"] == prompt_tokens - 1 == found["snapshots"][-1]["position"]
    assert found["losses"] == {"cap": 1}
    assert {snapshot["reason"] for snapshot in found["snapshots"]} >= {"turn", "prompt_tail"}
    assert served.metric('milepost:prefix_cache_lost_tokens_total{cause="unseen"}') == prompt_tokens - 1
    assert json.loads(served.call("/cache/reset", {}).body)["dropped_snapshots"] > 0
    assert json.loads(served.call("/cache/explain", body).body)["hit_tokens"] == 0
    assert cached(ask(client, MESSAGES)) == 0
    assert served.metric("milepost:prefix_cache_hits_total") == 0
    assert served.metric("milepost:prefix_cache_resets_total") == 1


@pytest.mark.parametrize("salt", [7, "x" * (MAX_SALT_CHARS + 1), ["a"]])
@pytest.mark.parametrize(
    ("path", "prompt"),
    [("/v1/chat/completions", {"messages": MESSAGES}), ("/v1/completions", {"prompt": "a"})],
)
def test_a_wrong_salt_is_refused_by_name(
    served: ServedEngine, salt: object, path: str, prompt: dict[str, Any]
) -> None:
    reply = served.call(path, {"model": MODEL, "cache_salt": salt, **prompt})
    assert (reply.status, reply.error["param"]) == (400, "cache_salt")
    assert "xxx" not in str(reply.error["message"])


def test_a_reset_says_what_was_dropped(served: ServedEngine, cache: ScriptedCache) -> None:
    reply = served.call("/cache/reset", method="POST")
    assert (reply.status, json.loads(reply.body)) == (200, {"dropped_snapshots": STATS.snapshots})
    assert cache.resets == 1
    assert served.call("/cache/reset").status == 405
    bodies: tuple[object, ...] = ({"cache_salt": "a"}, [], b"{")
    for body in bodies:
        assert served.call("/cache/reset", body).status == 400, "it would drop more than was asked"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert served.call("/cache/reset", b"", headers=form).status == 415, "what a web page could send"
    assert cache.resets == 1


def test_a_prompt_is_explained(served: ServedEngine, cache: ScriptedCache) -> None:
    reply = served.call("/cache/explain", {"prompt": "abc", "cache_salt": "tenant"})
    assert reply.status == 200
    assert json.loads(reply.body) == {
        "prompt_tokens": 1200,
        "hit_tokens": 1024,
        "matched_tokens": 1104,
        "deepest_snapshot": 1024,
        "snapshots": [
            {"position": 700, "reason": "turn", "hits": 3, "tier": "arena"},
            {"position": 1024, "reason": "spare", "hits": 0, "tier": "host"},
        ],
        "losses": dict(EXPLANATION.losses),
    }
    served.call("/cache/explain", {"model": MODEL, "prompt": [5, 6]})
    assert cache.asked == [((97, 98, 99), "tenant"), ((5, 6), "")]


def test_a_conversation_is_explained_as_it_would_be_asked(served: ServedEngine, cache: ScriptedCache) -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    form = {"tools": tools, "tool_choice": "none", "chat_template_kwargs": {"thinking": True}}
    body = {"messages": MESSAGES, "reasoning_effort": "low", **form}
    assert served.call("/cache/explain", body).status == 200
    prompt = served.services.encoding.encode(
        MESSAGES, ChatOptions(thinking=True, thinking_effort="low", tools=tools, tool_choice="none")
    )
    assert cache.asked == [(prompt.token_ids, "")]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [9999]}, "prompt"),
        ({"prompt": "a" * 2000}, "prompt"),
        ({"messages": [{"role": "user", "content": "a" * 2000}]}, "messages"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role"),
        ({"messages": MESSAGES, "reasoning_effort": "most"}, "reasoning_effort"),
        ({"prompt": "a", "tools": [{}]}, "tools"),
        ({"prompt": "a", "cache_salt": "x" * 999}, "cache_salt"),
        ({"prompt": "a", "max_tokens": 3}, "max_tokens"),
    ],
)
def test_what_cannot_be_explained_names_the_field(
    served: ServedEngine, cache: ScriptedCache, body: dict[str, Any], param: str
) -> None:
    reply = served.call("/cache/explain", body)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert cache.asked == []


def test_another_model_is_not_here(served: ServedEngine, cache: ScriptedCache) -> None:
    assert served.call("/cache/explain", {"model": "other", "prompt": "a"}).status == 404


def test_without_a_cache_both_say_so(served: ServedEngine, cache: ScriptedCache) -> None:
    cache.error = ConfigError("The prefix cache is off.")
    for path, body in (("/cache/explain", {"prompt": "a"}), ("/cache/reset", {})):
        reply = served.call(path, body)
        assert reply.status == 400
        assert "prefix cache is off" in str(reply.error["message"])


def test_a_stopped_engine_answers_503(served: ServedEngine, cache: ScriptedCache) -> None:
    asyncio.run(served.engine.stop())
    assert served.call("/cache/explain", {"prompt": "a"}).status == 503
    assert served.call("/cache/reset", {}).status == 503

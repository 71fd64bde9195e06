"""Random requests from a seed: prompts that share their beginnings, options of every kind, and early ends."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

__all__ = ["LEAVES", "MODEL", "OPTIONS", "Asked", "option_bodies", "random_request"]

MODEL = "soak"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = """
the code for amber is 7412 road mile stone river bridge night morning letter number copper
silver salt wind harbour lantern seven eleven how far is it to what was said before repeat
this again please
"""
WORDS = TEXT.split()
SHARED = 12  # beginnings that all clients draw from
LEAVES = ("in the body", "after the body", "in the reply")

# Options that a body gets with the others now and then: what each adds, for which path, and how often.
OPTIONS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "greedy": ("", 0.4, {"temperature": 0.0}),
    "stop": ("", 0.2, {"stop": [" the", "7412"]}),
    "penalties": ("", 0.1, {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1}),
    "filters": ("", 0.2, {"top_k": 20, "top_p": 0.9, "min_p": 0.02}),
    "ignore_eos": ("", 0.3, {"ignore_eos": True}),
    "priority": ("", 0.1, {"priority": -1}),
    "cache_salt": ("", 0.1, {"cache_salt": "tenant"}),
    "chat logprobs": (CHAT, 0.1, {"logprobs": True, "top_logprobs": 2}),
    "logprobs": (COMPLETIONS, 0.1, {"logprobs": 2}),
    "thinking": (CHAT, 0.3, {"chat_template_kwargs": {"thinking": False}}),
    "n": ("", 0.15, {"n": 3}),
    "logit_bias": ("", 0.1, {"logit_bias": {"100": -100, "120": 3}}),
    "min_tokens": ("", 0.1, {"min_tokens": 4}),
    "echo": (COMPLETIONS, 0.1, {"echo": True}),
    "json": (CHAT, 0.15, {"response_format": {"type": "json_object"}}),
    "schema": (
        CHAT,
        0.05,
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "place",
                    "schema": {"type": "object", "properties": {"mile": {"type": "integer"}}},
                },
            }
        },
    ),
    "timeout": ("", 0.1, {"timeout": 0.4}),
}
# Pairs that no request may have both of.
EXCLUSIVE = (("json", "schema"), ("echo", "logprobs"))


@dataclass(frozen=True)
class Asked:
    """A request, and what its client does.

    Attributes:
        path: of the endpoint.
        body: as JSON.
        num_choices: replies that it asks for.
        leaves: in which part of the exchange the client goes away; None to stay.
        events: of the reply that it reads before it leaves in it.
        rudely: whether it then resets the connection.
        pause: seconds that it sleeps now and then while it reads.
    """

    path: str
    body: dict[str, Any]
    num_choices: int = 1
    leaves: str | None = None
    events: int = 0
    rudely: bool = False
    pause: float = 0.0


def option_bodies(path: str) -> dict[str, dict[str, Any]]:
    """A body with each single option of an endpoint, to find out which of them a server takes."""
    base = _chat(random.Random(0)) if path == CHAT else _completion(random.Random(0))
    return {
        name: {**base, "max_tokens": 5, **added}
        for name, (only, _, added) in OPTIONS.items()
        if only in ("", path)
    }


def random_request(draw: random.Random, served: set[str]) -> Asked:
    """Any request; `served` names the options that may be used."""
    path = draw.choice([CHAT, CHAT, COMPLETIONS])
    body = _chat(draw) if path == CHAT else _completion(draw)
    body["max_tokens"] = draw.choice([1, 5, 12, 12, 30, 60])
    if draw.random() < 0.5:
        body["seed"] = draw.randrange(1000)
    chosen = {
        name
        for name, (only, share, _) in OPTIONS.items()
        if name in served and only in ("", path) and draw.random() < share
    }
    for one, other in EXCLUSIVE:
        if {one, other} <= chosen:
            chosen.remove(other)
    for name in sorted(chosen):
        body |= OPTIONS[name][2]
    if body.get("min_tokens", 0) > body["max_tokens"]:
        body["max_tokens"] = body["min_tokens"]
    if draw.random() < 0.8:
        body["stream"] = True
        if draw.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
    prompts = body.get("prompt")
    num_prompts = len(prompts) if isinstance(prompts, list) and not isinstance(prompts[0], int) else 1
    return Asked(
        path,
        body,
        num_choices=num_prompts * body.get("n", 1),
        leaves=draw.choice(LEAVES) if draw.random() < 0.25 else None,
        events=draw.randrange(8),
        rudely=draw.random() < 0.5,
        pause=draw.choice([0.2, 1.0]) if draw.random() < 0.05 else 0.0,
    )


def _text(draw: random.Random, count: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(count))


def _beginning(draw: random.Random) -> str:
    """One of the beginnings that all share, the first ones more often; some are as long as 150 words."""
    number = min(draw.randrange(SHARED), draw.randrange(SHARED))
    return _text(random.Random(f"beginning {number}"), 10 + 13 * number)


def _chat(draw: random.Random) -> dict[str, Any]:
    messages = [{"role": "system", "content": _beginning(draw)}]
    story = random.Random(draw.randrange(40))  # conversations come again, and go on
    for _ in range(draw.randrange(3)):
        messages.append({"role": "user", "content": _text(story, 8)})
        messages.append({"role": "assistant", "content": _text(story, 6)})
    messages.append({"role": "user", "content": _text(story, 8)})
    return {"model": MODEL, "messages": messages}


def _completion(draw: random.Random) -> dict[str, Any]:
    prompt: Any = f"{_beginning(draw)} {_text(draw, draw.randrange(1, 10))}"
    kind = draw.random()
    if kind < 0.1:
        prompt = [prompt, _text(draw, 5)]
    elif kind < 0.2:
        prompt = [draw.randrange(1000) for _ in range(draw.randrange(1, 80))]
    return {"model": MODEL, "prompt": prompt}

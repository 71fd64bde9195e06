"""Requests whose text must be the same whoever else is served: asked alone first, then under load."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.soak.traffic import CHAT, COMPLETIONS, OPTIONS, option_bodies, random_request

__all__ = ["PROBES", "ask", "ask_all", "cached_tokens", "options_served", "probes"]

PROBES = 16
SECONDS = 120


def probes(served: set[str]) -> list[tuple[str, dict[str, Any]]]:
    """Paths and bodies, greedy and sampled with a seed, with all kinds of options; the same in every run."""
    draw = random.Random("probes")
    found = []
    steady = served - {"timeout"}
    for number in range(PROBES):
        asked = random_request(draw, steady)
        body = {name: value for name, value in asked.body.items() if name not in ("stream", "stream_options")}
        body |= {"seed": number, "max_tokens": 24}
        body["temperature"] = 0.0 if number % 2 else 0.9
        found.append((asked.path, body))
    return found


def ask(url: str, path: str, body: dict[str, Any]) -> list[Any]:
    """A request's replies: of each choice the text or message, and why it ended.

    Raises:
        AssertionError: an error status, with the body.
    """
    choices = _reply(url, path, body)["choices"]
    return [[choice.get("text", choice.get("message")), choice["finish_reason"]] for choice in choices]


def cached_tokens(url: str, path: str, body: dict[str, Any]) -> int:
    """How much of a request's prompt was cached."""
    return int(_reply(url, path, body)["usage"]["prompt_tokens_details"]["cached_tokens"])


def _reply(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{path} {body}: {error.code} {error.read()!r}") from error


def ask_all(url: str, asked: list[tuple[str, dict[str, Any]]], *, at_once: int) -> list[list[Any]]:
    """The replies of several requests, so many at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda one: ask(url, *one), asked))


def options_served(url: str) -> set[str]:
    """Which of `OPTIONS` the server takes on every endpoint that they are for."""
    refused = set()
    for path in (CHAT, COMPLETIONS):
        for name, body in option_bodies(path).items():
            try:
                ask(url, path, body)
            except AssertionError as error:
                if " 400 " not in str(error):
                    raise
                refused.add(name)
    return set(OPTIONS) - refused

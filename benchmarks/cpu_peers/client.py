"""A streaming client of the completions endpoint that both servers have; standard library only."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Reply", "ask", "ask_all", "read_events"]

TIMEOUT = 300.0


@dataclass(frozen=True)
class Reply:
    """One answered request.

    Attributes:
        first: seconds from the request to its first piece of text.
        last: seconds to the last one.
        tokens: that were drawn.
        reused: prompt tokens that the server did not compute.
    """

    first: float
    last: float
    tokens: int
    reused: int

    @property
    def per_token(self) -> float:
        """Seconds from a token to the next (TPOT)."""
        return (self.last - self.first) / max(1, self.tokens - 1)


def ask(port: int, model: str, prompt: Sequence[int], max_tokens: int) -> Reply:
    """Send token ids, read the stream to its end.

    Raises:
        RuntimeError: the server refused, or drew another number of tokens.
    """
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        content = json.dumps(body).encode()
        start = time.perf_counter()
        connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status} from {model}'s server: {response.read()[:500]!r}")
        times: list[float] = []
        usage: dict[str, Any] = {}
        for event in read_events(response):
            if any(choice.get("text") for choice in event.get("choices", ())):
                times.append(time.perf_counter() - start)
            usage = event.get("usage") or usage
    finally:
        connection.close()
    drawn = int(usage.get("completion_tokens", 0))
    if drawn != max_tokens or not times:
        raise RuntimeError(f"{drawn} tokens in {len(times)} pieces from {model}'s server, not {max_tokens}")
    details = usage.get("prompt_tokens_details") or {}
    return Reply(times[0], times[-1], drawn, int(details.get("cached_tokens", 0)))


def read_events(response: Any) -> Any:  # noqa: ANN401 - anything with lines of bytes; an iterator of JSON objects
    """The objects of a stream of server-sent events, as they come."""
    for line in response:
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]":
            yield json.loads(data)


def ask_all(
    port: int, model: str, prompts: Sequence[Sequence[int]], max_tokens: int, clients: int
) -> tuple[float, list[Reply]]:
    """Let so many clients send the prompts one after another; seconds of all together, and the replies."""
    waiting: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
    for prompt in prompts:
        waiting.put(prompt)
    replies: list[Reply] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            while True:
                replies.append(ask(port, model, waiting.get_nowait(), max_tokens))
        except queue.Empty:
            pass  # all are asked
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if failures:
        raise failures[0]
    return seconds, replies

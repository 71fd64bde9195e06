"""Servers side by side: four clients at once, a prompt again and in variants, and the start."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from benchmarks.cpu_peers.alternating import alternate, compared
from benchmarks.cpu_peers.client import Reply, ask, ask_all
from benchmarks.cpu_peers.models import FORMATS, Format, vocab_of
from benchmarks.cpu_peers.options import Peers
from benchmarks.cpu_peers.server_process import MODEL, Server, commands
from benchmarks.results import Result

__all__ = ["cpu_reuse", "cpu_served", "cpu_start"]

CLIENTS = 4
REQUESTS = 20
PROMPT = 256
DRAWN = 32

LONG_PROMPT = 2048
MORE = 60
DIVERGENCE = 1500
FEW = 4

SERVED = (("kimi_k3", "float32"), ("kimi_linear", "float32"), ("kimi_k3", "mxfp4"), ("shipped", "mxfp4"))


def cpu_served(peers: Peers) -> Iterator[Result]:
    """Output speed, TTFT and TPOT of 4 clients with 20 prompts, 256 in and 32 out, beside llama-server."""
    cases = [case for case in SERVED if peers.wants(*case)]
    for subject, name in cases[:1] if peers.quick else cases:
        form = FORMATS[name]
        with ExitStack() as stack:
            servers = _started(subject, form, peers, stack)
            for server in servers:
                _serve(server, _prompts(subject, CLIENTS))
            measured: dict[str, dict[str, list[float]]] = {}
            for _ in range(peers.long_rounds):
                # The same prompts for both, drawn anew each round, so that nobody finds them in a cache.
                prompts = _prompts(subject, REQUESTS)
                for server in servers:
                    for quantity, value in _serve(server, prompts).items():
                        measured.setdefault(quantity, {}).setdefault(server.name, []).append(value)
                servers.reverse()
        for quantity, samples in measured.items():
            unit = "tokens/s" if quantity == "output" else "ms"
            yield from compared(
                "cpu-served",
                subject,
                f"{name}, {CLIENTS} clients: {quantity}",
                unit,
                samples,
                lower_is_better=unit == "ms",
                settings={"requests": REQUESTS, "prompt": PROMPT, "drawn": DRAWN},
            )


def cpu_reuse(peers: Peers) -> Iterator[Result]:
    """Tokens reused and TTFT: 2,048 tokens again, longer, other from 1,500 on; beside llama-server."""
    subject, name = next(case for case in SERVED if peers.wants(*case))
    with ExitStack() as stack:
        servers = _started(subject, FORMATS[name], peers, stack)
        replies: dict[str, dict[str, list[Reply]]] = {}
        for _ in range(peers.long_rounds):
            variants = _variants(subject)
            for server in servers:
                for variant, prompt in variants.items():
                    with server.running() as port:
                        reply = ask(port, MODEL, prompt, FEW)
                    replies.setdefault(variant, {}).setdefault(server.name, []).append(reply)
            servers.reverse()
    for variant, by_server in replies.items():
        for server_name, each in by_server.items():
            yield Result(
                benchmark="cpu-reuse",
                subject=subject,
                quantity=f"{variant}, reused: {server_name}",
                unit="tokens",
                samples=[reply.reused for reply in each],
            )
        yield from compared(
            "cpu-reuse",
            subject,
            f"{variant}, TTFT",
            "ms",
            {server_name: [1e3 * reply.first for reply in each] for server_name, each in by_server.items()},
            lower_is_better=True,
            settings={"weights": name, "prompt": LONG_PROMPT},
        )


def cpu_start(peers: Peers) -> Iterator[Result]:
    """Seconds from the start of a process to ready, and to its first token; the shipped model."""
    subject, form = "shipped", FORMATS["mxfp4"]
    starts = commands(subject, form, peers)
    measured: dict[str, dict[str, list[float]]] = {"ready": {}, "first token": {}}

    def start(name: str) -> float:
        with Server(name, starts[name]) as server, server.running() as port:
            reply = ask(port, MODEL, _prompts(subject, 1)[0], FEW)
        measured["first token"].setdefault(name, []).append(server.ready_after + reply.first)
        measured["ready"].setdefault(name, []).append(server.ready_after)
        return server.ready_after

    alternate({name: partial(start, name) for name in starts}, 1 + peers.long_rounds)
    for quantity, samples in measured.items():
        yield from compared(
            "cpu-start",
            subject,
            quantity,
            "s",
            {name: each[1:] for name, each in samples.items()},  # the first start reads files from disk
            lower_is_better=True,
            settings={},
        )


def _started(subject: str, form: Format, peers: Peers, stack: ExitStack) -> list[Server]:
    print(f"  {subject}, {form.name}", file=sys.stderr)
    starts = commands(subject, form, peers)
    return [stack.enter_context(Server(name, command)) for name, command in starts.items()]


def _serve(server: Server, prompts: list[list[int]]) -> dict[str, float]:
    with server.running() as port:
        seconds, replies = ask_all(port, MODEL, prompts, DRAWN, CLIENTS)
    return {
        "output": sum(reply.tokens for reply in replies) / seconds,
        "TTFT": 1e3 * _median(replies, lambda reply: reply.first),
        "TPOT": 1e3 * _median(replies, lambda reply: reply.per_token),
    }


def _median(replies: list[Reply], value: Callable[[Reply], float]) -> float:
    return statistics.median(value(reply) for reply in replies)


def _variants(subject: str) -> dict[str, list[int]]:
    """Prompts in the order in which they are sent."""
    first = _tokens(subject, LONG_PROMPT)
    return {
        "cold": first,
        "again": first,
        f"{MORE} more": first + _tokens(subject, MORE),
        f"other from {DIVERGENCE:,}": first[:DIVERGENCE] + _tokens(subject, LONG_PROMPT - DIVERGENCE),
    }


def _prompts(subject: str, count: int) -> list[list[int]]:
    return [_tokens(subject, PROMPT) for _ in range(count)]


def _tokens(subject: str, count: int) -> list[int]:
    draw = random.Random()
    return [draw.randrange(vocab_of(subject)) for _ in range(count)]

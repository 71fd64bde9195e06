"""Engines side by side without a server: the same tokens, decode, prefill."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.cpu_peers import workers
from benchmarks.cpu_peers.alternating import OURS, alternate, compared
from benchmarks.cpu_peers.models import (
    FORMATS,
    SUBJECTS,
    Format,
    checkpoint_of,
    formats_of,
    gguf_of,
    vocab_of,
)
from benchmarks.cpu_peers.options import THREADS, Peers
from benchmarks.cpu_peers.step_bytes import step_bytes
from benchmarks.cpu_peers.workers import Worker
from benchmarks.results import Result
from milepost.config_json import read_model_spec
from milepost.kernels.native import set_num_threads
from milepost.kernels.native.limits import measure_limits

__all__ = ["cpu_decode", "cpu_models", "cpu_prefill"]

CONTEXT = 512
BATCHES = {1: 32, 8: 16, 32: 8}
"""Sequences, and steps of a turn."""
QUICK_BATCHES = (1, 8)
WARM_STEPS = 2
PREFILLS = (2048, 8192)
"""The longer one in float32 alone, where the most time goes; not by transformers, which takes minutes."""
GREEDY = 16
SLOW = "transformers"


@dataclass(frozen=True)
class _Sides:
    """The engines of one comparison, ours first."""

    subject: str
    form: Format
    engines: list[Worker]
    settings: dict[str, object]

    def prompt(self, length: int) -> list[int]:
        draw = random.Random()
        return [draw.randrange(vocab_of(self.subject)) for _ in range(length)]

    def alternate(self, rounds: int, call: Callable[[Worker], float]) -> list[dict[str, list[float]]]:
        """Rounds of ours and of each peer; slow peers have one of their own, since each turn takes long."""
        ours = self.engines[0]
        quick = [each for each in self.engines if each.name != SLOW]
        slow = [[ours, each] for each in self.engines if each.name == SLOW]
        groups = [(quick, rounds), *((pair, 1) for pair in slow)]
        return [
            alternate({each.name: partial(call, each) for each in group}, turns) for group, turns in groups
        ]

    def compare(
        self, benchmark: str, quantity: str, tokens: int, seconds: list[dict[str, list[float]]]
    ) -> Iterator[Result]:
        """Rows of speeds; `seconds` is what `alternate` gave for so many tokens a turn."""
        for number, group in enumerate(seconds):
            rows = compared(
                benchmark,
                self.subject,
                f"{self.form.name}, {quantity}",
                "tokens/s",
                {name: [tokens / second for second in each] for name, each in group.items()},
                lower_is_better=False,
                settings=self.settings,
            )
            # Our own speed is told once, from the group with the most rounds.
            yield from (row for row in rows if number == 0 or not row.quantity.endswith(f": {OURS}"))


def cpu_models(peers: Peers) -> Iterator[Result]:
    """Writes the subjects in every engine's format; greedy tokens that peers draw as we do, of 16."""
    for sides in _every_comparison(peers):
        prompt = sides.prompt(100)
        drawn = {each.name: each.call("greedy", prompt=prompt, count=GREEDY) for each in sides.engines}
        for name, tokens in drawn.items():
            if name != OURS:
                yield Result(
                    benchmark="cpu-models",
                    subject=sides.subject,
                    quantity=f"{sides.form.name}: greedy tokens as {name}'s, of {GREEDY}",
                    unit="tokens",
                    samples=[_common_prefix(drawn[OURS], tokens)],
                    settings=sides.settings,
                )


def cpu_decode(peers: Peers) -> Iterator[Result]:
    """Tokens per second of 1, 8 and 32 sequences at context 512 beside llama.cpp and transformers."""
    set_num_threads(THREADS)
    bandwidths: list[float] = []
    for sides in _every_comparison(peers):
        bandwidths.append(measure_limits().read_bytes_per_second)
        for batch in QUICK_BATCHES if peers.quick else BATCHES:
            # Others on the machine only take from it: the most that was seen is nearest to what there is.
            yield from _decode(sides, batch, peers.rounds, max(bandwidths))
    yield Result(
        benchmark="cpu-decode",
        subject="memory",
        quantity=f"streaming read, {THREADS} threads",
        unit="GB/s",
        samples=[each / 1e9 for each in bandwidths],
    )


def cpu_prefill(peers: Peers) -> Iterator[Result]:
    """Prompt tokens per second of 2,048 and of 8,192 tokens beside llama.cpp and transformers."""
    for sides in _every_comparison(peers):
        for length in PREFILLS:
            is_long = length > PREFILLS[0]
            if is_long and (peers.quick or sides.form != FORMATS["float32"]):
                continue
            able = [each for each in sides.engines if each.name != SLOW or not is_long]
            chosen = replace(sides, engines=able)
            prefill = partial(_prefill, prompt=chosen.prompt(length))
            seconds = chosen.alternate(peers.long_rounds, prefill)
            yield from chosen.compare("cpu-prefill", f"prompt of {length}", length, seconds)


def _prefill(engine: Worker, prompt: list[int]) -> float:
    return float(engine.call("prefill", prompt=prompt))


def _decode(sides: _Sides, batch: int, rounds: int, bandwidth: float) -> Iterator[Result]:
    steps = BATCHES[batch]
    prompts = [sides.prompt(CONTEXT) for _ in range(batch)]
    for each in sides.engines:
        each.call("open", prompts=prompts)
        each.call("steps", count=WARM_STEPS)
    seconds = sides.alternate(rounds, lambda each: float(each.call("steps", count=steps)))
    for each in sides.engines:
        each.call("close")
    yield from sides.compare("cpu-decode", f"batch {batch}", steps * batch, seconds)
    moved = step_bytes(
        read_model_spec(checkpoint_of(sides.subject, packed=sides.form.packed)),
        weights=sides.form.rest,
        experts=sides.form.name,
        batch=batch,
        context=CONTEXT + WARM_STEPS + rounds * steps / 2,
    )
    for name in (OURS, "llama.cpp"):
        yield Result(
            benchmark="cpu-decode",
            subject=sides.subject,
            quantity=f"{sides.form.name}, batch {batch}: of the memory's bandwidth, {name}",
            unit="%",
            samples=[100 * moved.total * steps / second / bandwidth for second in seconds[0][name]],
            settings=sides.settings | {"step_bytes": moved.total, "bandwidth": bandwidth},
        )


def _every_comparison(peers: Peers) -> Iterator[_Sides]:
    """Each subject in each format that is compared, with its engines loaded for as long as it lasts."""
    for subject in SUBJECTS:
        for form in formats_of(subject):
            if not peers.wants(subject, form.name):
                continue
            print(f"  {subject}, {form.name}", file=sys.stderr)
            with ExitStack() as stack:
                yield _sides(subject, form, peers, stack)


def _sides(subject: str, form: Format, peers: Peers, stack: ExitStack) -> _Sides:
    folder = checkpoint_of(subject, packed=form.packed)
    gguf = gguf_of(subject, form, peers)
    engines = [stack.enter_context(workers.milepost(folder, weights=form.weights))]
    engines.append(stack.enter_context(workers.llama_cpp(gguf, peers)))
    if subject == "kimi_linear" and form == FORMATS["float32"]:
        engines.append(stack.enter_context(workers.transformers(folder, peers)))
    return _Sides(subject, form, engines, {each.name: each.call("about") for each in engines})


def _common_prefix(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Tokens up to the first that differs."""
    for count, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            return count
    return len(ours)

"""Serving simulated step by step, to hold the steady state's formulas against: no formula of theirs is used.

Prompts come at random, are computed first come first served in the room that a step leaves beside the
decoding rows, and each step takes what the roofline says of its real rows.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.steady import Arrangement, ServePoint
from milepost.sim.cost.step_work import StepWork

__all__ = ["Measured", "simulate"]


@dataclass(frozen=True)
class Measured:
    """Means over the middle three fifths of all requests, and of all steps."""

    ttft_seconds: float
    tpot_seconds: float
    batch: float


@dataclass
class _Prompt:
    arrival: float
    computed: int = 0


@dataclass
class _Answer:
    started: float
    written: int = 0


def simulate(
    arrangement: Arrangement, question: ServeQuestion, point: ServePoint, *, requests: int, seed: int = 0
) -> Measured:
    """Serve so many requests at the point's own rate."""
    chance = random.Random(seed)
    rate = point.requests_per_second / point.data_parallel
    arrivals = deque(_times(chance, rate, requests))
    waiting: deque[_Prompt] = deque()
    answers: list[_Answer] = []
    first: list[float] = []
    each: list[float] = []
    rows: list[float] = []
    now = 0.0
    while len(each) < requests:
        while arrivals and arrivals[0] <= now:
            waiting.append(_Prompt(arrivals.popleft()))
        if not waiting and not answers:
            now = arrivals[0]
            continue
        work, done = _step(question, point.token_budget_tokens, waiting, answers)
        now += arrangement.cost.seconds(work)
        rows.append(len(answers))
        for answer in answers:
            answer.written += 1
            if answer.written == question.output_tokens:
                each.append((now - answer.started) / question.output_tokens)
        answers = [answer for answer in answers if answer.written < question.output_tokens]
        for _ in range(done):
            first.append(now - waiting.popleft().arrival)
            answers.append(_Answer(now))
    return Measured(ttft_seconds=_middle(first), tpot_seconds=_middle(each), batch=_middle(rows))


def _times(chance: random.Random, rate: float, count: int) -> list[float]:
    times = [0.0]
    for _ in range(count):
        times.append(times[-1] + chance.expovariate(rate))
    assert all(before < after for before, after in pairwise(times))
    return times[1:]


def _step(
    question: ServeQuestion, budget: int, waiting: deque[_Prompt], answers: list[_Answer]
) -> tuple[StepWork, int]:
    """The work of the next step, and how many prompts it completes."""
    tokens = len(answers)
    context = sum(question.input_tokens + answer.written for answer in answers)
    pairs, rows, done, room = context, len(answers), 0, budget - len(answers)
    for prompt in waiting:
        if room <= 0:
            break
        count = min(room, question.new_tokens - prompt.computed)
        start = question.hit_tokens + prompt.computed
        prompt.computed += count
        tokens, rows, room = tokens + count, rows + 1, room - count
        context += start + count
        pairs += count * start + count * (count + 1) // 2
        done += prompt.computed == question.new_tokens
    work = StepWork(tokens=tokens, rows=rows, sampled=len(answers) + done, context=context, pairs=pairs)
    return work, done


def _middle(values: list[float]) -> float:
    fifth = len(values) // 5
    kept = values[fifth:-fifth]
    return sum(kept) / len(kept)

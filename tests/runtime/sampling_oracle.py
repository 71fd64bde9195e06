"""Sampling written the slow, plain way: Python floats, sorted lists, no numpy; the tests' oracle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from milepost.types import SamplingParams


def penalized(
    logits: Sequence[float], prompt: Sequence[int], output: Sequence[int], params: SamplingParams
) -> list[float]:
    """Logits after the repetition, presence and frequency penalties."""
    counts = Counter(output)
    result = list(logits)
    for token in range(len(result)):
        if token in counts or token in prompt:
            penalty = params.repetition_penalty
            result[token] = result[token] / penalty if result[token] > 0 else result[token] * penalty
        if token in counts:
            result[token] -= params.frequency_penalty * counts[token] + params.presence_penalty
    return result


def log_probabilities(logits: Sequence[float]) -> list[float]:
    """Natural log-probabilities of a row of logits."""
    largest = max(logits)
    total = math.fsum(math.exp(value - largest) for value in logits)
    return [value - largest - math.log(total) for value in logits]


def distribution(logits: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """Tokens that may be drawn and their probabilities: temperature, top-k, top-p, min-p."""
    scaled = log_probabilities([value / params.temperature for value in logits])
    ranked = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    kept = ranked[: params.top_k] if params.top_k else ranked
    chances = _normalised({token: math.exp(scaled[token]) for token in kept})
    if params.top_p < 1.0:
        nucleus: dict[int, float] = {}
        for token, chance in chances.items():  # the most probable first
            if math.fsum(nucleus.values()) >= params.top_p:
                break
            nucleus[token] = chance
        chances = _normalised(nucleus)
    least = params.min_p * max(chances.values())
    return _normalised({token: chance for token, chance in chances.items() if chance >= least})


def _normalised(chances: dict[int, float]) -> dict[int, float]:
    total = math.fsum(chances.values())
    return {token: chance / total for token, chance in chances.items()}

"""Top-k, top-p, min-p and log-probabilities against the plain oracle, ties included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from milepost.runtime.logit_filters import allowed_ids, best_ids, log_softmax, scaled_scores
from milepost.types import SamplingParams
from tests.runtime.sampling_oracle import distribution, log_probabilities

# Few distinct values, so that ties are common.
_logits = st.lists(st.sampled_from([-30.0, -2.0, -0.5, 0.0, 0.25, 1.0, 1.5, 3.0]), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    _logits,
    st.sampled_from([0.3, 1.0, 2.5]),
    st.integers(0, 13),
    st.sampled_from([1.0, 0.97, 0.61, 0.33, 0.01]),
    st.sampled_from([0.0, 0.013, 0.11, 0.7]),
)
def test_allowed_tokens_are_the_oracles(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = distribution(logits, params)
    # A sum that rounds onto top_p itself may fall either side; such cases are no test of either.
    near = SamplingParams(temperature=temperature, top_k=top_k, top_p=max(top_p - 1e-9, 1e-9), min_p=min_p)
    assume(top_p == 1.0 or distribution(logits, near).keys() == expected.keys())
    ids = allowed_ids(scaled_scores(np.array(logits), temperature), params)
    assert ids.tolist() == sorted(expected)


@given(_logits, st.integers(1, 13))
def test_best_ids_prefer_the_lower_id_among_equals(logits: list[float], count: int) -> None:
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    assert best_ids(np.array(logits), count).tolist() == sorted(ranked[:count])


@given(_logits)
def test_log_softmax_is_the_oracles(logits: list[float]) -> None:
    assert log_softmax(np.array(logits)).tolist() == pytest.approx(log_probabilities(logits), abs=1e-12)


def test_a_tiny_temperature_stays_finite_at_the_top() -> None:
    scores = scaled_scores(np.array([1e30, -1e30, 1e30]), 1e-300)
    assert scores.tolist() == [0.0, -np.inf, 0.0]
    params = SamplingParams(temperature=1e-300, top_p=0.9, min_p=0.1, top_k=2)
    assert allowed_ids(scores, params).tolist() == [0, 2]


@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.9999])
def test_the_nucleus_of_a_large_vocabulary_is_exact(scale: float, top_p: float) -> None:
    """From a handful of tokens to nearly all of them; rounded logits make ties."""
    logits = np.random.default_rng(3).normal(scale=scale, size=20_000).round(3)
    order = np.argsort(-logits, kind="stable")
    chances = np.cumsum(np.exp(log_softmax(logits))[order])
    expected = np.sort(order[: int((chances < top_p).sum()) + 1])
    assert np.array_equal(allowed_ids(scaled_scores(logits, 1.0), SamplingParams(top_p=top_p)), expected)


@pytest.mark.parametrize("scale", [0.0, 0.001, 0.3, 2.0, 8.0])
@pytest.mark.parametrize("top_k", [0, 1, 50, 3000])
def test_filters_of_a_large_vocabulary_follow_a_full_sort(scale: float, top_k: int) -> None:
    """Many equal scores; what the filters leave is exactly what sorting everything leaves."""
    seed = int(np.random.default_rng().integers(1 << 32))
    draw = np.random.default_rng(seed)
    for decimals, top_p, min_p in itertools.product([1, 4], [1.0, 0.9993, 0.6871, 0.0517], [0.0, 0.02]):
        logits = draw.normal(scale=scale, size=9000).round(decimals)
        params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
        found = allowed_ids(scaled_scores(logits, 1.0), params)
        assert np.array_equal(found, fully_sorted(logits, params)), f"seed {seed}, {params}"


def fully_sorted(logits: NDArray[np.float64], params: SamplingParams) -> NDArray[np.int64]:
    order = np.argsort(-logits, kind="stable")[: params.top_k or None]
    chances = np.exp(logits[order] - logits.max())
    if params.top_p < 1.0:
        reached = np.cumsum(chances / chances.sum())
        # A sum that is taken in another order may fall on the other side of top_p.
        assert np.abs(reached - params.top_p).min() > 1e-12
        order = order[: int((reached < params.top_p).sum()) + 1]
    return np.sort(order[np.exp(logits[order] - logits.max()) >= params.min_p])

"""Draws depend on seed and index alone, and are the same on every machine and numpy version."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from milepost.runtime.random_draws import SeedSource, draw_any, gumbel_noise

PINNED = {
    (0, 0): [0.3394135683350476, -0.05979426358102542, -0.5689064209254312],
    (-7, 123): [1.2471699266157197, -0.5072978604113234, 0.6564901619764061],
}


def noise_of(seed: int, index: int, count: int) -> NDArray[np.float64]:
    return gumbel_noise(seed, index, np.arange(count, dtype=np.int64))


def test_noise_is_pinned() -> None:
    for (seed, index), values in PINNED.items():
        assert noise_of(seed, index, 3).tolist() == pytest.approx(values, rel=1e-14)


def test_noise_belongs_to_the_token_whatever_tokens_are_asked_for() -> None:
    some = np.array([3, 4, 17, 99])
    assert np.array_equal(gumbel_noise(5, 9, some), noise_of(5, 9, 120)[some])


def test_seeds_and_indices_have_streams_of_their_own() -> None:
    streams = [noise_of(seed, index, 64) for seed in (0, 1, -1, 1 << 62) for index in (0, 1, 2)]
    assert len(np.unique(np.concatenate(streams))) == 64 * len(streams)


def test_noise_is_finite_and_gumbel() -> None:
    noise = np.concatenate([noise_of(11, index, 1000) for index in range(50)])
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.02)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.05)


def test_an_engine_seed_repeats_its_seeds_and_none_does_not() -> None:
    def four(seed: int | None) -> list[int]:
        source = SeedSource(seed)
        return [source.next_seed() for _ in range(4)]

    assert four(3) == four(3)
    assert len({*four(3), *four(4), *four(None), *four(None)}) == 16


@pytest.mark.parametrize("count", [1, 2, 5, 40, 400])
def test_noise_of_few_tokens_is_the_noise_that_they_have_among_all(count: int) -> None:
    """Whether what lies between the tokens is skipped or drawn makes no difference."""
    vocab = 5000
    everybody = gumbel_noise(7, 3, np.arange(vocab))
    seed = int(np.random.default_rng().integers(1 << 32))
    draw = np.random.default_rng(seed)
    for _ in range(20):
        ids = np.sort(draw.choice(vocab, count, replace=False))
        assert np.array_equal(gumbel_noise(7, 3, ids), everybody[ids]), f"seed {seed}"


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 4.0, 50.0])
def test_a_draw_from_the_whole_vocabulary_is_the_largest_of_all_sums(scale: float) -> None:
    """From equal scores, where noise alone decides, to scores that leave it no chance."""
    vocab = 3000
    seed = int(np.random.default_rng().integers(1 << 32))
    draw = np.random.default_rng(seed)
    winners = set()
    for index in range(60):
        scores = draw.normal(scale=scale, size=vocab).round(2)
        scores -= scores.max()
        expected = int(np.argmax(scores + gumbel_noise(9, index, np.arange(vocab))))
        assert draw_any(9, index, scores) == expected, f"seed {seed}"
        winners.add(scores[expected] < -3)
    if 1.0 <= scale <= 4.0:
        assert winners == {True, False}  # both ways of finding it were needed


def test_scores_without_end_are_never_drawn() -> None:
    scores = np.full(9, -np.inf)
    scores[4] = 0.0
    assert {draw_any(1, index, scores) for index in range(50)} == {4}

"""Lengths by percentiles, and mixes of requests."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import ConfigError
from milepost.planner.disagg.lengths import mix_of, parse_lengths, truncated_log_normal


def test_percentiles_are_met_exactly() -> None:
    lengths = parse_lengths("--lengths", "p50=8k, p90=32k,p99=128K")
    assert [lengths.at(share) for share in (0.5, 0.9, 0.99)] == [8192, 32768, 131072]


def test_one_length_is_that_of_all() -> None:
    for text in ("8k", "8192", "p50=8k", "p90=8k"):
        assert parse_lengths("--lengths", text).points() == (8192,)


@given(st.integers(1, 10**6), st.floats(1, 50), st.floats(1, 50))
def test_points_ascend_and_split_at_the_percentiles(low: int, more: float, most: float) -> None:
    middle, high = math.ceil(low * more), math.ceil(low * more * most)
    if high > 1 << 24:
        return
    points = parse_lengths("--lengths", f"p50={low},p90={middle},p99={high}").points(1000)
    assert all(one <= other for one, other in pairwise(points))
    for share, length in ((0.5, low), (0.9, middle), (0.99, high)):
        assert points[round(1000 * share) - 1] <= length <= points[round(1000 * share)]


def test_two_percentiles_are_one_log_normal() -> None:
    mu, sigma = math.log(4000), 0.7
    z90 = 1.2815515655446004
    points = parse_lengths("--lengths", f"p50=4000,p90={round(math.exp(mu + z90 * sigma))}").points(20_000)
    assert sum(points) / len(points) == pytest.approx(math.exp(mu + sigma**2 / 2), rel=0.002)


def test_least_and_most_cut() -> None:
    points = parse_lengths("--lengths", "p50=8k,p90=32k,min=1k,max=64k").points(2000)
    assert (min(points), max(points)) == (1024, 65536)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a length is 1 to"),
        ("p50=8k,p90=4k", "p90=4,096 behind p50=8,192"),
        ("p90=8k,p50=9k", "percentiles that rise"),
        ("p50=8k,p50=9k", "names p50 twice"),
        ("p0=8k", "above 0 and below 100"),
        ("p100=8k", "p50=8k,p90=32k"),
        ("p50=-3", "a length is 1 to"),
        ("p50=nan", "a length is 1 to"),
        ("median=8k", "a percentile is above 0"),
        ("p50=0", "a length is 1 to"),
        ("p50=99m", "16,777,216"),
        ("min=8k", "percentiles such as"),
        ("p50=8k,min=9k,max=8k", "min at or below max"),
        ("p50=8k,,p90=9k", "a length is 1 to"),
    ],
)
def test_wrong_text_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match="--lengths") as caught:
        parse_lengths("--lengths", text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cut_log_normal_has_the_mean_of_the_published_workload() -> None:
    # mu 9.90, sigma 1.00, 128 to 128k: "about 27K" (arXiv:2604.15039).
    quantile = truncated_log_normal(9.90, 1.00, 128, 131_072)
    lengths = [quantile((place + 0.5) / 5000) for place in range(5000)]
    assert min(lengths) >= 128
    assert max(lengths) <= 131_072
    assert sum(lengths) / len(lengths) == pytest.approx(27_500, rel=0.005)


def test_what_decode_steps_see_weighs_long_outputs_more() -> None:
    mix = mix_of([1000], [10, 90], source="here")
    # 100 steps: 10 of them of a request that ends at 1,010, 90 of one that ends at 1,090.
    assert mix.output_tokens == 50
    assert mix.held_tokens == pytest.approx(0.1 * 1010 + 0.9 * 1090)
    assert mix.decode_context_tokens == pytest.approx(0.1 * 1005 + 0.9 * 1045)


def test_the_last_token_is_always_computed() -> None:
    mix = mix_of([1, 2, 1000], [1], hit_rate=0.999, source="here")
    assert [share.uncached_tokens for share in mix.shares] == [1, 1, 1]
    assert mix.at(0.9).uncached_tokens == 1
    assert sum(share.weight for share in mix.shares) == pytest.approx(1.0)


def test_a_share_of_the_requests_is_found_by_uncached_tokens() -> None:
    mix = mix_of(list(range(1, 101)), [1], source="here")
    assert [mix.at(share).prompt_tokens for share in (0.01, 0.5, 0.9, 0.995)] == [1, 50, 90, 100]

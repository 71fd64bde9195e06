"""Which snapshot each policy gives up first, what `value` learns, and how policies are written."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import ConfigError
from milepost.prefix.eviction import Candidate, EvictionPolicy, parse_eviction
from milepost.prefix.plan import Reason

NOW = 1000.0
ALL = ("lru", "marconi", "marconi(alpha=0.5)", "value", "value(exponent=1,patience=600)")


@dataclass(frozen=True)
class Snapshot:
    """A candidate as plain data: by default half a minute old, over 1,024 tokens of its own."""

    position: int = 4096
    gap: int = 1024
    freed_pages: int = 40
    used_at: float = NOW - 30.0
    hits: int = 0
    reason: Reason = Reason.TURN
    superseded: bool = False


def order(policy: EvictionPolicy, **candidates: Snapshot) -> list[str]:
    """Names in the order in which they go."""
    return sorted(candidates, key=lambda name: policy.worth(candidates[name], NOW))


def parsed(text: str) -> EvictionPolicy:
    return parse_eviction(text)


@pytest.mark.parametrize("text", ["lru", "marconi"])
def test_longest_unused_goes_first_whatever_it_saves(text: str) -> None:
    old = Snapshot(used_at=NOW - 100, gap=100_000, hits=9)
    new = Snapshot(used_at=NOW - 1, gap=16, freed_pages=800)
    middle = Snapshot(used_at=NOW - 10)
    assert order(parsed(text), new=new, old=old, middle=middle) == ["old", "middle", "new"]


def test_marconi_weighs_tokens_per_page_against_recency() -> None:
    costly = Snapshot(used_at=NOW - 100, gap=8192, freed_pages=160)
    cheap = Snapshot(used_at=NOW - 1, gap=64, freed_pages=33)
    assert order(parsed("marconi(alpha=0)"), costly=costly, cheap=cheap) == ["costly", "cheap"]
    assert order(parsed("marconi(alpha=1)"), costly=costly, cheap=cheap) == ["cheap", "costly"]


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 9999), st.floats(0, NOW)), min_size=1))
def test_marconi_terms_lie_between_0_and_their_weights(rows: list[tuple[int, int, float]]) -> None:
    policy = parsed("marconi(alpha=3)")
    for gap, pages, used_at in rows:
        assert 0.0 < policy.worth(Snapshot(gap=gap, freed_pages=pages, used_at=used_at), NOW) <= 4.0


def test_value_keeps_a_fresh_leaf_and_drops_an_old_trunk() -> None:
    trunk = Snapshot(position=1024, gap=1024, freed_pages=32, used_at=NOW - 3600)
    leaf = Snapshot(position=8192, gap=1024, freed_pages=48, used_at=NOW - 5)
    assert order(parsed("value"), leaf=leaf, trunk=trunk) == ["trunk", "leaf"]


def test_value_keeps_long_gaps_and_cheap_ones() -> None:
    usual = Snapshot()
    short = Snapshot(gap=64)
    dear = Snapshot(freed_pages=400)
    assert order(parsed("value"), short=short, usual=usual)[0] == "short"
    assert order(parsed("value"), dear=dear, usual=usual)[0] == "dear"
    assert parsed("value(exponent=0)").worth(short, NOW) == parsed("value(exponent=0)").worth(usual, NOW)


def test_value_gives_up_superseded_ones_far_earlier() -> None:
    left_behind = Snapshot(superseded=True, used_at=NOW - 1, gap=32_768)
    forgotten = Snapshot(used_at=NOW - 36_000, gap=64)
    assert order(parsed("value"), forgotten=forgotten, left_behind=left_behind)[0] == "left_behind"


def test_value_keeps_what_was_hit() -> None:
    hit = Snapshot(hits=1)
    assert order(parsed("value"), never=Snapshot(), hit=hit) == ["never", "hit"]


def test_value_keeps_the_beginning_that_many_share() -> None:
    """A short one that is asked for every few seconds, against long ones that came in meanwhile."""
    shared = Snapshot(position=512, gap=512, freed_pages=254, hits=100, reason=Reason.BRANCH, used_at=NOW - 5)
    leaf = Snapshot(position=12_800, gap=12_288, freed_pages=446, used_at=NOW - 5)
    assert order(parsed("value"), leaf=leaf, shared=shared) == ["leaf", "shared"]


def test_value_orders_a_path_by_what_the_next_turn_needs() -> None:
    """A chat's last answer, the turn before it (superseded), and a system prompt that others use."""
    system = Snapshot(position=700, gap=700, freed_pages=32, hits=50, used_at=NOW - 60)
    before = Snapshot(position=3000, gap=2300, freed_pages=32, superseded=True, used_at=NOW - 60)
    last = Snapshot(position=3500, gap=500, freed_pages=40, reason=Reason.LAST, used_at=NOW - 10)
    got = order(parsed("value"), system=system, before=before, last=last)
    assert got[0] == "before"
    assert set(got[1:]) == {"system", "last"}


@pytest.mark.parametrize("text", ALL)
@given(
    gap=st.integers(1, 1 << 20),
    pages=st.integers(1, 1 << 16),
    ages=st.lists(st.floats(0.0, 1e7), min_size=2, max_size=6),
    hits=st.integers(0, 3),
    reason=st.sampled_from(Reason),
    superseded=st.booleans(),
)
def test_worth_falls_with_age_and_is_finite(
    text: str, gap: int, pages: int, ages: list[float], hits: int, reason: Reason, superseded: bool
) -> None:
    policy = parsed(text)
    one = Snapshot(gap=gap, freed_pages=pages, hits=hits, reason=reason, superseded=superseded)
    worths = [policy.worth(replace(one, used_at=1e7 - age), 1e7) for age in sorted(ages)]
    assert all(map(math.isfinite, worths))
    assert all(younger >= older for younger, older in itertools.pairwise(worths))
    assert all(type(worth) is float for worth in worths)


@pytest.mark.parametrize("text", ALL)
def test_odd_candidates_have_a_worth(text: str) -> None:
    for odd in (
        Snapshot(gap=0),
        Snapshot(freed_pages=0),
        Snapshot(used_at=NOW + 5),
        Snapshot(gap=0, freed_pages=0),
    ):
        assert math.isfinite(parsed(text).worth(odd, NOW))


def test_learned_reuse_changes_the_order() -> None:
    policy = parsed("value")
    tail, turn = Snapshot(reason=Reason.PROMPT_TAIL), Snapshot(reason=Reason.TURN)
    assert order(policy, tail=tail, turn=turn) == ["tail", "turn"]
    for _ in range(100):
        policy.written(Snapshot(reason=Reason.PROMPT_TAIL), NOW)
        policy.written(Snapshot(reason=Reason.TURN), NOW)
        policy.consumed(tail, NOW)
    assert order(policy, tail=tail, turn=turn) == ["turn", "tail"]


def test_what_was_learned_fades() -> None:
    policy = parsed("value")
    period = Snapshot(reason=Reason.PERIOD)
    for _ in range(200):
        policy.written(Snapshot(reason=Reason.PERIOD), NOW)
        policy.consumed(period, NOW)
    popular = policy.worth(period, NOW)
    for _ in range(5000):
        policy.written(Snapshot(reason=Reason.PERIOD), NOW)
    assert policy.worth(period, NOW) < popular / 10


def test_a_second_use_is_learned_apart_from_the_first() -> None:
    policy = parsed("value")
    fresh, used = Snapshot(), Snapshot(hits=1)
    before = policy.worth(fresh, NOW), policy.worth(used, NOW)
    for _ in range(50):  # each is used once and never again
        policy.written(Snapshot(reason=Reason.TURN), NOW)
        policy.consumed(fresh, NOW)
    assert policy.worth(fresh, NOW) > before[0]
    assert policy.worth(used, NOW) < before[1]
    assert order(policy, fresh=fresh, used=used) == ["used", "fresh"]


@given(st.lists(st.tuples(st.sampled_from(Reason), st.integers(-1, 3)), max_size=60))
def test_chances_are_chances_whatever_is_told(events: list[tuple[Reason, int]]) -> None:
    """Consumptions without a word of the writing included: a tier may publish what it never wrote here."""
    first, again = parsed("value(exponent=0,patience=1)"), parsed("value(exponent=0,patience=1)")
    for policy, (reason, hits) in itertools.product((first, again), events):
        if hits < 0:
            policy.written(Snapshot(reason=reason), NOW)
        else:
            policy.consumed(Snapshot(reason=reason, hits=hits), NOW)
    for reason, hits in itertools.product(Reason, (0, 1)):
        candidate = Snapshot(reason=reason, hits=hits, used_at=NOW)
        assert 0.0 < first.worth(candidate, NOW) <= 1.0
        assert first.worth(candidate, NOW) == again.worth(candidate, NOW)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("lru", "lru"),
        (" marconi ", "marconi(alpha=0)"),
        ("marconi(alpha=0.5)", "marconi(alpha=0.5)"),
        ("marconi( alpha = 2 )", "marconi(alpha=2)"),
        ("marconi(2)", "marconi(alpha=2)"),
        ("value", "value"),
        ("value()", "value"),
        ("value(patience=600)", "value(patience=600)"),
        ("value(patience=1e5,exponent=1)", "value(exponent=1,patience=100000)"),
    ],
)
def test_names_are_read_and_written(text: str, name: str) -> None:
    assert parsed(text).name == name
    assert parsed(name).name == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "eviction takes names in lower case"),
        ("value(", "eviction takes names in lower case"),
        ("Value", "eviction takes names in lower case"),
        ("marconi(alpha=1)x", "eviction takes names in lower case"),
        ("marconi+lru", "eviction takes one policy"),
        ("lfu", "lru, marconi, value. Given: 'lfu'. Did you mean 'lru'?"),
        ("marconi(alfa=1)", "no parameter 'alfa'. Did you mean 'alpha'? Known: alpha."),
        ("lru(alpha=1)", "lru has no parameter 'alpha'. Known: none."),
        ("lru(1)", "lru takes no parameters"),
        ("marconi(alpha)", "alpha must be a number between 0 and 1e+06. Given: 'alpha'."),
        ("marconi(alpha=)", "eviction takes names in lower case"),
        ("marconi(alpha=much)", "Given: 'much'."),
        ("marconi(alpha=-1)", "between 0 and"),
        ("marconi(alpha=nan)", "between 0 and"),
        ("marconi(alpha=inf)", "between 0 and"),
        ("value(patience=0)", "patience must be a number between 0.001"),
        ("marconi(alpha=1,alpha=2)", "takes alpha once"),
        ("marconi(alpha=1,)", "eviction takes names in lower case"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_eviction(text)
    assert words in str(caught.value)


def test_the_fake_is_a_candidate() -> None:
    candidate: Candidate = Snapshot()
    assert candidate.gap < candidate.position

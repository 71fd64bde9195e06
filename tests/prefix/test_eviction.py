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
from milepost.prefix.keys import Key
from milepost.prefix.plan import Reason
from milepost.prefix.stays import NEW, Stay, Visit

NOW = 1000.0
ALL = ("lru", "marconi", "marconi(alpha=0.5)", "value")


@dataclass(eq=False)
class Snapshot:
    """A candidate as plain data: by default half a minute old, over 1,024 tokens of its own."""

    position: int = 4096
    gap: int = 1024
    freed_pages: int = 40
    used_at: float = NOW - 30.0
    hits: int = 0
    reason: Reason = Reason.TURN
    unit_key: Key = b"a place"
    inside: bool = False
    visit: Visit = NEW
    stay: Stay | None = None
    heir: Stay | None = None


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


def test_value_keeps_long_gaps_and_cheap_ones() -> None:
    usual = Snapshot()
    short = Snapshot(gap=64)
    dear = Snapshot(freed_pages=400)
    assert order(parsed("value"), short=short, usual=usual)[0] == "short"
    assert order(parsed("value"), dear=dear, usual=usual)[0] == "dear"


def test_value_keeps_a_fresh_leaf_and_drops_an_old_trunk() -> None:
    trunk = Snapshot(position=1024, gap=1024, freed_pages=32, used_at=NOW - 3600)
    leaf = Snapshot(position=8192, gap=1024, freed_pages=48, used_at=NOW - 5)
    assert order(parsed("value"), leaf=leaf, trunk=trunk) == ["trunk", "leaf"]


@pytest.mark.parametrize("text", ALL)
@given(
    gap=st.integers(1, 1 << 20),
    pages=st.integers(1, 1 << 16),
    ages=st.lists(st.floats(0.0, 1e7), min_size=2, max_size=6),
    hits=st.integers(0, 3),
    reason=st.sampled_from(Reason),
)
def test_worth_falls_with_age_and_is_finite(
    text: str, gap: int, pages: int, ages: list[float], hits: int, reason: Reason
) -> None:
    policy = parsed(text)
    one = Snapshot(gap=gap, freed_pages=pages, hits=hits, reason=reason)
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


def chats(policy: EvictionPolicy, count: int, *, begin: float = 0.0, answered: int = 2) -> float:
    """Conversations, one every 10 s; each `answered`-th goes on after 60 s, once. Returns the time."""
    for i in range(count):
        now, key = begin + 10.0 * i, f"{begin} {i}".encode()
        visit = policy.looked_up([b"system", key], 4000, now)
        policy.written(Snapshot(unit_key=key, visit=visit, position=4000), now)
        j = i - 6
        if j >= 0 and j % answered == 0:
            old = f"{begin} {j}".encode()
            visit = policy.looked_up([b"system", old, old + b"+"], 4300, now)
            policy.written(Snapshot(unit_key=old + b"+", visit=visit, position=4300), now)
    return begin + 10.0 * count


def placed(policy: EvictionPolicy, key: bytes, visit: Visit, now: float) -> Snapshot:
    snapshot = Snapshot(unit_key=key, visit=visit, used_at=now)
    policy.written(snapshot, now)
    return snapshot


def test_value_learns_that_first_turns_come_back_and_second_ones_do_not() -> None:
    policy = parsed("value")
    now = chats(policy, 400)
    first = placed(policy, b"first", Visit(0, 4000), now)
    second = placed(policy, b"second", Visit(1, 300), now)
    assert policy.worth(first, now) > 2 * policy.worth(second, now)


def test_value_learns_when_they_come_back() -> None:
    """After a minute: up to then a place grows dearer, afterwards it loses nearly all."""
    policy = parsed("value")
    now = chats(policy, 400)
    first = placed(policy, b"first", Visit(0, 4000), now)
    at_once, soon, late = (policy.worth(first, now + age) for age in (0.0, 45.0, 150.0))
    assert soon > at_once > 2 * late


def test_what_was_learned_fades() -> None:
    policy = parsed("value")
    now = chats(policy, 400)
    popular = policy.worth(placed(policy, b"first", Visit(0, 4000), now), now)
    now = chats(policy, 6000, begin=now, answered=10**9)
    assert policy.worth(placed(policy, b"another", Visit(0, 4000), now), now) < popular / 4


def test_a_place_that_many_ask_for_is_kept() -> None:
    """A system prompt that is asked for every few seconds, against a long leaf that is never asked for."""
    policy = parsed("value")
    system = placed(policy, b"system", Visit(0, 512), 0.0)
    system.gap, system.freed_pages = 512, 254
    for i in range(300):
        policy.looked_up([b"system", b"new %d" % i], 12_800, 3.0 * i)
        policy.written(Snapshot(unit_key=b"new %d" % i, visit=Visit(0, 12_288)), 3.0 * i)
    leaf = placed(policy, b"leaf", Visit(0, 12_288), 900.0)
    leaf.gap, leaf.freed_pages = 12_288, 446
    assert policy.worth(leaf, 903.0) < policy.worth(system, 903.0)


def test_what_goes_leaves_its_expectations_to_the_one_before() -> None:
    policy = parsed("value")
    now = chats(policy, 400)
    before = placed(policy, b"second", Visit(1, 300), now)
    leaf = placed(policy, b"first", Visit(0, 4000), now)
    alone, of_leaf = policy.worth(before, now), policy.worth(leaf, now)
    policy.dropped(leaf, before, now)
    assert policy.worth(before, now) == pytest.approx(alone + of_leaf)
    policy.dropped(placed(policy, b"third", Visit(1, 300), now), before, now)
    assert policy.worth(before, now) == pytest.approx(alone + of_leaf), "the likelier one stays"
    policy.consumed(before, now)
    assert policy.worth(before, now) == alone
    policy.dropped(leaf, None, now)  # nobody to leave it to


def test_a_spare_snapshot_is_no_place_until_somebody_resumes_there() -> None:
    """Spare ones stand everywhere: were they places, every prompt would seem to go on from one."""
    policy = parsed("value")
    keys = [b"1", b"2", b"3"]
    end = Snapshot(unit_key=keys[0], visit=policy.looked_up(keys, 96, NOW))
    policy.written(end, NOW)
    spare = Snapshot(unit_key=keys[1], position=9000, reason=Reason.SPARE, inside=True)
    policy.written(spare, NOW)
    assert spare.stay is None
    assert policy.looked_up(keys, 10_000, NOW).added == 10_000 - end.position
    policy.consumed(spare, NOW)
    assert policy.looked_up(keys, 10_000, NOW).added == 10_000 - spare.position


EVENTS = st.lists(st.tuples(st.sampled_from("lwcd"), st.integers(0, 5), st.floats(0, 500)), max_size=60)


@given(EVENTS)
def test_worth_is_finite_and_the_same_again_whatever_is_told(events: list[tuple[str, int, float]]) -> None:
    """Consumptions without a word of the writing included: a tier may publish what it never wrote here."""

    def told() -> list[float]:
        policy, now = parsed("value"), 0.0
        snapshots = [Snapshot(unit_key=b"%d" % i, used_at=0.0, visit=Visit(i, 100 << i)) for i in range(6)]
        for event, i, wait in events:
            now += wait
            if event == "l":
                policy.looked_up([b"%d" % j for j in range(i + 1)], 1000, now)
            elif event == "w":
                policy.written(snapshots[i], now)
            elif event == "c":
                policy.consumed(snapshots[i], now)
            else:
                policy.dropped(snapshots[i], snapshots[i - 1] if i else None, now)
        return [policy.worth(snapshot, now) for snapshot in snapshots]

    worths = told()
    assert all(math.isfinite(worth) and worth >= 0.0 for worth in worths)
    assert worths == told()


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
        ("value(patience=60)", "value has no parameter 'patience'. Known: none."),
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


@pytest.mark.parametrize("text", ["marconi(alpha=1000000)", "marconi(alpha=0.00001)", "marconi(alpha=0.5)"])
def test_a_full_name_is_read_as_the_same_policy(text: str) -> None:
    assert parse_eviction(text).name == text

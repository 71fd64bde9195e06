"""Life tables of places: what is counted, what follows from it, and that it stays within bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.prefix.kinds import ANY, WIDER, kind_of_end, kind_of_passed
from milepost.prefix.reuse_rates import MEMORY, NUM_SPANS, PRIOR, ReturnRates
from milepost.prefix.stays import Places, Stay, Visit

EVERY, SOME = 0, 1  # a kind, and one that belongs to it


def rates() -> ReturnRates:
    return ReturnRates([-1, EVERY, EVERY])


def begun(table: ReturnRates, kind: int, now: float) -> Stay:
    stay = Stay(kind, 100, 0)
    table.begin(stay, now)
    return stay


def told(table: ReturnRates, kind: int, count: int, *, after: float, share: float, at: float = 0.0) -> float:
    """Of `count` stays, ten seconds apart, `share` end `after` seconds; the rest never does."""
    ends: list[tuple[float, Stay]] = []
    now = at
    for i in range(count):
        now += 10.0
        table.pass_time(now)
        while ends and ends[0][0] <= now:
            end, stay = ends.pop(0)
            table.end(stay, end)
        stay = begun(table, kind, now)
        if int((i + 1) * share) > int(i * share):
            ends.append((now + after, stay))
    return now


def test_hazards_are_shares_of_those_that_reached_a_span() -> None:
    table = rates()
    told(table, SOME, 1000, after=50.0, share=0.25)
    hazards = table.hazards(SOME)
    assert hazards[3] == pytest.approx(0.25, abs=0.02), "32 to 64 seconds"
    assert all(hazard < 0.01 for hazard in hazards[:3])


def test_a_kind_that_was_never_seen_takes_the_hazards_of_the_wider_one() -> None:
    table = rates()
    assert table.hazards(2) == pytest.approx([PRIOR] * NUM_SPANS)
    told(table, SOME, 1000, after=50.0, share=0.25)
    assert table.hazards(2) == table.hazards(EVERY)


def test_open_stays_count_for_the_spans_that_they_reached_alone() -> None:
    """Young stays are no failures: what has not been watched for a minute says nothing of an hour."""
    table = rates()
    for i in range(1000):
        begun(table, SOME, i / 1000)
    table.pass_time(60.0)
    hazards = table.hazards(SOME)
    assert all(hazard < 0.01 for hazard in hazards[:4])
    assert hazards[4:] == pytest.approx([PRIOR] * (NUM_SPANS - 4))


def test_the_rate_is_the_best_that_patience_can_get() -> None:
    table = rates()
    told(table, SOME, 2000, after=50.0, share=0.5)
    # Half are asked for at 50 s: who keeps a place for the whole span waits for 64 s, or 48 when it ends.
    assert table.rate(SOME, 0.0) == pytest.approx(0.5 / 56.0, rel=0.1)
    assert table.rate(SOME, 0.0) < table.rate(SOME, 20.0)
    assert table.rate(SOME, 100.0) < table.rate(SOME, 0.0) / 5


def test_the_rate_falls_with_age_in_the_end_and_has_no_jumps() -> None:
    table = rates()
    told(table, SOME, 500, after=50.0, share=0.5)
    top = max(table.rate(SOME, age) for age in range(100))
    ages = [1.01**power for power in range(1600)]
    for younger, older in itertools.pairwise(ages):
        # One hundredth of an age is at most a fiftieth of a span.
        assert abs(table.rate(SOME, younger) - table.rate(SOME, older)) <= top / 50, f"at {older:.0f} s"
    assert table.rate(SOME, 1e9) == pytest.approx(table.rate(SOME, 1e6) / 1000)


def test_what_was_counted_fades() -> None:
    table = rates()
    now = told(table, SOME, 1000, after=50.0, share=1.0)
    assert table.hazards(SOME)[3] > 0.9
    told(table, SOME, int(6 * MEMORY), after=50.0, share=0.0, at=now)
    assert table.hazards(SOME)[3] < 0.05


def test_a_stay_ends_once() -> None:
    table = rates()
    stay = begun(table, SOME, 0.0)
    table.end(stay, 50.0)
    once = table.hazards(SOME)
    table.end(stay, 60.0)
    assert table.hazards(SOME) == once


@given(st.permutations(range(12)))
def test_the_order_of_events_in_one_moment_makes_no_difference(order: list[int]) -> None:
    table, known = rates(), rates()
    for numbers, one in ((order, table), (range(12), known)):
        stays = {i: begun(one, 1 + i % 2, 0.0) for i in numbers}
        one.pass_time(70.0)
        for i in numbers:
            if i % 3 == 0:
                one.end(stays[i], 70.0)
    assert [table.hazards(kind) for kind in range(3)] == [known.hazards(kind) for kind in range(3)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.floats(0, 1e5)), max_size=200))
def test_hazards_are_chances_and_rates_are_finite(events: list[tuple[bool, int, float]]) -> None:
    table, now = rates(), 0.0
    stays = [Stay(kind, 0, 0) for kind in range(3)]
    for begins, kind, wait in events:
        now += wait
        table.pass_time(now)
        (table.begin if begins else table.end)(stays[kind], now)
    for kind in range(3):
        assert all(0.0 <= hazard <= 1.0 for hazard in table.hazards(kind))
        assert all(0.0 <= table.rate(kind, age) <= 1.0 for age in (-1.0, 0.0, 8.0, 1e3, 1e9))


def test_places_are_found_from_the_deepest_key_on() -> None:
    places, shallow, deep = Places(), Stay(0, 16, 0), Stay(0, 48, 0)
    assert places.deepest([b"1", b"2"]) is None
    places.put(b"1", shallow)
    places.put(b"3", deep)
    assert places.deepest([b"1", b"2"]) is shallow
    assert places.deepest([b"1", b"2", b"3", b"4"]) is deep
    assert places.deepest([b"9"]) is None
    assert places.deepest([]) is None


def test_the_place_that_nobody_asked_for_longest_is_forgotten() -> None:
    places = Places(capacity=2)
    for key in (b"1", b"2"):
        places.put(key, Stay(0, 16, 0))
    assert places.deepest([b"1"]) is not None
    places.put(b"3", Stay(0, 16, 0))
    assert len(places) == 2
    assert places.get(b"2") is None
    assert places.get(b"1") is not None


def test_every_visit_has_a_kind_and_all_kinds_lead_to_the_widest() -> None:
    for turns, added in itertools.product((0, 1, 3, 4, 1000), (0, 1, 511, 512, 1 << 17, 1 << 40)):
        assert ANY < kind_of_end(Visit(turns, added)) < len(WIDER)
    assert kind_of_end(Visit(3, 700)) == kind_of_end(Visit(9, 800)) != kind_of_end(Visit(2, 700))
    assert kind_of_end(Visit(0, 511)) != kind_of_end(Visit(0, 512))
    passed = [kind_of_passed(passes) for passes in range(1, 9)]
    assert len(set(passed)) == 4
    assert passed[3:] == [passed[3]] * 5
    assert WIDER[0] == -1
    assert all(0 <= wider < kind for kind, wider in enumerate(WIDER) if kind)

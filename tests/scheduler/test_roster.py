"""Where requests stand: each in one place, and woken into its old one."""

from __future__ import annotations

import pytest

from milepost.errors import InvariantError
from milepost.memory.pool import PagePool
from milepost.memory.tables import SequencePages
from milepost.scheduler.roster import Roster
from milepost.scheduler.sequence import Sequence
from tests.scheduler.harness import SmallLayout, prompt_of
from tests.scheduler.test_followers import Pair

PROMPT = prompt_of(20)


class Places:
    """A roster with a leader that runs and others that wait."""

    def __init__(self, waiting: int = 2) -> None:
        self.pair = Pair()
        self.roster = Roster(4)
        self.pool = PagePool(40)
        self.leader = self.pair.sequence(PROMPT, 18)
        self.late = [self.pair.sequence(PROMPT) for _ in range(waiting)]
        for sequence in (self.leader, *self.late):
            self.roster.add(sequence)
        self.run(self.leader)

    def run(self, sequence: Sequence) -> None:
        assert self.roster.waiting.peek() is sequence
        sequence.pages = SequencePages(sequence.request_id, SmallLayout(), self.pool)
        self.roster.admit(sequence)

    def follow(self, sequence: Sequence) -> None:
        assert sequence.trail is not None
        assert self.roster.follow(sequence, self.pair.cache.look_up(sequence.trail, sequence.tokens))
        self.roster.check()

    def queue(self) -> list[Sequence]:
        return sorted(self.roster.waiting, key=lambda one: one.order)


def test_everybody_stands_in_one_place() -> None:
    places = Places()
    roster, (first, second) = places.roster, places.late
    assert (roster.in_prompt, roster.num_idle) == ([places.leader], 2)
    places.follow(first)
    roster.load(second, 7)
    roster.check()
    assert (places.queue(), roster.num_idle) == ([], 2)
    assert roster.loading == {7: [second]}
    roster.loaded([7, 8])
    assert places.queue() == [second]
    places.leader.num_computed = 18
    roster.passed(places.leader)
    assert places.queue() == [first, second], "in the order in which they came"
    assert all(roster.is_alive(one) for one in (places.leader, first, second))
    roster.check()


def test_a_preempted_leader_wakes_who_followed_and_stands_before_them() -> None:
    places = Places()
    places.follow(places.late[0])
    places.leader.pages = None
    places.roster.preempt(places.leader)
    assert places.queue() == [places.leader, *places.late]
    assert (places.roster.running, len(places.roster.followers)) == ([], 0)
    places.roster.check()


def test_a_retired_leader_wakes_who_followed() -> None:
    places = Places(1)
    places.follow(places.late[0])
    places.roster.retire(places.leader)
    places.leader.pages = None
    assert places.queue() == places.late
    assert not places.roster.is_alive(places.leader)
    places.roster.check()


def test_a_request_ends_wherever_it_stands() -> None:
    places = Places(3)
    follows, loads, waits = places.late
    places.follow(follows)
    places.roster.load(loads, 3)
    for sequence in (follows, loads, waits):
        places.roster.retire(sequence)
        places.roster.check()
    assert places.roster.num_idle == 0
    assert places.roster.loading == {3: []}
    places.roster.loaded([3])
    assert places.queue() == []


def test_another_request_may_have_the_id_of_one_that_ended() -> None:
    places = Places(1)
    (old,) = places.late
    places.roster.retire(old)
    new = Sequence(old.request, arrival=9, length_limit=30, stop_token_ids=())
    places.roster.add(new)
    assert (places.roster.is_alive(old), places.roster.is_alive(new)) == (False, True)


def test_one_with_the_queue_s_place_and_pages_is_found() -> None:
    places = Places(1)
    places.late[0].pages = SequencePages("late", SmallLayout(), places.pool)
    with pytest.raises(InvariantError, match="waits with pages"):
        places.roster.check()

"""What is remembered of what is gone: evicted snapshots and KV, and the salts of recent prompts."""

from __future__ import annotations

import pytest

from milepost.prefix.ghosts import Ghosts
from milepost.prefix.keys import KeyHasher
from milepost.prefix.nodes import Node
from milepost.prefix.salts import SaltMemory
from tests.prefix.shelf import SECRET

ROOT = Node(b"", None, 0, ())
PATH = [b"one", b"two", b"three", b"four"]


def unit(number: int) -> Node:
    """The node at the end of unit `number` of the path, of 4 tokens each."""
    return Node(PATH[number - 1], ROOT, 4 * number, ())


def test_the_deepest_evicted_state_and_kv_of_a_path_are_told() -> None:
    ghosts = Ghosts(4)
    assert (ghosts.deepest_state(PATH), ghosts.deepest_kv(PATH)) == (0, 0)
    ghosts.state_evicted(unit(1))
    ghosts.state_evicted(unit(2))
    ghosts.kv_evicted(unit(3))
    assert (ghosts.deepest_state(PATH), ghosts.deepest_kv(PATH)) == (8, 12)
    assert (ghosts.deepest_state(PATH[:1]), ghosts.deepest_kv(PATH[:2])) == (4, 0)
    assert ghosts.deepest_state([b"other", *PATH[2:]]) == 0
    ghosts.clear()
    assert (ghosts.deepest_state(PATH), ghosts.deepest_kv(PATH)) == (0, 0)


def test_a_snapshot_between_units_is_remembered_with_the_unit_before_it() -> None:
    ghosts = Ghosts(4)
    ghosts.state_evicted(Node(b"tail", unit(2), 11, ()))
    assert ghosts.deepest_state(PATH) == 11
    ghosts.state_evicted(Node(b"shorter tail", unit(2), 9, ()))
    assert ghosts.deepest_state(PATH) == 11
    ghosts.state_evicted(Node(b"below the first unit", ROOT, 3, ()))
    assert ghosts.deepest_state([b"other"]) == 0
    ghosts.kv_evicted(Node(b"tail", unit(3), 13, ()))
    assert ghosts.deepest_kv(PATH) == 0


def test_only_what_lies_behind_a_place_is_told_when_that_is_asked() -> None:
    ghosts = Ghosts(4)
    ghosts.state_evicted(Node(b"tail", unit(2), 11, ()))
    ghosts.kv_evicted(unit(3))
    assert [ghosts.deepest_state(PATH, above) for above in (0, 8, 9, 10, 11, 12)] == [11, 11, 11, 11, 0, 0]
    assert [ghosts.deepest_kv(PATH, above) for above in (0, 8, 11, 12, 16, 99)] == [12, 12, 12, 0, 0, 0]


def test_the_oldest_is_forgotten_when_there_are_too_many() -> None:
    ghosts = Ghosts(4, capacity=2)
    for number in (1, 2, 1, 3):  # the first is younger than the second, the second time
        ghosts.state_evicted(unit(number))
        ghosts.kv_evicted(unit(number))
    assert ghosts.deepest_state(PATH[:2]) == ghosts.deepest_kv(PATH[:2]) == 4
    assert ghosts.deepest_state(PATH) == ghosts.deepest_kv(PATH) == 12


@pytest.mark.parametrize(("num_pages", "remembered"), [(2, 4096), (400, 12_800), (1_000_000, 65_536)])
def test_a_small_cache_remembers_little(num_pages: int, remembered: int) -> None:
    ghosts = Ghosts.of_pages(4, num_pages)
    for number in range(remembered + 1):
        ghosts.state_evicted(Node(b"%d" % number, unit(1), 8, ()))
    keys = [b"0", b"1", b"%d" % remembered]
    assert [ghosts.deepest_state([b"", key]) for key in keys] == [0, 8, 8]


def salts() -> SaltMemory:
    return SaltMemory(KeyHasher(4, SECRET))


def test_a_beginning_is_known_under_another_salt_only_if_it_came_under_one() -> None:
    memory = salts()
    assert not memory.seen_elsewhere("a", (1, 2, 3, 4, 5))
    assert not memory.seen_elsewhere("a", (1, 2, 3, 4, 6))
    assert memory.seen_elsewhere("b", (1, 2, 3, 4))
    assert memory.seen_elsewhere("a", (1, 2, 3, 4)), "now two salts have it"
    assert memory.seen_elsewhere("b", (1, 2, 3, 4))
    assert not memory.seen_elsewhere("b", (1, 2, 3, 5))


def test_less_than_a_unit_is_never_remembered() -> None:
    memory = salts()
    assert not memory.seen_elsewhere("a", (1, 2, 3))
    assert not memory.seen_elsewhere("b", (1, 2, 3))


def test_salts_are_forgotten_at_once_or_the_oldest_first() -> None:
    memory = salts()
    memory.seen_elsewhere("a", (0, 0, 0, 0))
    memory.clear()
    assert not memory.seen_elsewhere("b", (0, 0, 0, 0))
    for number in range(1 << 14):
        memory.seen_elsewhere("a", (1, 2, 3, number))
    assert not memory.seen_elsewhere("a", (0, 0, 0, 0)), "16,384 others came since"
    assert memory.seen_elsewhere("b", (1, 2, 3, (1 << 14) - 1))


def test_no_salt_passes_for_several() -> None:
    memory = salts()
    memory.seen_elsewhere("a", (1, 2, 3, 4))
    memory.seen_elsewhere("b", (1, 2, 3, 4))
    assert memory.seen_elsewhere("\0many", (1, 2, 3, 4))

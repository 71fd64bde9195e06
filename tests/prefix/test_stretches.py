"""Short cuts over plain nodes lead where a walk from node to node leads, whatever came and went."""

from __future__ import annotations

import random

import pytest

from milepost.errors import InvariantError
from milepost.prefix.nodes import Node, Snapshot
from milepost.prefix.stretches import first_of, is_plain, top_of
from tests.prefix.shelf import Shelf

LENGTH = 60


def walked_top(node: Node) -> Node:
    """What `top_of` says, from node to node."""
    assert node.parent is not None
    step = node.parent
    while is_plain(step):
        assert step.parent is not None
        step = step.parent
    return step


def walked_measures(snapshot: Snapshot, block_size: int) -> tuple[int, int]:
    """What `PrefixIndex.measure` writes, from node to node."""
    before = snapshot.before
    while before is not None and not before.stands:
        before = before.before
    start = 0 if before is None else before.position
    step = node = snapshot.node
    alone = node.is_leaf and not node.holds
    alone_from = node.position
    while step.parent is not None:
        step = step.parent
        if alone:
            alone_from = step.position
            alone = not step.holds and step.num_units + len(step.tails or ()) == 1
        if step.snapshot is not None or step.position <= start:
            break
    freed = len(snapshot.pages) + (node.position - alone_from) // block_size
    return node.position - max(start, step.position), freed


@pytest.mark.parametrize("seed", range(4))
def test_short_cuts_agree_with_walks_through_random_lives(seed: int) -> None:
    draw = random.Random(seed)
    shelf = Shelf(num_pages=1500, block_size=4, match_unit=8 if seed % 2 else 4)
    index = shelf.index
    texts: list[list[int]] = [[draw.randrange(1 << 20) for _ in range(LENGTH)]]
    held: list[Node] = []
    for _ in range(100):
        action = draw.random()
        if action < 0.5:  # a prompt that parts from an earlier one, with snapshots at some places
            known = draw.choice(texts)
            parting = draw.randrange(len(known) + 1)
            text = known[:parting] + [draw.randrange(1 << 20) for _ in range(draw.randrange(4, LENGTH))]
            texts.append(text)
            shelf.put(text, *sorted(draw.sample(range(1, len(text) + 1), draw.randrange(3))))
        elif action < 0.65:
            node = shelf.find(draw.choice(texts)).matched
            index.hold(node)
            held.append(node)
        elif action < 0.75 and held:
            index.unhold(held.pop(draw.randrange(len(held))))
        elif action < 0.95 and index.num_snapshots:
            index.drop_snapshot(draw.choice(list(index.snapshots)))
        else:
            index.drop_bare()
        for snapshot in index.snapshots:
            if draw.random() < 0.3:  # what nobody passes stays as it is for a while
                expected = walked_measures(snapshot, shelf.block_size)
                index.measure(snapshot)
                assert (snapshot.gap, snapshot.freed_pages) == expected
                assert top_of(snapshot.node) is walked_top(snapshot.node)
                assert first_of(snapshot.node).parent is top_of(snapshot.node)
        shelf.check()


def test_a_short_cut_over_a_snapshot_is_found_by_the_check() -> None:
    shelf = Shelf()
    text = list(range(40))
    shelf.put(text, 20, 40)
    node = shelf.snapshot(text).node
    assert top_of(node).position == 20
    assert node.stretch is not None
    node.stretch.top = shelf.index.root
    with pytest.raises(InvariantError, match="short cut"):
        shelf.check()

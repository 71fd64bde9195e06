"""Short cuts over nodes on which nothing stands and from which nothing parts.

A path of a hundred thousand tokens has thousands of nodes, and most of them say nothing to somebody who
looks for a snapshot or for the place where two prompts part: they are *plain*. Nodes of one path with
only plain ones between them share a stretch, which names the node above them all:

    top ─── first ─── plain ─── plain ─── node
             └────── all of one stretch ───┘

A plain node that becomes something else parts its stretch at once. What becomes plain is only joined when
somebody passes, so a stretch may be shorter than it could be, and never longer.
"""

from __future__ import annotations

from milepost.prefix.nodes import Node, Stretch

__all__ = ["first_of", "is_plain", "join", "part", "top_of"]


def is_plain(node: Node) -> bool:
    """Whether no snapshot stands at `node` and just one unit hangs below; never true of the root."""
    return node.num_units == 1 and node.snapshot is None and node.tails is None and node.parent is not None


def join(node: Node, parent: Node) -> Stretch:
    """The stretch of a unit that is about to hang below `parent`."""
    alone = parent.num_units == 0 and parent.tails is None and parent.snapshot is None
    if alone and parent.stretch is not None:
        return parent.stretch
    return Stretch(parent, node)


def part(node: Node) -> None:
    """`node` is plain and is so no longer: those below keep the stretch, which begins here now."""
    below = node.stretch
    assert below is not None  # it is not the root
    above = Stretch(below.top, below.first)
    step = node
    while step.stretch is below and step.parent is not None:
        step.stretch = above
        step = step.parent
    below.top, below.first = node, None


def top_of(node: Node) -> Node:
    """The deepest node above `node`, which is not the root, that is not plain."""
    stretch = node.stretch
    assert stretch is not None  # it is not the root
    top = stretch.top
    while top.num_units == 1 and top.snapshot is None and top.tails is None and top.parent is not None:
        above, step = top.stretch, top
        assert above is not None  # a plain node is not the root
        while step.stretch is above and step.parent is not None:
            step.stretch = stretch
            step = step.parent
        top = stretch.top = above.top
        stretch.first = above.first
    return top


def first_of(node: Node) -> Node:
    """The uppermost node of the stretch of `node`, which is not the root; right below its top."""
    stretch = node.stretch
    assert stretch is not None  # it is not the root
    if stretch.first is None:
        step = node
        while step.parent is not None and step.parent is not stretch.top:
            step = step.parent
        stretch.first = step
    return stretch.first

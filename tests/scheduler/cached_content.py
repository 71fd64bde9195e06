"""Proof that everything in a prefix cache is what its key says, without asking the cache.

All tokens that any request ever had are known here, and so is the key of each of their prefixes. A
key in the index must be one of them, and the pages that it leads to must hold its tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from milepost.prefix.cache import PrefixCache
from milepost.prefix.keys import KeyChain, KeyHasher
from milepost.prefix.nodes import Node
from milepost.testing.tag_executor import TagExecutor
from milepost.testing.tag_memory import StateTag
from milepost.testing.tags import extend_tag, root_tag


class Known(NamedTuple):
    """A prefix: the tags of all its own prefixes by length (more may follow), and its length."""

    tags: list[int]
    position: int


class Text:
    """The tokens of one request so far."""

    def __init__(self, salt: str, chain: KeyChain) -> None:
        self.tokens: list[int] = []
        self.tags = [root_tag(salt)]
        self.chain = chain


class CachedContent:
    """See the module's text.

    Args:
        cache: what is checked; its secret must be known.
        executor: whose memory the pages are in.
        block_size: tokens of a page.
    """

    def __init__(self, cache: PrefixCache, executor: TagExecutor, block_size: int) -> None:
        assert cache.config.secret is not None
        self._cache = cache
        self._executor = executor
        self._block_size = block_size
        self._hasher = KeyHasher(cache.config.match_unit, cache.config.secret)
        self._known: dict[bytes, Known] = {}
        self._texts: dict[str, Text] = {}

    def learn(self, request_id: str, tokens: Sequence[int], salt: str) -> None:
        """A request with this prompt exists."""
        self._texts[request_id] = Text(salt, self._hasher.chain(salt))
        self.grow(request_id, tokens)

    def grow(self, request_id: str, tokens: Sequence[int]) -> None:
        """It has these tokens too now."""
        text = self._texts[request_id]
        for token_id in tokens:
            text.tokens.append(token_id)
            text.tags.append(extend_tag(text.tags[-1], token_id))
            position = len(text.tokens)
            key = text.chain.key_at(text.tokens, position)
            known = self._known.setdefault(key, Known(text.tags, position))
            assert (known.position, known.tags[position]) == (position, text.tags[position])

    def check(self) -> None:
        """Each key is a known prefix's, hangs below that prefix, and leads to its KV and state."""
        nodes = self._cache.index._nodes
        for key, node in nodes.items():
            known = self._known.get(key)
            assert known is not None, f"{node} is no prefix of anything that any request had"
            assert known.position == node.position
            self._check_parent(node, known)
            self._check_kv(node, known)
            if node.snapshot is not None:
                self._check_state(node.snapshot.pages, known)
        standing = {node.key for node in nodes.values() if node.snapshot is not None}
        assert {snapshot.node.key for snapshot in self._cache.index.snapshots} == standing

    def check_idle(self, cached: set[int]) -> None:
        """Nothing is held, and the pages that are cached are those that keys lead to."""
        nodes = self._cache.index._nodes.values()
        snapshots = list(self._cache.index.snapshots)
        assert not any(node.holds for node in nodes)
        assert not any(snapshot.pins for snapshot in snapshots)
        reachable = {page for node in nodes for page in node.pages}
        states = [page for snapshot in snapshots for page in snapshot.pages]
        assert len(states) == len(set(states))
        assert not reachable & set(states)
        assert reachable | set(states) == cached

    def _check_parent(self, node: Node, known: Known) -> None:
        parent = node.parent
        assert parent is not None
        if parent.position:
            above = self._known[parent.key]
            assert above.tags[parent.position] == known.tags[parent.position], f"{node} hangs below {parent}"

    def _check_kv(self, node: Node, known: Known) -> None:
        assert node.parent is not None
        size, first = self._block_size, node.parent.position // self._block_size
        assert len(node.pages) == -(-node.position // size) - first
        for index, page in enumerate(node.pages):
            start = (first + index) * size
            end = min(start + size, node.position)
            block = self._executor.memory.pages[page]
            assert isinstance(block, list), f"{node}: page {page} {block}"
            assert block[: end - start] == known.tags[start + 1 : end + 1], f"{node}: page {page}"

    def _check_state(self, pages: Sequence[int], known: Known) -> None:
        for logical, page in enumerate(pages):
            wanted = StateTag(known.tags[known.position], known.position, logical)
            assert self._executor.memory.pages[page] == wanted

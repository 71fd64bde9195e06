"""Proof that everything in a prefix cache is what its key says, without asking the cache.

All tokens that any request ever had are known here, and so is the key of each of their prefixes. A
key in the index must be one of them, and the pages that it leads to must hold its tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from milepost.memory.page_states import PageState
from milepost.memory.pool import PagePool
from milepost.prefix.cache import PrefixCache
from milepost.prefix.index import PrefixIndex
from milepost.prefix.keys import Key, KeyChain, KeyHasher
from milepost.prefix.nodes import Node
from milepost.testing.tag_executor import TagExecutor
from milepost.testing.tag_memory import Page, StateTag
from milepost.testing.tag_tiers import TagTiers
from milepost.testing.tags import extend_tag, root_tag
from milepost.types import Tier, Transfer


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
        tiers: whose pages the other tiers' indexes name.
    """

    def __init__(
        self, cache: PrefixCache, executor: TagExecutor, block_size: int, tiers: TagTiers | None = None
    ) -> None:
        assert cache.config.secret is not None
        self._cache = cache
        self._executor = executor
        self._tiers = tiers
        self._block_size = block_size
        self._hasher = KeyHasher(cache.config.match_unit, cache.config.secret)
        self._known: dict[Key, Known] = {}
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

    def check(self, planned: Sequence[Transfer] = ()) -> None:
        """Each key, in every tier, is a known prefix's and leads to its KV and state.

        What `planned` transfers bring to the host is in its index and not there yet.
        """
        self._check_index(self._cache.index, self._executor.memory.pages, set())
        tiers = self._cache.tiers
        if tiers is None or self._tiers is None:
            return
        coming = {
            page for sent in (*tiers._outbox, *planned) for _, page in sent.pages if sent.target is Tier.HOST
        }
        self._check_index(tiers._host.index, self._tiers.pages(Tier.HOST), coming)
        if tiers._disk is not None:
            self._check_index(tiers._disk.index, self._tiers.pages(Tier.DISK), set())

    def check_idle(self, pool: PagePool) -> None:
        """Nothing is held, and the pages that are cached are those that keys lead to, in every tier."""
        self._check_idle_index(self._cache.index, pool)
        tiers = self._cache.tiers
        for space in () if tiers is None else (tiers._host, tiers._disk):
            if space is not None:
                self._check_idle_index(space.index, space.pool)

    def _check_index(self, index: PrefixIndex, pages: Sequence[Page], coming: set[int]) -> None:
        for key, node in index._nodes.items():
            known = self._known.get(key)
            assert known is not None, f"{node} is no prefix of anything that any request had"
            assert known.position == node.position
            self._check_parent(node, known)
            if not coming.intersection(node.pages):
                self._check_kv(node, known, pages)
            if node.snapshot is not None and not coming.intersection(node.snapshot.pages):
                self._check_state(node.snapshot.pages, known, pages)
        standing = {node.key for node in index._nodes.values() if node.snapshot is not None}
        assert {snapshot.node.key for snapshot in index.snapshots} == standing

    def _check_idle_index(self, index: PrefixIndex, pool: PagePool) -> None:
        counts = pool.counts()
        assert counts.free + counts.cached + counts.tainted == pool.num_usable
        assert pool.num_evictable == counts.cached
        assert not any(node.holds for node in index._nodes.values())
        assert not any(snapshot.pins for snapshot in index.snapshots)
        reachable = {page for node in index._nodes.values() for page in node.pages}
        states = [page for snapshot in index.snapshots for page in snapshot.pages]
        assert len(states) == len(set(states))
        assert not reachable & set(states)
        cached = {page for page in range(pool.num_pages) if pool.state_of(page) is PageState.CACHED}
        assert reachable | set(states) == cached

    def _check_parent(self, node: Node, known: Known) -> None:
        parent = node.parent
        assert parent is not None
        if parent.position:
            above = self._known[parent.key]
            assert above.tags[parent.position] == known.tags[parent.position], f"{node} hangs below {parent}"

    def _check_kv(self, node: Node, known: Known, pages: Sequence[Page]) -> None:
        assert node.parent is not None
        size, first = self._block_size, node.parent.position // self._block_size
        assert len(node.pages) == -(-node.position // size) - first
        for index, page in enumerate(node.pages):
            start = (first + index) * size
            end = min(start + size, node.position)
            block = pages[page]
            assert isinstance(block, list), f"{node}: page {page} {block}"
            assert block[: end - start] == known.tags[start + 1 : end + 1], f"{node}: page {page}"

    def _check_state(self, table: Sequence[int], known: Known, pages: Sequence[Page]) -> None:
        for logical, page in enumerate(table):
            wanted = StateTag(known.tags[known.position], known.position, logical)
            assert pages[page] == wanted, f"{pages[page]}, not {wanted}"

"""The memory of the tag executor: pages that remember what they stand for.

A page holds one of

    a list of tags      a KV block: slot k holds the tag of all tokens up to the block's k-th
    a `StateTag`        one logical page of the state after exactly so many tokens
    an `Unreadable`     nothing that anybody may read, and why

A block is written from slot to slot; writing a slot forgets those behind it, which are left from
whoever had the page before. A failed row leaves NaN behind what it had written before, which makes
the page unfit for any row although what is cached of it is still right: attention may read there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from milepost.errors import InvariantError
from milepost.memory.layout import DUMMY_PAGE

__all__ = ["Page", "StateTag", "TagMemory", "Unreadable", "copy_of"]

NAN_SLOT = -1  # behind the last good slot of a block; no tag is negative

PagesNow = Callable[[], Iterable[int]]


class Unreadable(enum.Enum):
    """Why nobody may read a page."""

    POISON = "was never written"
    NAN = "was never scrubbed"  # what something that failed left; a row must not even name it
    LOADING = "is being written by a transfer"


class StateTag(NamedTuple):
    """What one logical page of a state stands for: all tokens so far, how many, and which page."""

    tag: int
    position: int
    logical: int


Page = Unreadable | StateTag | list[int]


def copy_of(content: Page) -> Page:
    """The same content, for another page."""
    return list(content) if isinstance(content, list) else content


class TagMemory:
    """The arena; raises `InvariantError` at a use that no page may be put to.

    Args:
        num_pages: pages, the dummy page included.
        free_pages: tells which pages nobody owns; poisoned by `begin`. None: not looked at.
        cached_pages: tells which pages the prefix cache names; nobody may change what they hold.

    Attributes:
        pages: content by page number.
    """

    def __init__(self, num_pages: int, free_pages: PagesNow | None, cached_pages: PagesNow | None) -> None:
        self.pages: list[Page] = [Unreadable.POISON] * num_pages
        self._free_pages = free_pages
        self._cached_pages = cached_pages
        self._free: frozenset[int] = frozenset()
        self._cached: frozenset[int] = frozenset()

    def begin(self) -> None:
        """A step begins: ask who owns what, and poison what is free."""
        self._free = frozenset(self._free_pages()) if self._free_pages is not None else frozenset()
        self._cached = frozenset(self._cached_pages()) if self._cached_pages is not None else frozenset()
        for page in self._free:
            if self.pages[page] is Unreadable.LOADING:
                raise InvariantError(f"page {page} is free while a transfer writes it")
            # What something that failed left stays dangerous until it is scrubbed.
            self.pages[page] = Unreadable.NAN if _ruined(self.pages[page]) else Unreadable.POISON

    def require_usable(self, page: int, who: str) -> None:
        """`page` exists, has an owner, and holds nothing that would spread."""
        self.require_exists(page, who)
        if page in self._free:
            raise InvariantError(f"{who} names page {page}, which is free")
        if _ruined(self.pages[page]):
            raise InvariantError(f"{who} got page {page}, which {Unreadable.NAN.value}")
        if self.pages[page] is Unreadable.LOADING:
            raise InvariantError(f"{who} got page {page}, which {Unreadable.LOADING.value}")

    def require_exists(self, page: int, who: str) -> None:
        """`page` is one that an owner can have."""
        if not DUMMY_PAGE < page < len(self.pages):
            raise InvariantError(f"{who} names page {page}")

    def require_changeable(self, page: int, who: str) -> None:
        """`page` has an owner, nobody relies on what it holds, and no transfer writes it."""
        self.require_exists(page, who)
        if page in self._free:
            raise InvariantError(f"{who} names page {page}, which is free")
        if page in self._cached:
            raise InvariantError(f"{who} changes page {page}, which is cached")
        if self.pages[page] is Unreadable.LOADING:
            raise InvariantError(f"{who} changes page {page}, which {Unreadable.LOADING.value}")

    def read(self, page: int, who: str) -> Page:
        """What `page` holds, if that is anything."""
        self.require_exists(page, who)
        content = self.pages[page]
        if isinstance(content, Unreadable):
            raise InvariantError(f"{who} reads page {page}, which {content.value}")
        return content

    def scrub(self, pages: Iterable[int]) -> None:
        """Fill `pages` with zeros, which nobody may read as content either."""
        for page in pages:
            if page == DUMMY_PAGE:
                raise InvariantError("the dummy page is scrubbed")
            # A page that was tainted may be free or have its next owner by now.
            self.require_exists(page, "a scrub")
            if page in self._cached or self.pages[page] is Unreadable.LOADING:
                raise InvariantError(f"a scrub changes page {page}, which is cached or loading")
            self.pages[page] = Unreadable.POISON

    def scrub_tails(self, tails: Iterable[tuple[int, int]]) -> None:
        """Fill blocks with zeros behind their first slots; what is cached lies before."""
        for page, kept in tails:
            block = self.pages[page]
            if isinstance(block, list):
                del block[kept:]
            elif page not in self._free:
                raise InvariantError(f"the tail of page {page} is scrubbed, which is no block")
            else:
                self.pages[page] = Unreadable.POISON

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, (source, target) each."""
        sources, targets = {source for source, _ in pairs}, [target for _, target in pairs]
        if len(set(targets)) != len(targets) or sources & set(targets):
            raise InvariantError(f"a copy's target is another's source or target: {list(pairs)}")
        for source, target in pairs:
            content = self.read(source, "a copy")
            self.require_changeable(target, "a copy")
            self.pages[target] = copy_of(content)

    def write_slot(self, page: int, slot: int, tag: int, who: str) -> None:
        """Write one token's KV; what is cached may only be added to."""
        block = self.pages[page]
        if not isinstance(block, list):
            self.require_changeable(page, who)
            block = self.pages[page] = []
        if slot > len(block):
            raise InvariantError(f"{who} writes slot {slot} of page {page}, which holds {len(block)}")
        if slot < len(block):
            self.require_changeable(page, who)
            del block[slot:]
        block.append(tag)

    def write_state(self, pages: Iterable[int], tag: int, position: int, who: str) -> None:
        """Write the state after `position` tokens, a live one or a snapshot."""
        for logical, page in enumerate(pages):
            self.require_changeable(page, who)
            self.pages[page] = StateTag(tag, position, logical)

    def ruin(self, pages: Iterable[int], who: str) -> None:
        """Fill `pages` with NaN."""
        for page in pages:
            self.require_changeable(page, who)
            self.pages[page] = Unreadable.NAN

    def ruin_block(self, page: int, slot: int, who: str) -> None:
        """Fill a block with NaN from `slot` on, or altogether when nobody relies on what is before."""
        block = self.pages[page]
        if page in self._cached and isinstance(block, list) and len(block) <= slot:
            block.append(NAN_SLOT)
        else:
            self.ruin([page], who)


def _ruined(content: Page) -> bool:
    return content is Unreadable.NAN or (isinstance(content, list) and content[-1:] == [NAN_SLOT])

"""The page pool: the one place where a page's life is decided; `page_states` draws it.

An owner holds its pages through a `Lease`: one life of one owner. A preempted request that comes
back gets a new lease with a new generation number, so pages of its earlier life can't pass for
pages of this one. While a step that writes any page of a lease is running, none can be released.

Owned and cached pages have two counts. *References* say how many entries of the prefix index name
the page; an owned page with references becomes cached when its owner lets it go. *Holds* say how
often those entries are in use, by running requests and by copies that have not run; a cached page
without holds can be evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from milepost.errors import ConfigError, InvariantError
from milepost.memory.layout import DUMMY_PAGE
from milepost.memory.page_states import TRANSITIONS, PageCounts, PageState

__all__ = ["Lease", "PagePool"]

# As plain numbers: comparing with an enum's member costs a look-up for each page.
_FREE, _OWNED, _CACHED = int(PageState.FREE), int(PageState.OWNED), int(PageState.CACHED)
_SHARED = (_OWNED, _CACHED)
_LEASED = (PageState.RESERVED, PageState.WRITING, PageState.OWNED, PageState.RECEIVING)
_RELEASABLE = (PageState.RESERVED, PageState.OWNED)


class Lease:
    """One life of one owner of pages: opened, filled by `reserve`, emptied by `release`, closed.

    Attributes:
        owner: who it is, for messages.
        generation: unique among all leases that the pool ever opened; written on each page.
        num_pages: pages that the lease holds now.
        in_step: whether a step that may write the lease's pages is running.
    """

    __slots__ = ("generation", "in_step", "num_pages", "owner")

    def __init__(self, owner: str, generation: int) -> None:
        self.owner = owner
        self.generation = generation
        self.num_pages = 0
        self.in_step = False

    def __repr__(self) -> str:
        return f"Lease({self.owner!r}, generation {self.generation}, {self.num_pages} pages)"


class PagePool:
    """`num_pages` pages, numbered from 0; page 0 is the dummy page.

    Every operation costs time in proportion to the pages it names, never to the pool. A move that
    `TRANSITIONS` does not know, or a page of somebody else, raises `InvariantError`: a bug in
    Milepost, after which the pool must not be used.

    Raises:
        ConfigError: fewer than two pages, the dummy page and one to give.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise ConfigError(
                f"The page pool needs at least 2 pages, one of them the dummy page. Given: {num_pages}. "
                "Give the engine more memory."
            )
        self._states = bytearray([PageState.FREE]) * num_pages
        self._states[DUMMY_PAGE] = PageState.DUMMY
        # Lists, because nothing of Python's is read faster one by one.
        self._generations = [0] * num_pages
        self._references = [0] * num_pages
        self._holds = [0] * num_pages
        self._num_cached_held = 0
        # A stack: the page that was freed last is given first, while it is warm in the caches.
        self._free = list(range(num_pages - 1, DUMMY_PAGE, -1))
        self._tainted: list[int] = []
        self._counts = [0] * len(PageState)
        self._counts[PageState.DUMMY] = 1
        self._counts[PageState.FREE] = num_pages - 1
        self._leases: dict[int, Lease] = {}
        self._last_generation = 0

    @property
    def num_pages(self) -> int:
        """All pages, the dummy page included."""
        return len(self._states)

    @property
    def num_usable(self) -> int:
        """Pages that owners can hold: all but the dummy page."""
        return len(self._states) - 1

    @property
    def num_free(self) -> int:
        """Pages that can be reserved now."""
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        """Cached pages that no running request needs."""
        return self._counts[PageState.CACHED] - self._num_cached_held

    def counts(self) -> PageCounts:
        """A snapshot of how many pages are in each state."""
        return PageCounts(
            free=self._counts[PageState.FREE],
            reserved=self._counts[PageState.RESERVED],
            writing=self._counts[PageState.WRITING],
            owned=self._counts[PageState.OWNED],
            tainted=self._counts[PageState.TAINTED],
            cached=self._counts[PageState.CACHED],
            receiving=self._counts[PageState.RECEIVING],
            quarantined=self._counts[PageState.QUARANTINED],
            total=self.num_pages,
        )

    def state_of(self, page: int) -> PageState:
        """The state that `page` is in."""
        return PageState(self._states[page])

    def free_pages(self) -> Sequence[int]:
        """A copy of the free list, for tests that poison what nobody owns."""
        return tuple(self._free)

    def open(self, owner: str) -> Lease:
        """Start a life of `owner`, with a generation number of its own and no pages."""
        self._last_generation += 1
        lease = Lease(owner, self._last_generation)
        self._leases[lease.generation] = lease
        return lease

    def reserve(self, lease: Lease, count: int) -> tuple[int, ...] | None:
        """Move `count` free pages to `lease`: all of them, or None and nothing has changed."""
        self._require_open(lease)
        if count < 0:
            raise InvariantError(f"{lease!r} reserves {count} pages")
        if count > len(self._free):
            return None
        if count == 0:
            return ()
        pages = tuple(self._free[: -count - 1 : -1])
        del self._free[-count:]
        self._move(pages, PageState.RESERVED)
        generation, generations = lease.generation, self._generations
        for page in pages:
            generations[page] = generation
        lease.num_pages += count
        return pages

    def reserve_state(self, lease: Lease, count: int) -> tuple[int, ...] | None:
        """As `reserve`, for a state: pools that part states from KV give other pages."""
        return self.reserve(lease, count)

    def spare(self, lease: Lease) -> int:  # noqa: ARG002  # for pools that give pages by owner
        """Pages that `reserve` gives this lease although they don't count as free: none."""
        return 0

    def ensure_free(self, count: int) -> None:
        """Make more pages unless `count` are free; doubles the pool, so that it costs little each."""
        missing = count - len(self._free)
        if missing <= 0:
            return
        first = len(self._states)
        added = max(missing, first)
        self._states += bytes([PageState.FREE]) * added
        for column in (self._generations, self._references, self._holds):
            column.extend(bytes(added))
        self._free[:0] = range(first + added - 1, first - 1, -1)
        self._counts[PageState.FREE] += added

    def begin_step(self, lease: Lease, first_written: Sequence[int]) -> None:
        """A step that may write the lease's pages is about to run.

        Args:
            lease: whose pages are written.
            first_written: its reserved pages, which this step writes for the first time.
        """
        self._require_open(lease)
        if lease.in_step:
            raise InvariantError(f"{lease!r} is already part of a running step")
        if first_written:  # most steps write no new page
            self._move(self._verified(lease, first_written), PageState.WRITING)
        lease.in_step = True

    def end_step(self, lease: Lease, first_written: Sequence[int]) -> None:
        """The step of `begin_step` has come back: what it wrote is owned."""
        if not lease.in_step:
            raise InvariantError(f"{lease!r} is not part of a running step")
        if first_written:
            self._move(self._verified(lease, first_written), PageState.OWNED)
        lease.in_step = False

    def release(self, lease: Lease, pages: Iterable[int], *, tainted: bool = False) -> None:
        """Give pages back. Those with references stay cached, whatever else is said.

        Args:
            lease: who holds them; no step that writes them may be running.
            pages: reserved or owned pages of the lease.
            tainted: the owner failed, so that owned pages must be scrubbed before they are read.
                What was published of them before is not in doubt: only completed steps publish. What
                the failed step has written behind it, in the same page, is the caller's to scrub.
        """
        if lease.in_step:
            raise InvariantError(f"{lease!r} can't release pages that a running step may write")
        verified = self._verified(lease, pages)
        self._require_state(verified, *_RELEASABLE)
        references = self._references
        named = [page for page in verified if references[page]]
        unnamed = [page for page in verified if not references[page]] if named else verified
        if named:
            self._move(named, PageState.CACHED)
            self._num_cached_held += sum(map(bool, map(self._holds.__getitem__, named)))
        # A reserved page was never written, so there is nothing to scrub.
        clean = unnamed
        if tainted:
            self._taint([page for page in unnamed if self._states[page] == _OWNED])
            clean = [page for page in unnamed if self._states[page] == PageState.RESERVED]
        self._move(clean, PageState.FREE)
        self._free.extend(clean)
        lease.num_pages -= len(verified)

    def begin_receive(self, lease: Lease, pages: Iterable[int]) -> None:
        """A transfer is about to write these reserved pages of `lease`, and nobody else."""
        self._require_open(lease)
        self._move(self._verified(lease, pages), PageState.RECEIVING)

    def end_receive(self, lease: Lease, pages: Iterable[int], *, failed: bool = False) -> None:
        """The transfer has ended: the pages are owned, or tainted and no longer the lease's if it failed."""
        verified = self._verified(lease, pages)
        self._require_state(verified, PageState.RECEIVING)
        if not failed:
            self._move(verified, PageState.OWNED)
            return
        self._taint(verified)
        lease.num_pages -= len(verified)

    def quarantine(self, lease: Lease, pages: Iterable[int]) -> None:
        """Give up receiving pages whose transfer may still write them; `end_quarantine` follows its end."""
        verified = self._verified(lease, pages)
        self._move(verified, PageState.QUARANTINED)
        lease.num_pages -= len(verified)

    def end_quarantine(self, pages: Iterable[int]) -> None:
        """The transfer that wrote these quarantined pages has ended; they are scrubbed before reuse."""
        given_up = list(pages)
        self._require_state(given_up, PageState.QUARANTINED)
        self._taint(given_up)

    def share(self, pages: Iterable[int]) -> int:
        """An entry of the prefix index names these owned or cached pages: one reference more on each.

        Returns:
            how many of them nobody named before.
        """
        states, references = self._states, self._references
        newly_named = 0
        for page in pages:
            if states[page] not in _SHARED:
                raise InvariantError(f"page {page} is {self.state_of(page).name} and can't be published")
            known = references[page]
            references[page] = known + 1
            if not known:
                newly_named += 1
        return newly_named

    def drop(self, pages: Iterable[int]) -> int:
        """An entry that named these pages is gone; a cached page without references is free.

        Returns:
            how many of them nobody names any more.
        """
        references, holds, states = self._references, self._holds, self._states
        unnamed = 0
        freed: list[int] = []
        for page in pages:
            left = references[page] - 1
            references[page] = left
            if left > 0:
                continue
            if left < 0:
                raise InvariantError(f"page {page} is dropped more often than it was shared")
            if holds[page]:
                raise InvariantError(f"page {page} is dropped while it is held")
            unnamed += 1
            if states[page] == _CACHED:  # the only state from which this is a move
                states[page] = _FREE
                freed.append(page)
        self._counts[_CACHED] -= len(freed)
        self._counts[_FREE] += len(freed)
        self._free += freed
        return unnamed

    def hold(self, pages: Iterable[int]) -> None:
        """Guard pages that have references from eviction; holds add up."""
        references, holds, states = self._references, self._holds, self._states
        newly_held = 0
        for page in pages:
            if not references[page]:
                raise InvariantError(f"page {page} is held and has no references")
            before = holds[page]
            holds[page] = before + 1
            if not before and states[page] == _CACHED:
                newly_held += 1
        self._num_cached_held += newly_held

    def unhold(self, pages: Iterable[int]) -> None:
        """Take a `hold` back."""
        holds, states = self._holds, self._states
        no_longer_held = 0
        for page in pages:
            left = holds[page] - 1
            holds[page] = left
            if left > 0:
                continue
            if left < 0:
                raise InvariantError(f"page {page} is let go more often than it was held")
            if states[page] == _CACHED:
                no_longer_held += 1
        self._num_cached_held -= no_longer_held

    def references(self, page: int) -> int:
        """Entries of the prefix index that name `page`."""
        return self._references[page]

    def holds(self, page: int) -> int:
        """Holds on `page`."""
        return self._holds[page]

    def close(self, lease: Lease) -> None:
        """End a life; every page must have been released."""
        self._require_open(lease)
        if lease.num_pages or lease.in_step:
            raise InvariantError(f"{lease!r} is closed while it holds pages or a step runs")
        del self._leases[lease.generation]

    def take_tainted(self) -> tuple[int, ...]:
        """Free all tainted pages; the caller promises to scrub them before the next step's rows run."""
        pages = tuple(self._tainted)
        self._tainted.clear()
        self._move(pages, PageState.FREE)
        self._free.extend(pages)
        return pages

    def check(self) -> None:
        """Prove conservation: each page in one state, in one place, of one open lease, and all counted.

        Costs time in proportion to the pool; for tests.

        Raises:
            InvariantError: what does not hold.
        """
        recount = [0] * len(PageState)
        held: dict[int, int] = {}
        for page, state in enumerate(self._states):
            recount[state] += 1
            if state in _LEASED:
                held[self._generations[page]] = held.get(self._generations[page], 0) + 1
        if recount != self._counts:
            raise InvariantError(f"page counts {self._counts} do not match the pages' states {recount}")
        if self._states[DUMMY_PAGE] != PageState.DUMMY or recount[PageState.DUMMY] != 1:
            raise InvariantError("page 0 must be the one dummy page")
        self._check_list("free", self._free, PageState.FREE)
        self._check_list("tainted", self._tainted, PageState.TAINTED)
        self._check_shares()
        leased = {lease.generation: lease.num_pages for lease in self._leases.values() if lease.num_pages}
        if held != leased:
            raise InvariantError(f"pages by generation {held} do not match the open leases {leased}")

    def _check_list(self, name: str, pages: list[int], state: PageState) -> None:
        if len(set(pages)) != len(pages):
            raise InvariantError(f"a page is twice on the {name} list")
        if len(pages) != self._counts[state] or any(self._states[page] != state for page in pages):
            raise InvariantError(f"the {name} list does not hold exactly the {name} pages")

    def _check_shares(self) -> None:
        held = 0
        for page, state in enumerate(self._states):
            references, holds = self._references[page], self._holds[page]
            if (references or holds) and state not in _SHARED:
                raise InvariantError(f"page {page} is {PageState(state).name} and has references or holds")
            if (state == PageState.CACHED and not references) or (holds and not references):
                raise InvariantError(f"page {page} is kept and nothing names it")
            held += state == PageState.CACHED and holds > 0
        if held != self._num_cached_held:
            raise InvariantError(f"{held} cached pages are held, the count says {self._num_cached_held}")

    def _taint(self, pages: Sequence[int]) -> None:
        self._move(pages, PageState.TAINTED)
        self._tainted.extend(pages)

    def _require_open(self, lease: Lease) -> None:
        if self._leases.get(lease.generation) is not lease:
            raise InvariantError(f"{lease!r} is closed")

    def _verified(self, lease: Lease, pages: Iterable[int]) -> list[int]:
        verified = list(pages)
        generation, generations = lease.generation, self._generations
        for page in verified:
            if generations[page] != generation or page <= DUMMY_PAGE:
                raise InvariantError(f"page {page} does not belong to {lease!r}")
        return verified

    def _require_state(self, pages: Sequence[int], *states: PageState) -> None:
        # Some moves lead to the same state from several: only the caller knows which one it means.
        if set(map(self._states.__getitem__, pages)).issubset(states):
            return
        page = next(page for page in pages if self._states[page] not in states)
        raise InvariantError(f"page {page} is {self.state_of(page).name}, not {states[-1].name}")

    def _move(self, pages: Sequence[int], target: PageState) -> None:
        states, counts = self._states, self._counts
        source, count, new = -1, 0, int(target)
        # Nearly always all come from one state: what it allows is asked once.
        for page in pages:
            if states[page] != source:
                counts[source] -= count
                counts[new] += count
                source, count = states[page], 0
                if (source, target) not in TRANSITIONS:
                    raise InvariantError(
                        f"page {page} can't go from {PageState(source).name} to {target.name}"
                    )
            states[page] = new
            count += 1
        counts[source] -= count
        counts[new] += count

"""Every interleaving of what two owners, the index and transfers can do to two pages.

The pool is compared with a model that only knows the picture in its docstring. From the empty pool
on, every operation is tried in every state that can be reached, so whatever order the operations
come in - an abort during a transfer, a late end of one, an eviction while somebody reads, a page that
is reused - has been walked through once.
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from milepost.errors import InvariantError
from milepost.memory.page_states import PageState
from milepost.memory.pool import Lease, PagePool

PAGES = (1, 2)
MOST_REFERENCES = 2
MOST_HOLDS = 2

FREE, RESERVED, WRITING, OWNED = PageState.FREE, PageState.RESERVED, PageState.WRITING, PageState.OWNED
TAINTED, CACHED = PageState.TAINTED, PageState.CACHED
RECEIVING, QUARANTINED = PageState.RECEIVING, PageState.QUARANTINED


class RefusedError(Exception):
    """The model does not allow the operation."""


class Model:
    """States, owners (0 and 1, None for nobody), references and holds of the pages; who is in a step."""

    def __init__(self) -> None:
        self.state = dict.fromkeys(PAGES, FREE)
        self.owner: dict[int, int | None] = dict.fromkeys(PAGES)
        self.references = dict.fromkeys(PAGES, 0)
        self.holds = dict.fromkeys(PAGES, 0)
        self.in_step = [False, False]

    def clone(self) -> Model:
        model = Model()
        model.state, model.owner = dict(self.state), dict(self.owner)
        model.references, model.holds = dict(self.references), dict(self.holds)
        model.in_step = list(self.in_step)
        return model

    def require(self, allowed: object) -> None:
        if not allowed:
            raise RefusedError

    def own(self, owner: int) -> list[int]:
        return [page for page in PAGES if self.owner[page] == owner]

    def let_go(self, page: int, state: PageState) -> None:
        self.state[page] = state
        self.owner[page] = None

    def reserve(self, owner: int, page: int | None) -> None:
        free = [page for page in PAGES if self.state[page] is FREE]
        if not free:
            assert page is None
            return
        assert page in free
        self.state[page], self.owner[page] = RESERVED, owner

    def begin(self, *, owner: int) -> None:
        self.require(not self.in_step[owner])
        self.in_step[owner] = True
        for page in self.own(owner):
            if self.state[page] is RESERVED:
                self.state[page] = WRITING

    def end(self, *, owner: int) -> None:
        self.require(self.in_step[owner])
        self.in_step[owner] = False
        for page in self.own(owner):
            if self.state[page] is WRITING:
                self.state[page] = OWNED

    def release(self, owner: int, page: int, *, tainted: bool) -> None:
        self.require(not self.in_step[owner] and self.owner[page] == owner)
        self.require(self.state[page] in (RESERVED, OWNED))
        if self.references[page]:
            self.let_go(page, CACHED)
        else:
            self.let_go(page, TAINTED if tainted and self.state[page] is OWNED else FREE)

    def begin_receive(self, owner: int, page: int) -> None:
        self.require(self.owner[page] == owner and self.state[page] is RESERVED)
        self.state[page] = RECEIVING

    def end_receive(self, owner: int, page: int, *, failed: bool) -> None:
        self.require(self.owner[page] == owner and self.state[page] is RECEIVING)
        if failed:
            self.let_go(page, TAINTED)
        else:
            self.state[page] = OWNED

    def quarantine(self, owner: int, page: int) -> None:
        self.require(self.owner[page] == owner and self.state[page] is RECEIVING)
        self.let_go(page, QUARANTINED)

    def end_quarantine(self, page: int) -> None:
        self.require(self.state[page] is QUARANTINED)
        self.state[page] = TAINTED

    def share(self, page: int) -> None:
        self.require(self.state[page] in (OWNED, CACHED))
        self.references[page] += 1

    def drop(self, page: int) -> None:
        self.require(self.references[page] > 0)
        self.references[page] -= 1
        self.require(not self.holds[page] or self.references[page] > 0)
        if not self.references[page] and self.state[page] is CACHED:
            self.state[page] = FREE

    def hold(self, page: int) -> None:
        self.require(self.references[page] > 0)
        self.holds[page] += 1

    def unhold(self, page: int) -> None:
        self.require(self.holds[page] > 0)
        self.holds[page] -= 1

    def close(self, *, owner: int) -> None:
        self.require(not self.own(owner) and not self.in_step[owner])

    def scrub(self) -> None:
        for page in PAGES:
            if self.state[page] is TAINTED:
                self.state[page] = FREE


class Real:
    """A pool of the two pages, and the two owners' open leases."""

    def __init__(self) -> None:
        self.pool = PagePool(1 + len(PAGES))
        self.leases = [self.pool.open("a"), self.pool.open("b")]

    def in_state(self, owner: int, state: PageState) -> list[int]:
        """Pages that the owner would name, as the tables of a sequence do."""
        generation = self.leases[owner].generation
        return [
            page
            for page in PAGES
            if self.pool._generations[page] == generation and self.pool.state_of(page) == state
        ]

    def close(self, *, owner: int) -> None:
        self.pool.close(self.leases[owner])
        self.leases[owner] = self.pool.open("ab"[owner])


class Operation(NamedTuple):
    """One operation on the model and on the pool; `on_pool` returns the page given, if that is one."""

    name: str
    on_model: Callable[[Model], None]
    on_pool: Callable[[Real], int | None]


def operations() -> Iterator[Operation]:
    """Everything that anybody could ask for, sensible or not."""
    for one in (0, 1):
        # Which page is given is the pool's choice, so the test tells the model.
        yield Operation(f"reserve({one})", lambda _: None, partial(reserve, owner=one))
        yield Operation(f"begin({one})", partial(Model.begin, owner=one), partial(begin, owner=one))
        yield Operation(f"end({one})", partial(Model.end, owner=one), partial(end, owner=one))
        yield Operation(f"close({one})", partial(Model.close, owner=one), partial(Real.close, owner=one))
        for page in PAGES:
            yield same("release", one, page, tainted=False)
            yield same("release", one, page, tainted=True)
            yield same("begin_receive", one, page)
            yield same("end_receive", one, page, failed=False)
            yield same("end_receive", one, page, failed=True)
            yield same("quarantine", one, page)
    for page in PAGES:
        for name in ("end_quarantine", "share", "drop", "hold", "unhold"):
            yield same(name, None, page)
    yield Operation("scrub", Model.scrub, scrub)


def same(name: str, owner: int | None, page: int, **flags: bool) -> Operation:
    """An operation that has the same name on both sides."""

    def on_model(model: Model) -> None:
        owners = [] if owner is None else [owner]
        getattr(model, name)(*owners, page, **flags)

    def on_pool(real: Real) -> None:
        leases = [] if owner is None else [real.leases[owner]]
        getattr(real.pool, name)(*leases, [page], **flags)

    shown = ", ".join(f"{flag}={value}" for flag, value in flags.items())
    return Operation(f"{name}({owner}, {page}, {shown})", on_model, on_pool)


def reserve(real: Real, *, owner: int) -> int | None:
    pages = real.pool.reserve(real.leases[owner], 1)
    return None if pages is None else pages[0]


def begin(real: Real, *, owner: int) -> None:
    real.pool.begin_step(real.leases[owner], real.in_state(owner, RESERVED))


def end(real: Real, *, owner: int) -> None:
    real.pool.end_step(real.leases[owner], real.in_state(owner, WRITING))


def scrub(real: Real) -> None:
    real.pool.take_tainted()


def seen_as(model: Model, real: Real) -> tuple[object, ...]:
    """The state, the same for states that differ only by the names of the pages or of the owners."""
    views = []
    for owners, pages in itertools.product(((0, 1), (1, 0)), (PAGES, PAGES[::-1])):
        lives = tuple(
            (
                int(model.state[page]),
                -1 if (owner := model.owner[page]) is None else owners[owner],
                model.references[page],
                model.holds[page],
            )
            for page in pages
        )
        free = tuple(pages.index(page) for page in real.pool.free_pages())
        views.append((lives, tuple(model.in_step[owner] for owner in owners), free))
    return min(views)


def agree(model: Model, real: Real, trace: str) -> None:
    real.pool.check()
    for page in PAGES:
        assert real.pool.state_of(page) is model.state[page], trace
        assert real.pool.references(page) == model.references[page], trace
        assert real.pool.holds(page) == model.holds[page], trace
    states = Counter(model.state.values())
    assert real.pool.num_free == states[FREE], trace
    evictable = sum(model.state[page] is CACHED and not model.holds[page] for page in PAGES)
    assert real.pool.num_evictable == evictable, trace
    for one in (0, 1):
        assert real.leases[one].num_pages == len(model.own(one)), trace
        assert real.leases[one].in_step == model.in_step[one], trace


def within_bounds(model: Model) -> bool:
    """Counts may grow for ever; two of each show all that three would."""
    return max(model.references.values()) <= MOST_REFERENCES and max(model.holds.values()) <= MOST_HOLDS


LATE: dict[str, Callable[[PagePool, Lease, int], object]] = {
    "reserve": lambda pool, lease, page: pool.reserve(lease, 1),
    "begin": lambda pool, lease, page: pool.begin_step(lease, [page]),
    "end": lambda pool, lease, page: pool.end_step(lease, [page]),
    "release": lambda pool, lease, page: pool.release(lease, [page]),
    "release tainted": lambda pool, lease, page: pool.release(lease, [page], tainted=True),
    "begin receive": lambda pool, lease, page: pool.begin_receive(lease, [page]),
    "end receive": lambda pool, lease, page: pool.end_receive(lease, [page]),
    "fail receive": lambda pool, lease, page: pool.end_receive(lease, [page], failed=True),
    "quarantine": lambda pool, lease, page: pool.quarantine(lease, [page]),
    "close": lambda pool, lease, page: pool.close(lease),
}


def refused(operation: Callable[[], object]) -> bool:
    try:
        operation()
    except InvariantError:
        return True
    return False


def require_that_nothing_comes_late(frozen: bytes, owner: int, trace: str) -> None:
    """Whatever an owner's earlier life still wants, it gets no page."""
    for (name, late), page in itertools.product(LATE.items(), PAGES):
        real = thawed(frozen)
        lease = real.leases[owner]
        real.close(owner=owner)
        assert refused(partial(late, real.pool, lease, page)), f"{trace}, late {name}({page})"


def thawed(frozen: bytes) -> Real:
    real: Real = pickle.loads(frozen)  # noqa: S301 - made a few lines ago
    return real


def test_every_operation_in_every_reachable_state_does_what_the_picture_says() -> None:
    first, pool = Model(), Real()
    queue = deque([(first, pool, "")])
    seen = {seen_as(first, pool)}
    num_refused = 0
    while queue:
        model, real, trace = queue.popleft()
        frozen = pickle.dumps(real)
        for operation in OPERATIONS:
            next_model, next_real = model.clone(), thawed(frozen)
            step = f"{trace} {operation.name}"
            try:
                operation.on_model(next_model)
            except RefusedError:
                num_refused += 1
                assert refused(partial(operation.on_pool, next_real)), f"not refused: {step}"
                continue
            given = operation.on_pool(next_real)
            if operation.name.startswith("reserve"):
                next_model.reserve(int(operation.name[8]), given)
            agree(next_model, next_real, step)
            if operation.name.startswith("close"):
                require_that_nothing_comes_late(frozen, int(operation.name[6]), step)
            if seen_as(next_model, next_real) not in seen and within_bounds(next_model):
                seen.add(seen_as(next_model, next_real))
                queue.append((next_model, next_real, step))
    assert len(seen) > 800
    assert num_refused > 10_000


OPERATIONS = list(operations())

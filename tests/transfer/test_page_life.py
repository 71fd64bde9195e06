"""Every interleaving of small page lives: scrub, load, offload, cancel, reuse, with copies in between.

A tiny control plane keeps two pages of the arena as one unit and plays every sequence of what it may do
with them; the background copies go on by any number of pages at any moment of every step. Whatever
the order, what it holds must be what it was given, and what it offloaded what it held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from milepost.errors import InvariantError
from milepost.transfer import tiered_executor
from milepost.transfer.host_store import HostStore
from milepost.transfer.pages_in_flight import PagesInFlight
from milepost.transfer.tiered_executor import TieredExecutor
from milepost.transfer.worker import Copier
from milepost.types import Batch, Tier, Transfer, TransferResult
from tests.transfer.arena_steps import ArenaSteps, writing_row
from tests.transfer.gated_copier import transfer

PAGES = (1, 2)  # the unit
SPARE = 3  # what copies come from
SPARE_VALUE = 33
MOMENTS = ("before scrubs", "after scrubs", "after rows", "between steps")
NUM_STEPS = 4
NUM_RUNS = 32_075  # all of them; a smaller number would mean that a choice is not made any more


class Choices:
    """Goes through all sequences of choices of a program that asks for them one by one."""

    def __init__(self) -> None:
        self._made: list[list[int]] = []  # [chosen, number of options]
        self._at = 0

    def choose(self, count: int) -> int:
        if self._at == len(self._made):
            self._made.append([0, count])
        chosen = self._made[self._at][0]
        self._at += 1
        return chosen

    def runs(self) -> Iterator[None]:
        while True:
            self._at = 0
            yield
            while self._made and self._made[-1][0] + 1 == self._made[-1][1]:
                self._made.pop()
            if not self._made:
                return
            self._made[-1][0] += 1


class SteppedWorker:
    """In the worker's place: a copy goes on by one page when the test says so."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._left: deque[tuple[Transfer, bool]] = deque()  # one page each; whether it is the last
        self._ended: list[TransferResult] = []

    def start(self, asked: Transfer) -> None:
        for index, pair in enumerate(asked.pages):
            one = transfer(asked.transfer_id, asked.source, asked.target, pair)
            self._left.append((one, index == len(asked.pages) - 1))

    def advance(self) -> None:
        if self._left:
            one, is_last = self._left.popleft()
            self._copier.copy(one, lambda: False)
            if is_last:
                self._ended.append(TransferResult(transfer_id=one.transfer_id))

    def finished(self) -> tuple[TransferResult, ...]:
        ended = tuple(self._ended)
        self._ended.clear()
        return ended

    def close(self) -> bool:
        return True

    @property
    def busy(self) -> bool:
        return bool(self._left)


class Life:
    """One run: the little control plane, over a real tiered executor.

    Args:
        choices: what happens.
        patient: whether it waits for a cancelled load's result before it uses the pages again.
    """

    def __init__(self, choices: Choices, *, patient: bool = True) -> None:
        self._choices = choices
        self._patient = patient
        self._arena = np.full((4, 4), 255, dtype=np.uint8)
        self._arena[SPARE] = SPARE_VALUE
        # Offloads go to the first half, loads come from the second.
        self._host = HostStore(4 * NUM_STEPS, 4)
        self._host.pages[2 * NUM_STEPS :] = np.arange(100, 100 + 2 * NUM_STEPS, dtype=np.uint8)[:, None]
        inner = ArenaSteps(self._arena, self._moment)
        self._executor = TieredExecutor(inner, self._arena, self._host)
        worker = self._executor._worker
        assert isinstance(worker, SteppedWorker)
        self._worker = worker
        self._held: tuple[int, int] | None = None
        self._tainted = False
        self._loading: tuple[int, tuple[int, int]] | None = None  # transfer id, values
        self._wanted = False
        self._offloaded: dict[int, int] = {}  # host page -> value
        self._moments_left: str | None = None
        self._next = 0

    def play(self) -> None:
        for step in range(NUM_STEPS):
            self._play_step(step)
        while self._worker.busy:
            self._worker.advance()
        self._take(self._executor.run(Batch(step=NUM_STEPS, rows=())).transfers)
        self._check()
        self._executor.close()

    def _play_step(self, step: int) -> None:
        actions = self._actions()
        action = actions[self._choices.choose(len(actions))]
        scheduled = action(step)
        # The copies go on at one moment of each step, by one page or two.
        in_flight = self._loading is not None
        pattern = self._choices.choose(1 + 2 * len(MOMENTS)) if in_flight else 0
        self._moments_left = MOMENTS[(pattern - 1) // 2] if pattern else None
        self._num_pages = 1 + (pattern - 1) % 2
        self._take(self._executor.run(scheduled).transfers)
        self._moment("between steps")
        self._check()

    def _actions(self) -> list[Callable[[int], Batch]]:
        if self._loading is not None and (self._wanted or self._patient):
            return [self._idle, self._cancel] if self._wanted else [self._idle]
        if self._held is not None:
            return [self._offload_and_write, self._offload_and_load, self._offload_and_copy, self._fail]
        return [self._write, self._load, self._copy]

    def _idle(self, step: int) -> Batch:
        return Batch(step=step, rows=())

    def _cancel(self, step: int) -> Batch:
        self._wanted = False
        return Batch(step=step, rows=())

    def _fail(self, step: int) -> Batch:
        """A request failed: its pages will be scrubbed by the batch that gives them away."""
        self._held, self._tainted = None, True
        return Batch(step=step, rows=())

    def _write(self, step: int, transfers: tuple[Transfer, ...] = ()) -> Batch:
        self._held = (10 + step, 20 + step)
        rows = tuple(writing_row(page, value) for page, value in zip(PAGES, self._held, strict=True))
        return Batch(step=step, rows=rows, scrubs=self._scrubs(), transfers=transfers)

    def _copy(self, step: int, transfers: tuple[Transfer, ...] = ()) -> Batch:
        self._held = (SPARE_VALUE, SPARE_VALUE)
        copies = tuple((SPARE, page) for page in PAGES)
        return Batch(step=step, rows=(), scrubs=self._scrubs(), copies=copies, transfers=transfers)

    def _load(self, step: int, transfers: tuple[Transfer, ...] = ()) -> Batch:
        rows = (2 * NUM_STEPS + 2 * step, 2 * NUM_STEPS + 2 * step + 1)
        self._held, self._wanted = None, True
        self._loading = (self._new_id(), (100 + 2 * step, 101 + 2 * step))
        load = transfer(self._loading[0], Tier.HOST, Tier.ARENA, *zip(rows, PAGES, strict=True))
        return Batch(step=step, rows=(), scrubs=self._scrubs(), transfers=(*transfers, load))

    def _offload_and_write(self, step: int) -> Batch:
        return self._write(step, (self._offload(step),))

    def _offload_and_load(self, step: int) -> Batch:
        return self._load(step, (self._offload(step),))

    def _offload_and_copy(self, step: int) -> Batch:
        return self._copy(step, (self._offload(step),))

    def _offload(self, step: int) -> Transfer:
        assert self._held is not None
        targets = (2 * step, 2 * step + 1)
        self._offloaded.update(zip(targets, self._held, strict=True))
        return transfer(self._new_id(), Tier.ARENA, Tier.HOST, *zip(PAGES, targets, strict=True))

    def _scrubs(self) -> tuple[int, ...]:
        """Only the unit's second page is tainted, so that a load may have one page to spare and one not."""
        scrubs, self._tainted = PAGES[1:] if self._tainted else (), False
        return scrubs

    def _new_id(self) -> int:
        self._next += 1
        return self._next

    def _moment(self, name: str) -> None:
        if name == self._moments_left:
            for _ in range(self._num_pages):
                self._worker.advance()

    def _take(self, results: tuple[TransferResult, ...]) -> None:
        for result in results:
            assert result.error is None
            if self._loading is not None and result.transfer_id == self._loading[0]:
                if self._wanted:
                    self._held = self._loading[1]
                self._loading = None

    def _check(self) -> None:
        if self._held is not None:
            for page, value in zip(PAGES, self._held, strict=True):
                assert (self._arena[page] == value).all()
        for page, value in self._offloaded.items():
            assert (self._host.pages[page] == value).all()
        assert (self._arena[SPARE] == SPARE_VALUE).all()


@pytest.fixture(autouse=True)
def stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiered_executor, "TransferWorker", SteppedWorker)


def first_failure(kind: type[Exception], *, patient: bool = True) -> Exception | None:
    """What the first run says that fails in this way."""
    choices = Choices()
    for _ in choices.runs():
        try:
            Life(choices, patient=patient).play()
        except (AssertionError, InvariantError) as failure:
            if isinstance(failure, kind):
                return failure
    return None


def test_no_interleaving_gives_a_wrong_page() -> None:
    """R51, R52: no scrub after a load. R53: a transfer's pages are its own. R85: no reuse while read."""
    choices = Choices()
    num_runs = 0
    for _ in choices.runs():
        Life(choices).play()
        num_runs += 1
    assert num_runs == NUM_RUNS


def test_the_check_finds_loads_that_start_before_a_scrub(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_all(self: TieredExecutor, batch: Batch) -> list[Transfer]:
        for asked in batch.transfers:
            if asked.target is Tier.ARENA:
                self._start(asked)
        return []

    monkeypatch.setattr(TieredExecutor, "_start_early", start_all)
    assert first_failure(AssertionError)


def test_the_check_finds_offloads_that_come_after_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_to_host, run_inner = TieredExecutor._copy_to_host, TieredExecutor._run_inner
    kept: list[Batch] = []

    def note(self: TieredExecutor, batch: Batch) -> tuple[TransferResult, ...]:
        kept.append(batch)
        return ()

    def run_then_copy(self: TieredExecutor, batch: Batch) -> object:
        result = run_inner(self, batch)
        copy_to_host(self, kept.pop())
        return result

    monkeypatch.setattr(TieredExecutor, "_copy_to_host", note)
    monkeypatch.setattr(TieredExecutor, "_run_inner", run_then_copy)
    assert first_failure(AssertionError)


def test_reuse_before_a_cancelled_load_has_ended_is_refused() -> None:
    """The late write of R51 and R85. Rows' pages are not looked at: the pool's quarantine guards those."""
    failure = first_failure(InvariantError, patient=False)
    assert "which a transfer is still writing" in str(failure)


def test_without_the_refusal_the_late_write_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagesInFlight, "_check", lambda *_: None)
    assert first_failure(AssertionError, patient=False)

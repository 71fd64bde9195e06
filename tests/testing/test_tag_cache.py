"""The tag executor's rules for caches must bite: copies, snapshots, shared blocks, salts and tiers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from milepost.errors import InvariantError
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.testing.tag_executor import TagExecutor, expected_output, tag_of
from milepost.testing.tag_memory import StateTag, Unreadable
from milepost.testing.tag_tiers import TagTiers
from milepost.types import (
    Batch,
    NewRequest,
    Row,
    RowResult,
    SamplingParams,
    SnapshotOrder,
    Tier,
    Transfer,
    TransferResult,
)
from tests.scheduler.harness import SmallLayout

LAYOUT = SmallLayout(block_size=2, pages_per_state=1)
PROMPT = (0, 1, 1, 0, 1)


class Bench:
    """An executor of 16 pages, whose free and cached pages a test names.

    Request "a" has computed its first three tokens on blocks 3 and 4 and state 1, and has left a
    snapshot of two tokens on page 8 and one of three on page 9.
    """

    def __init__(self, tiers: TagTiers | None = None) -> None:
        self.free: set[int] = set()
        self.cached: set[int] = set()
        self.salts: dict[str, str] = {}
        self.executor = TagExecutor(
            LAYOUT,
            16,
            free_pages=lambda: self.free,
            cached_pages=lambda: self.cached,
            salt_of=lambda request_id: self.salts.get(request_id, ""),
            tiers=tiers,
        )
        self.announced: set[str] = set()
        self.ended: tuple[TransferResult, ...] = ()
        (first,) = self.run(row("a", 0, 3, snapshots=(order(2, 8), order(3, 9))))
        assert first.snapshots == (2, 3)
        self.cached |= {3, 4, 8, 9}

    def run(
        self,
        *rows: Row,
        copies: tuple[tuple[int, int], ...] = (),
        scrubs: tuple[int, ...] = (),
        transfers: tuple[Transfer, ...] = (),
        waits: bool = False,
    ) -> tuple[RowResult, ...]:
        new = tuple(
            NewRequest(request_id=one.request_id, prompt_token_ids=PROMPT, sampling=SamplingParams())
            for one in rows
            if one.request_id not in self.announced
        )
        self.announced |= {one.request_id for one in rows}
        batch = Batch(
            step=0,
            rows=rows,
            new_requests=new,
            copies=copies,
            scrubs=scrubs,
            transfers=transfers,
            waits=waits,
        )
        result = self.executor.run(batch)
        self.ended = result.transfers
        return result.rows


def order(position: int, *pages: int) -> SnapshotOrder:
    return SnapshotOrder(position=position, pages=pages)


def row(
    request_id: str,
    start: int,
    end: int,
    blocks: tuple[int, ...] = (3, 4, 5),
    state: int = 1,
    snapshots: tuple[SnapshotOrder, ...] = (),
) -> Row:
    return Row(
        request_id=request_id,
        start=start,
        token_ids=PROMPT[start:end],
        block_table=blocks,
        state_table=(state,),
        samples=end == len(PROMPT),
        snapshots=snapshots,
    )


# "b" resumes at three tokens: it shares block 3, and has copies of block 4 (on 6) and snapshot 9 (on 2).
COPIES = ((4, 6), (9, 2))
HIT = row("b", 3, 5, (3, 6, 7), 2)


def test_a_hit_inside_a_block_runs_on_copies_while_the_leader_goes_on() -> None:
    bench = Bench()
    results = bench.run(row("a", 3, 5), HIT, copies=COPIES)
    assert {result.token_ids for result in results} == {tuple(expected_output(PROMPT, 1, 2))}
    assert bench.executor.memory.pages[9] == StateTag(tag_of(PROMPT[:3]), 3, 0)


def test_a_copy_takes_what_is_there_before_anything_is_written() -> None:
    bench = Bench()
    bench.cached.clear()
    bench.run(row("a", 3, 5, state=1), row("b", 3, 4, (3, 6), 2), copies=((4, 6), (1, 2)))


def test_salts_keep_tags_apart() -> None:
    bench = Bench()
    bench.salts["b"] = "tenant"
    with pytest.raises(InvariantError, match="'b' reads foreign KV at position 0"):
        bench.run(HIT, copies=COPIES)
    assert tag_of(PROMPT) != tag_of(PROMPT, "tenant") != tag_of(PROMPT, "tenanu")
    (result,) = bench.run(row("c", 0, 5, (10, 11, 12), 13))
    assert result.token_ids == tuple(expected_output(PROMPT, 1, 2))


def ordered(*snapshots: SnapshotOrder) -> Callable[[Bench], object]:
    return lambda bench: bench.run(row("a", 3, 5, snapshots=snapshots))


def shrunk(bench: Bench) -> None:
    """A third request has the unwritten block of "a" as a whole one."""
    bench.run(row("a", 3, 4), row("b", 0, 4, (10, 11), 2))
    bench.run(row("a", 4, 5), row("b", 4, 5, (3, 4, 5), 2))


def free(page: int, *rows: Row, copies: tuple[tuple[int, int], ...] = ()) -> Callable[[Bench], object]:
    def run(bench: Bench) -> object:
        bench.free.add(page)
        return bench.run(*rows, copies=copies)

    return run


FAULTS: dict[str, tuple[Callable[[Bench], object], str]] = {
    "hit at another state": (
        lambda bench: bench.run(HIT, copies=((4, 6), (8, 2))),
        "state that is not its own: .*position=2",
    ),
    "state not copied": (lambda bench: bench.run(HIT, copies=((4, 6),)), "state that is not its own"),
    "partial block not copied": (lambda bench: bench.run(HIT, copies=((9, 2),)), "foreign KV at position 2"),
    "wrong block copied": (
        lambda bench: bench.run(HIT, copies=((3, 6), (9, 2))),
        "foreign KV at position 2",
    ),
    "partial block shared": (
        lambda bench: bench.run(row("a", 3, 5), row("b", 3, 5, (3, 4, 7), 2), copies=((9, 2),)),
        "both name page 4",
    ),
    "block shared that is not complete for one of them": (shrunk, "both name page 5"),
    "cached partial block written": (
        lambda bench: bench.run(row("b", 2, 4, (3, 4), 2), copies=((8, 2),)),
        "changes page 4, which is cached",
    ),
    "snapshot used as the live state": (
        lambda bench: bench.run(row("b", 3, 5, (3, 6, 7), 9), copies=((4, 6),)),
        "changes page 9, which is cached",
    ),
    "state page shared": (
        lambda bench: bench.run(row("a", 3, 5, (3, 4, 5), 2), HIT, copies=COPIES),
        "both name page 2",
    ),
    "block shared as another one": (
        lambda bench: bench.run(row("a", 3, 5), row("b", 4, 5, (10, 3, 7), 2)),
        "both name page 3",
    ),
    "block named twice": (
        lambda bench: bench.run(row("b", 4, 5, (3, 3, 7), 2), copies=((9, 2),)),
        "both name page 3",
    ),
    "copy of a page never written": (lambda bench: bench.run(copies=((10, 6),)), "page 10, which was never"),
    "copy of a free page": (free(4, HIT, copies=COPIES), "page 4, which was never written"),
    "copy to a free page": (free(6, copies=COPIES), "names page 6, which is free"),
    "copy to a cached page": (
        lambda bench: bench.run(copies=((3, 9),)),
        "a copy changes page 9, which is cached",
    ),
    "copy to the dummy page": (lambda bench: bench.run(copies=((3, 0),)), "a copy names page 0"),
    "copy from a target": (lambda bench: bench.run(copies=((4, 6), (6, 7))), "another's source or target"),
    "two copies to one page": (lambda bench: bench.run(copies=((3, 6), (4, 6))), "source or target"),
    "cached page scrubbed": (lambda bench: bench.run(scrubs=(3,)), "a scrub changes page 3"),
    "snapshot at the start": (ordered(order(3, 10)), "at 3, which must be above 3"),
    "snapshot behind the end": (ordered(order(6, 10)), "at 6, which must be above 3 and at most 5"),
    "snapshots out of order": (ordered(order(5, 10), order(4, 11)), "at 4, which must be above 5"),
    "snapshot ordered twice": (ordered(order(4, 10), order(4, 11)), "at 4, which must be above 4"),
    "snapshot of two pages": (ordered(order(4, 10, 11)), "on 2 pages"),
    "snapshots on one page": (ordered(order(4, 10), order(5, 10)), "both name page 10"),
    "snapshot on the live state": (ordered(order(4, 1)), "both name page 1"),
    "snapshot on a block": (ordered(order(4, 3)), "both name page 3"),
    "snapshot on a cached page": (ordered(order(4, 8)), "changes page 8, which is cached"),
    "snapshot on a free page": (
        free(10, row("a", 3, 5, snapshots=(order(4, 10),))),
        "page 10, which is free",
    ),
    "snapshot on another row's block": (
        lambda bench: bench.run(row("a", 3, 5, snapshots=(order(4, 3),)), HIT, copies=COPIES),
        "both name page 3",
    ),
    "transfer without tiers": (
        lambda bench: bench.run(transfers=(transfer(0, Tier.ARENA, Tier.HOST, (3, 0)),)),
        "there are no tiers",
    ),
    "waiting for nothing": (lambda bench: bench.run(waits=True), "there are no tiers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_it_finds(fault: str) -> None:
    inject, message = FAULTS[fault]
    with pytest.raises(InvariantError, match=message):
        inject(Bench())


def test_a_failed_row_leaves_what_is_cached_and_ruins_what_it_wrote() -> None:
    bench = Bench()
    bench.executor.fail_request("a")
    (result,) = bench.run(row("a", 3, 5, snapshots=(order(4, 10),)))
    assert result.error
    assert result.snapshots == ()
    pages = bench.executor.memory.pages
    assert pages[1] is pages[5] is pages[10] is Unreadable.NAN
    assert pages[3] == [tag_of(PROMPT[:1]), tag_of(PROMPT[:2])]
    # The cached third token is still right, but behind it is NaN, and a copy takes both.
    with pytest.raises(InvariantError, match="'b' got page 6, which was never scrubbed"):
        bench.run(HIT, copies=COPIES)
    bench.cached -= {4}
    bench.free |= {4}
    bench.run()
    assert pages[4] is Unreadable.NAN


def test_a_snapshot_that_is_not_finite_is_not_reported_and_must_be_scrubbed() -> None:
    bench = Bench()
    bench.executor.fail_snapshot("a")
    (result,) = bench.run(row("a", 3, 5, snapshots=(order(4, 10), order(5, 11))))
    assert result.snapshots == (5,)
    assert result.token_ids
    with pytest.raises(InvariantError, match="page 10, which was never scrubbed"):
        bench.run(row("c", 0, 2, (12,), 10))
    bench.run(row("c", 0, 2, (12,), 10), scrubs=(10,))


# -- tiers ------------------------------------------------------------------------------------------


def transfer(transfer_id: int, source: Tier, target: Tier, *pages: tuple[int, int]) -> Transfer:
    return Transfer(transfer_id=transfer_id, source=source, target=target, pages=pages)


DOWN = transfer(1, Tier.ARENA, Tier.HOST, (3, 0), (4, 1), (9, 2))
UP = transfer(2, Tier.HOST, Tier.ARENA, (0, 10), (1, 6), (2, 2))
LOADED = row("b", 3, 5, (10, 6, 7), 2)


def test_what_is_evicted_in_a_step_is_demoted_before_its_pages_are_reused() -> None:
    bench = Bench(TagTiers(host_pages=3))
    bench.cached.clear()
    bench.free |= {4}
    # Page 9 already has its next owner, page 4 is free.
    bench.run(row("c", 0, 2, (9,), 3), transfers=(DOWN,))
    assert bench.ended == (TransferResult(transfer_id=1),)
    bench.free.clear()
    bench.run(transfers=(UP,))
    (result,) = bench.run(LOADED)
    assert result.token_ids == tuple(expected_output(PROMPT, 1, 2))


def test_a_transfer_takes_as_long_as_it_is_told_and_its_pages_are_out_of_bounds_until_then() -> None:
    bench = Bench(TagTiers(host_pages=3, steps_of=lambda _: 2))
    bench.run(transfers=(DOWN,))
    assert bench.ended == (TransferResult(transfer_id=1),)
    bench.run(transfers=(UP,))
    assert not any(bench.ended)
    with pytest.raises(InvariantError, match="'b' got page 2, which is being written by a transfer"):
        bench.run(LOADED)
    bench.run()
    bench.run()
    assert bench.ended == (TransferResult(transfer_id=2),)
    bench.run(LOADED)


def test_a_step_that_waits_ends_what_comes_next() -> None:
    bench = Bench(TagTiers(host_pages=3, steps_of=lambda _: 100))
    bench.run(transfers=(DOWN,))
    bench.run(transfers=(UP,))
    bench.run(waits=True)
    assert bench.ended == (TransferResult(transfer_id=2),)
    with pytest.raises(InvariantError, match="none is on its way"):
        bench.run(waits=True)


def test_a_failed_transfer_leaves_pages_that_must_be_scrubbed() -> None:
    bench = Bench(TagTiers(host_pages=3, error_of=lambda one: "torn" if one.transfer_id == 2 else None))
    bench.run(transfers=(DOWN,))
    bench.run(transfers=(UP,))
    assert bench.ended == (TransferResult(transfer_id=2, error="torn"),)
    with pytest.raises(InvariantError, match="page 10, which was never scrubbed"):
        bench.run(row("c", 0, 2, (10,), 11))


def test_a_failed_demotion_is_not_there() -> None:
    bench = Bench(TagTiers(host_pages=3, error_of=lambda _: "full"))
    bench.run(transfers=(DOWN,))
    with pytest.raises(InvariantError, match="reads page 0, which was never written"):
        bench.run(transfers=(UP,))


def test_disk_pages_are_apart_from_host_pages() -> None:
    bench = Bench(TagTiers(host_pages=3, disk_pages=3))
    bench.run(transfers=(DOWN,))
    bench.run(transfers=(transfer(5, Tier.HOST, Tier.DISK, (0, 2), (1, 1), (2, 0)),))
    bench.run(transfers=(transfer(6, Tier.DISK, Tier.ARENA, (2, 10), (1, 6), (0, 2)),))
    bench.run(LOADED)


TIER_FAULTS: dict[str, tuple[Transfer, str]] = {
    "read of a page never written": (
        transfer(2, Tier.ARENA, Tier.HOST, (11, 0)),
        "from arena to host reads page 11",
    ),
    "a host page twice": (transfer(2, Tier.ARENA, Tier.HOST, (3, 0), (8, 0)), "written twice in one step"),
    "a page that does not exist": (transfer(2, Tier.ARENA, Tier.HOST, (3, 4)), "names page 4 of the host"),
    "the dummy page": (transfer(2, Tier.HOST, Tier.ARENA, (0, 0)), "names page 0 of the arena"),
    "to a cached page": (transfer(2, Tier.HOST, Tier.ARENA, (0, 8)), "changes page 8, which is cached"),
    "to a free page": (transfer(2, Tier.HOST, Tier.ARENA, (0, 15)), "page 15, which is free"),
    "from a free host page": (transfer(2, Tier.HOST, Tier.ARENA, (3, 10)), "host page 3, which is free"),
    "an id twice": (transfer(1, Tier.HOST, Tier.ARENA, (0, 10)), "transfer 1 comes twice"),
    "a target twice": (transfer(2, Tier.HOST, Tier.ARENA, (0, 10), (1, 10)), "changes page 10"),
}


@pytest.mark.parametrize("fault", TIER_FAULTS)
def test_it_finds_in_transfers(fault: str) -> None:
    wrong, message = TIER_FAULTS[fault]
    bench = Bench(TagTiers(host_pages=4, free_host_pages=lambda: [3]))
    bench.run(transfers=(DOWN,))
    bench.free.add(15)
    with pytest.raises(InvariantError, match=message):
        bench.run(transfers=(wrong,))


def test_it_finds_pages_that_are_given_away_while_a_transfer_is_on_its_way() -> None:
    host_free: set[int] = set()
    tiers = TagTiers(host_pages=4, free_host_pages=lambda: host_free, steps_of=lambda _: 1)
    bench = Bench(tiers)
    bench.run(transfers=(DOWN,))
    bench.run(transfers=(UP,))
    bench.free.add(10)
    with pytest.raises(InvariantError, match="page 10 is free while a transfer writes it"):
        bench.run()
    bench.free.clear()
    host_free.add(0)
    with pytest.raises(InvariantError, match="page 0 changed while it was read"):
        bench.run()


# -- the scripted executor --------------------------------------------------------------------------


def scripted(executor: ScriptedExecutor, *transfers: Transfer, waits: bool = False) -> list[int]:
    batch = Batch(step=0, rows=(), transfers=transfers, waits=waits)
    return [result.transfer_id for result in executor.run(batch).transfers]


def test_the_scripted_executor_reports_snapshots_as_its_script_says() -> None:
    executor = ScriptedExecutor(lambda _, n: 0)
    new = (NewRequest(request_id="a", prompt_token_ids=PROMPT, sampling=SamplingParams()),)
    executor.lose_snapshots("a")
    rows = (
        row("a", 0, 2),
        row("a", 2, 4, snapshots=(order(3, 8),)),
        row("a", 4, 5, snapshots=(order(5, 8),)),
    )
    left = [executor.run(Batch(step=0, rows=(one,), new_requests=new)).rows[0].snapshots for one in rows]
    assert left == [(), (), (5,)]


def test_the_scripted_executor_holds_and_ends_transfers() -> None:
    executor = ScriptedExecutor({})
    assert scripted(executor, UP) == [2]
    executor.hold_transfers()
    third, fourth = transfer(3, Tier.HOST, Tier.ARENA), transfer(4, Tier.HOST, Tier.ARENA)
    assert scripted(executor, third, fourth, DOWN) == [1]
    assert scripted(executor, waits=True) == [3]
    executor.end_transfers("torn")
    result = executor.run(Batch(step=0, rows=()))
    assert result.transfers == (TransferResult(transfer_id=4, error="torn"),)
    assert not executor.in_flight
    with pytest.raises(InvariantError, match="none is on its way"):
        scripted(executor, waits=True)

"""Tiers behind an arena, moved by hand: what goes down, comes up, fails, is given up and is found again."""

from __future__ import annotations

from milepost.memory.page_states import PageState
from milepost.prefix.explain import explain
from milepost.prefix.ghosts import Ghosts
from milepost.prefix.plan import Reason
from milepost.prefix.tiers import Tiers
from milepost.types import Tier, Transfer, TransferResult
from tests.prefix.shelf import Shelf
from tests.prefix.test_index import tokens_of


class Stack:
    """Three shelves as tiers; transfers end when the test says so."""

    def __init__(self, *, disk: bool = False, host_pages: int = 100, least_gain: int = 1) -> None:
        self.now = 1.0
        self.arena, self.host, self.disk = Shelf(), Shelf(num_pages=host_pages), Shelf()
        self.tiers = Tiers(
            self.arena.space(Tier.ARENA),
            self.host.space(Tier.HOST),
            self.disk.space(Tier.DISK) if disk else None,
            lambda: self.now,
            least_gain=least_gain,
        )
        self.arena.evictor.before_drop = self.tiers.demote

    def send(self) -> tuple[Transfer, ...]:
        return self.tiers.take_transfers()

    def end(self, *transfers: Transfer, error: str | None = None) -> list[int]:
        results = [TransferResult(transfer_id=one.transfer_id, error=error) for one in transfers]
        loads = self.tiers.ended(results)
        self.check()
        return loads

    def fetch(self, tokens: tuple[int, ...], hit: int = 0) -> int | None:
        return self.tiers.fetch(self.arena.chain(tokens), tokens, hit)

    def settle(self) -> None:
        """Let everything end that is under way and that follows from it."""
        while self.tiers.has_transfers or self.tiers.is_busy:
            self.end(*self.send())

    def check(self) -> None:
        self.tiers.check()
        for shelf in (self.arena, self.host, self.disk):
            shelf.check()

    def give_up(self, tokens: tuple[int, ...]) -> None:
        """The arena evicts the snapshot behind these tokens, and all its KV that nothing else needs."""
        snapshot = self.arena.snapshot(tokens)
        self.tiers.demote(snapshot)
        self.arena.evictor.drop(snapshot)
        while self.arena.index.drop_bare() is not None:
            pass


TEXT = tokens_of(14)


def test_a_demotion_takes_the_whole_path_and_the_next_one_only_what_is_new() -> None:
    stack = Stack()
    table = stack.arena.put(TEXT, 10, 14)
    early, late = stack.arena.snapshot(TEXT[:10]), stack.arena.snapshot(TEXT)
    stack.tiers.demote(early)
    stack.tiers.demote(late)
    first, second = stack.send()
    assert [read for read, _ in first.pages] == [*table[:3], *early.pages]
    # Up to the unit end at 8 the host has the KV; the block behind it was filled in part only.
    assert [read for read, _ in second.pages] == [*table[2:], *late.pages]
    assert {first.target, second.target} == {Tier.HOST}
    assert (stack.host.hit((*TEXT, 1)), stack.host.hit(TEXT)) == (14, 10)
    stack.end(first, second)
    stack.tiers.demote(late)
    assert not stack.tiers.has_transfers, "it is there already"
    stats = stack.tiers.stats()[0]
    assert (stats.stores, stats.snapshots, stats.used_pages) == (2, 2, 3 + 2 + 2 + 2)


def test_without_room_nothing_is_taken() -> None:
    stack = Stack(host_pages=6)
    stack.arena.put(TEXT, 14)
    stack.tiers.demote(stack.arena.snapshot(TEXT))
    assert not stack.tiers.has_transfers
    assert stack.host.pool.num_free == 5
    stack.arena.put(TEXT[:8], 8)
    stack.tiers.demote(stack.arena.snapshot(TEXT[:8]))
    assert len(stack.send()[0].pages) == 4
    stack.check()


def test_a_host_page_that_changes_hands_before_the_step_is_copied_once() -> None:
    """Of two demotions in one step the second may take the first one's pages."""
    stack = Stack(host_pages=5)
    one, other = tokens_of(8, 1), tokens_of(8, 2)
    for text in (one, other):
        stack.arena.put(text, 8)
        stack.tiers.demote(stack.arena.snapshot(text))
    (sent,) = stack.send()
    assert stack.host.hit((*other, 1)) == 8
    assert stack.host.hit((*one, 1)) == 0
    assert sorted(written for _, written in sent.pages) == [1, 2, 3, 4]
    assert {read for read, _ in sent.pages} >= set(stack.arena.snapshot(other).pages)


def test_a_load_is_published_when_it_has_ended_and_not_before() -> None:
    stack = Stack()
    stack.arena.put(TEXT, 14)
    stack.give_up(TEXT)
    stack.end(*stack.send())
    prompt = (*TEXT, 1)
    transfer_id = stack.fetch(prompt)
    assert transfer_id is not None
    assert stack.fetch(prompt) == transfer_id, "the same load serves whoever asks"
    assert stack.tiers.is_loading
    assert stack.arena.hit(prompt) == 0
    (load,) = stack.send()
    assert (load.transfer_id, load.source, load.target) == (transfer_id, Tier.HOST, Tier.ARENA)
    received = [page for _, page in load.pages]
    assert {stack.arena.pool.state_of(page) for page in received} == {PageState.RECEIVING}
    assert stack.end(load) == [transfer_id]
    assert stack.arena.hit(prompt) == 14
    assert not stack.tiers.is_busy
    stats = stack.tiers.stats()[0]
    assert (stats.loads, stats.hit_tokens, stats.failures) == (1, 14, 0)


def test_a_load_must_save_enough_and_find_room() -> None:
    stack = Stack(least_gain=6)
    stack.arena.put(TEXT, 14)
    stack.give_up(TEXT)
    stack.end(*stack.send())
    prompt = (*TEXT, 1)
    assert stack.fetch(prompt, hit=9) is None
    chain = stack.arena.chain(prompt)
    assert [stack.tiers.reach(chain, prompt, hit) for hit in (0, 8, 9)] == [(14, 14), (14, 14), (0, 14)]
    assert stack.tiers.reach(stack.arena.chain(TEXT[:5]), TEXT[:5], 0) == (0, 0)
    assert stack.fetch(TEXT[:5]) is None
    lease = stack.arena.pool.open("running")
    stack.arena.pool.reserve(lease, stack.arena.pool.num_free - 5)
    assert stack.fetch(prompt) is None
    stack.check()
    assert stack.host.pool.num_evictable == stack.host.pool.counts().cached, "nothing is held any more"
    taken = stack.arena.pool.free_pages()
    assert len(taken) == 5


def test_what_could_not_be_read_is_not_tried_again() -> None:
    stack = Stack()
    stack.arena.put(TEXT, 8, 14)
    stack.tiers.demote(stack.arena.snapshot(TEXT[:8]))
    stack.give_up(TEXT)
    stack.arena.index.clear()
    stack.end(*stack.send())
    first = stack.fetch((*TEXT, 1))
    assert stack.end(*stack.send(), error="torn") == [first]
    assert stack.arena.hit((*TEXT, 1)) == 0
    assert stack.arena.pool.counts().tainted == 6
    assert stack.host.standing == [8]
    assert stack.tiers.stats()[0].failures == 1
    assert stack.fetch((*TEXT, 1)) is not None, "the one before it may still be good"
    stack.settle()
    assert stack.arena.hit((*TEXT, 1)) == 8


def test_a_reset_gives_loads_up_and_their_pages_stay_until_they_land() -> None:
    stack = Stack()
    stack.arena.put(TEXT, 14)
    stack.give_up(TEXT)
    stack.end(*stack.send())
    load = stack.fetch((*TEXT, 1))
    (sent,) = stack.send()
    assert stack.tiers.reset() == [load]
    assert stack.arena.pool.counts().quarantined == 6
    assert (stack.tiers.is_busy, stack.tiers.is_loading) == (True, True)
    assert stack.end(sent) == [], "nobody waits for it any more"
    assert stack.arena.pool.counts().tainted == 6
    assert not stack.tiers.is_busy
    assert stack.arena.hit((*TEXT, 1)) == 0


def test_a_reset_forgets_what_was_being_read_as_well() -> None:
    """What a transfer reads can't be dropped under it; it goes when the transfer has landed."""
    for error in (None, "torn"):
        stack = Stack(disk=True)
        stack.arena.put(TEXT, 14)
        stack.give_up(TEXT)
        stack.settle()
        stack.fetch((*TEXT, 1))
        other = tokens_of(9, 1)
        stack.arena.put(other, 9)
        stack.tiers.demote(stack.arena.snapshot(other))
        sent = stack.send()
        assert {one.target for one in sent} == {Tier.HOST, Tier.ARENA, Tier.DISK}
        stack.tiers.reset()
        stack.end(*sent, error=error)
        stack.settle()
        assert stack.fetch((*TEXT, 1)) is None
        assert stack.fetch((*other, 1)) is None
        for shelf in (stack.host, stack.disk):
            assert len(shelf.index) == 0
            assert shelf.pool.num_free == shelf.pool.num_usable


def test_a_reset_makes_the_disk_forget_and_waits_for_it() -> None:
    stack = Stack(disk=True)
    assert stack.tiers.reset() == []
    assert stack.tiers.has_transfers
    (sent,) = stack.send()
    assert (sent.source, sent.target, sent.pages) == (Tier.DISK, Tier.DISK, ())
    busy = [stack.tiers.is_busy]  # an engine that ended now would leave everything on disk
    stack.end(sent)
    assert [*busy, stack.tiers.is_busy] == [True, False]
    stack.tiers.reset()
    stack.end(*stack.send(), error="read-only")
    assert stack.tiers.stats()[1].failures == 1


def test_a_copy_to_the_host_that_failed_makes_it_forget() -> None:
    """The host was told at once, and others may hang below what is not there."""
    stack = Stack(disk=True)
    stack.arena.put(TEXT, 14)
    stack.give_up(TEXT)
    load = stack.fetch((*TEXT, 1))
    down, *others = stack.send()
    assert down.target is Tier.HOST
    assert stack.end(down, error="no such page") == [load]
    stack.end(*others)
    stack.settle()
    assert stack.fetch((*TEXT, 1)) is None
    assert (len(stack.host.index), len(stack.disk.index)) == (0, 0)


def test_with_a_disk_everything_goes_through_one_after_the_other() -> None:
    stack = Stack(disk=True)
    assert stack.tiers.writes_through
    assert not Stack().tiers.writes_through
    texts = [tokens_of(8, seed) for seed in range(3)]
    for text in texts:
        stack.arena.put(text, 8)
        stack.tiers.demote(stack.arena.snapshot(text))
    spills = [one for one in stack.send() if one.target is Tier.DISK]
    assert len(spills) == 1
    assert spills[0].record
    stack.end(*spills)
    assert stack.disk.hit((*texts[0], 1)) == 8
    stack.settle()
    assert stack.tiers.stats()[1].stores == 3
    assert all(stack.disk.hit((*text, 1)) == 8 for text in texts)


def test_a_spill_that_fails_leaves_nothing_and_the_next_one_goes_on() -> None:
    stack = Stack(disk=True)
    texts = [tokens_of(8, seed) for seed in range(2)]
    for text in texts:
        stack.arena.put(text, 8)
        stack.tiers.demote(stack.arena.snapshot(text))
    (spill,) = [one for one in stack.send() if one.target is Tier.DISK]
    stack.end(spill, error="disk full")
    assert stack.disk.pool.counts().tainted == 0, "a slot needs no scrub"
    stack.settle()
    assert stack.disk.standing == [8]
    assert stack.tiers.stats()[1].failures == 1
    assert stack.host.standing == [8, 8]


def test_a_disk_that_takes_nothing_is_left_alone_for_a_while() -> None:
    stack = Stack(disk=True)

    def spills(number: int, error: str | None) -> int:
        """Writes to disk that come of one more snapshot, all with the same end."""
        text = tokens_of(8, number)
        stack.arena.put(text, 8)
        stack.tiers.demote(stack.arena.snapshot(text))
        count = 0
        while sent := stack.send():
            count += sum(one.target is Tier.DISK for one in sent)
            for one in sent:
                stack.end(one, error=error if one.target is Tier.DISK else None)
        return count

    assert [spills(number, "disk full") for number in range(6)] == [1, 1, 1, 0, 0, 0]
    stack.now += 29
    assert spills(6, None) == 0
    stack.now += 2
    assert spills(7, "disk full") == 1, "tried once"
    assert spills(8, None) == 0
    stack.now += 31
    assert [spills(number, None) for number in (9, 10)] == [1, 1]
    assert [spills(number, "full again") for number in (11, 12, 13, 14)] == [1, 1, 1, 0]
    assert stack.tiers.stats()[1].failures == 7
    assert stack.host.hit((*tokens_of(8, 4), 1)) == 8, "what the disk did not take is in the host"


def test_what_was_evicted_from_the_host_before_its_turn_is_not_spilled() -> None:
    stack = Stack(disk=True)
    texts = [tokens_of(8, seed) for seed in range(2)]
    for text in texts:
        stack.arena.put(text, 8)
        stack.tiers.demote(stack.arena.snapshot(text))
    stack.host.evictor.drop(stack.host.snapshot(texts[1]))
    stack.settle()
    assert stack.disk.hit((*texts[0], 1)) == 8
    assert stack.disk.hit((*texts[1], 1)) == 0


def test_what_was_evicted_is_not_remembered_while_a_spill_hangs() -> None:
    stack = Stack(disk=True, host_pages=20)
    for seed in range(100):
        text = tokens_of(8, seed)
        stack.arena.put(text, 8)
        stack.give_up(text)
        assert len(stack.tiers._to_spill) <= max(16, 2 * stack.host.index.num_snapshots + 1)
    stack.settle()
    assert stack.tiers.stats()[1].stores == stack.host.index.num_snapshots


def test_the_deepest_tier_of_all_is_taken_and_every_tier_is_shown() -> None:
    stack = Stack(disk=True)
    stack.arena.put(TEXT, 4, 8, 14)
    stack.tiers.demote(stack.arena.snapshot(TEXT[:8]))
    stack.tiers.demote(stack.arena.snapshot(TEXT))
    stack.settle()
    stack.host.evictor.drop(stack.host.snapshot(TEXT))
    stack.host.index.drop_bare()
    stack.arena.index.drop_snapshot(stack.arena.snapshot(TEXT[:8]))
    stack.arena.index.drop_snapshot(stack.arena.snapshot(TEXT))
    chain = stack.arena.chain(TEXT)
    found = stack.arena.index.find(chain, TEXT)
    near = explain(stack.arena.index, Ghosts(4), chain, TEXT, found).snapshots
    shown = stack.tiers.path_snapshots(chain, TEXT, near)
    assert [(one.position, one.tier) for one in shown] == [(4, "arena"), (8, "host"), (14, "disk")]
    assert {one.reason for one in shown} == {Reason.TURN.value}
    stack.fetch((*TEXT, 1))
    assert [(one.source, one.target) for one in stack.send()] == [(Tier.DISK, Tier.ARENA)]


def test_what_is_found_on_disk_can_be_loaded() -> None:
    before = Stack(disk=True)
    before.arena.put(TEXT, 8, 14)
    for text in (TEXT[:8], TEXT):
        before.tiers.demote(before.arena.snapshot(text))
    entries = []
    while before.tiers.has_transfers or before.tiers.is_busy:
        sent = before.send()
        entries += [one for one in sent if one.target is Tier.DISK]
        before.end(*sent)
    after = Stack(disk=True)
    assert after.tiers.recover(Entry(one) for one in entries) == 2
    assert after.tiers.stats()[1].snapshots == 2
    after.fetch((*TEXT, 1))
    after.settle()
    assert after.arena.hit((*TEXT, 1)) == 14
    assert Stack().tiers.recover(Entry(one) for one in entries) == 0, "there is no disk"


class Entry:
    """What a disk would find of a transfer."""

    def __init__(self, transfer: Transfer) -> None:
        self.record = transfer.record
        self.pages = [written for _, written in transfer.pages]

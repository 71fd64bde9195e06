"""The oracle: places snapshots and evicts as one can who has read the rest of the trace.

`clairvoyant` is a snapshot policy and an eviction policy, known to the simulator alone. Everything else
stays as it is: scheduler, index and evictor are the engine's, so what is hit could have been hit. It says
how much better knowing one's traffic could be at most, nearly.

**Policy**: a request leaves a snapshot exactly where a later one would resume: where the longest prefix
ends that the later one shares with any before it. Without a limit of memory that reaches the prefix bound,
what a model without a recurrent state would reuse, to the token and with the fewest snapshots.

**Eviction**: after Belady's rule (what is used last goes first), which is optimal for pages of one size and
one worth. Snapshots have neither, so

    worth = (tokens from the snapshot before / pages that come free) / requests until its next use

and what is never used again goes at once. The next use of a snapshot is the next request that shares its
prefix, unless that one finds a deeper snapshot on its way; then it is the next one that will resume just
here. In queueing mode the order of arrival stands for the order of service.

**Nearly a bound**: the best order is NP-hard to find when sizes and worths differ (weighted caching with
general sizes holds the knapsack problem), and snapshots are not even independent: the one behind is worth
more once the one before is gone, and what a request could not resume from it may write again. A better
oracle than this is thinkable at small budgets. As soon as it reaches the prefix bound none is.
Other orders that were tried are in docs/log.md: none was better at all budgets.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import msgspec

from milepost.model_spec import ModelSpec
from milepost.prefix.eviction import Candidate, EvictionPolicy, Unlearning
from milepost.prefix.keys import Key
from milepost.prefix.nodes import Snapshot
from milepost.prefix.plan import PlannedSnapshot, PromptView, Reason, SnapshotPlan, SnapshotPolicy
from milepost.sim.clairvoyant.future_uses import NEVER, FutureUses
from milepost.sim.replay.setup import Parts, parts_of
from milepost.sim.runs import RunSpec
from milepost.sim.traces.trace import Trace

__all__ = ["CLAIRVOYANT", "Clairvoyant", "clairvoyant_parts"]

CLAIRVOYANT = "clairvoyant"

_AWAITED = (Reason.PREEMPTED, Reason.JUNCTION)  # somebody in the queue wants it


def clairvoyant_parts(spec: RunSpec, trace: Trace, model: ModelSpec) -> Parts:
    """As `milepost.sim.replay.setup.parts_of`; the policy and the eviction may also be "clairvoyant".

    Raises:
        ConfigError: as `parts_of`, or the trace is not one of blocks whose ids say what is equal.
    """
    places, evicts = spec.policy == CLAIRVOYANT, spec.eviction == CLAIRVOYANT
    if not places and not evicts:
        return parts_of(spec, trace, model)
    known = msgspec.structs.replace(
        spec, policy="none" if places else spec.policy, eviction="lru" if evicts else spec.eviction
    )
    parts = parts_of(known, trace, model)
    oracle = Clairvoyant(FutureUses(trace))
    return msgspec.structs.replace(
        parts,
        policy=oracle.policy() if places else oracle.follow(parts.policy),
        eviction=oracle.eviction() if evicts else parts.eviction,
        notes=(*parts.notes, "clairvoyant knows the rest of the trace: a bound, nothing that could be run."),
    )


class Clairvoyant:
    """Makes policies that share one view of the future and know where in it they are.

    Args:
        future: of the trace that is replayed, once.

    Attributes:
        now: number of the last request that has begun; -1 before the first.
    """

    def __init__(self, future: FutureUses) -> None:
        self.future = future
        self.now = -1

    def policy(self) -> SnapshotPolicy:
        """Places snapshots where later requests resume."""
        return self.follow(_Places(self.future))

    def eviction(self) -> EvictionPolicy:
        """Evicts by next use; needs a policy of `policy` or `follow` in the same run."""
        return _NextUse(self)

    def follow(self, policy: SnapshotPolicy) -> SnapshotPolicy:
        """`policy` as it is; what it is asked tells how far the trace has come."""
        return _Followed(policy, self)


class _Followed:
    """Notes which request is served and passes everything on."""

    def __init__(self, policy: SnapshotPolicy, oracle: Clairvoyant) -> None:
        self._oracle = oracle
        self._policy = policy
        self.plan = policy.plan

    @property
    def name(self) -> str:
        return self._policy.name

    def observe(self, view: PromptView) -> None:
        self._oracle.now = max(self._oracle.now, self._oracle.future.number[view.request_id])
        self._policy.observe(view)


class _Places:
    """The snapshot policy."""

    name = CLAIRVOYANT

    def __init__(self, future: FutureUses) -> None:
        self._future = future

    def plan(self, view: PromptView) -> SnapshotPlan:
        """Where later requests would resume; two prompts part there, if only at one's end."""
        places = self._future.places(self._future.number[view.request_id], view.hit)
        return SnapshotPlan(points=tuple(PlannedSnapshot(place, Reason.BRANCH) for place, _ in places))

    def observe(self, view: PromptView) -> None:
        """All is known."""


class _Prospect:
    """What is known of the uses of one prefix.

    Attributes:
        through: a request that shares it and has begun, or the first that does.
        use: the first request after the present that could resume from it; `NEVER` for none.
        later: if that one finds `deeper`, the next one that resumes just here.
        deeper: a snapshot that `use` would rather take, or None.
        alone: whether there is known to be none.
    """

    __slots__ = ("alone", "deeper", "later", "through", "use")

    def __init__(self, through: int) -> None:
        self.through = through
        self.use = -1
        self.later = NEVER
        self.deeper: Snapshot | None = None
        self.alone = False


class _NextUse(Unlearning):
    """The eviction policy. It is told what is written, and finds out by itself what was evicted."""

    name = CLAIRVOYANT

    def __init__(self, oracle: Clairvoyant) -> None:
        self._oracle = oracle
        self._future = oracle.future
        self._size = oracle.future.block_size
        self._prospects: dict[Key, _Prospect] = {}
        # Snapshots by the id of the block in which they end, and these ids in order. Some are gone.
        self._standing: dict[int, Snapshot] = {}
        self._ids: list[int] = []

    def worth(self, candidate: Candidate, now: float) -> float:  # noqa: ARG002 - it counts in requests
        """Tokens that a page saves, over the requests until then; 0 if nobody will come."""
        assert isinstance(candidate, Snapshot)  # only that has a key
        wait = self._next_use(candidate) - self._oracle.now
        return 0.0 if wait > NEVER // 2 else candidate.gap / ((candidate.freed_pages or 1) * max(wait, 1))

    def written(self, candidate: Candidate, now: float) -> None:  # noqa: ARG002 - the protocol's signature
        """Whoever looks above it may find it now."""
        assert isinstance(candidate, Snapshot)
        if candidate.reason is Reason.SPARE:
            return  # far too many, and the evictor asks nobody about them
        block_id = self._block_id(candidate)
        if block_id not in self._standing:
            insort(self._ids, block_id)
        self._standing[block_id] = candidate
        above = candidate.before
        while above is not None:
            prospect = self._prospects.get(above.node.key)
            if prospect is not None:
                prospect.alone = False
            above = above.before

    def _block_id(self, snapshot: Snapshot) -> int:
        key = snapshot.node.key
        assert isinstance(key, int)  # keys of blocks are numbers, see `milepost.sim.replay.keys`
        return key // self._size

    def _next_use(self, snapshot: Snapshot) -> int:
        present, position = self._oracle.now, snapshot.position
        prospect = self._prospects.get(snapshot.node.key)
        if prospect is None:
            prospect = self._prospects[snapshot.node.key] = _Prospect(self._passing(snapshot))
        if snapshot.reason in _AWAITED and not snapshot.hits:
            return present + 1
        if prospect.use <= present:
            self._advance(prospect, position)
        use = prospect.use
        if use == NEVER or prospect.alone:
            return use
        if prospect.deeper is None or not prospect.deeper.stands:
            limit = self._future.resumes[use]
            prospect.deeper = self._deepest(use, position, limit) if limit > position else None
            if prospect.deeper is None:
                prospect.alone = True
                return use
            prospect.later = self._future.next_resuming(self._block_id(snapshot), use)
        return prospect.later

    def _passing(self, snapshot: Snapshot) -> int:
        """A request that shares the snapshot's prefix: the present one, or the first of all."""
        blocks = -(-snapshot.position // self._size)
        prompt, block_id = self._future.prompts[max(self._oracle.now, 0)], self._block_id(snapshot)
        if blocks * self._size <= prompt.num_prompt and prompt.block_id(blocks - 1) == block_id:
            return max(self._oracle.now, 0)
        return self._future.first_through(block_id)

    def _advance(self, prospect: _Prospect, position: int) -> None:
        future, present, use = self._future, self._oracle.now, prospect.through
        while use != NEVER and (use <= present or future.resumes[use] < position):
            prospect.through = use
            use = future.next_through(use, position)
        prospect.use = use
        prospect.deeper = None
        prospect.alone = False

    def _deepest(self, number: int, low: int, high: int) -> Snapshot | None:
        """The deepest snapshot on the path of a prompt above `low` tokens, at most at `high`."""
        first, last, ids = -(-low // self._size), high // self._size, self._ids
        depth = 0
        found: list[tuple[int, int]] = []
        for run in self._future.prompts[number].runs:
            if depth >= last:
                break
            found.append((run.start + max(first - depth, 0), run.start + min(last - depth, len(run))))
            depth += len(run)
        for start, stop in reversed(found):
            place = bisect_left(ids, stop) - 1
            while place >= 0 and ids[place] >= start:
                snapshot = self._standing[ids[place]]
                if snapshot.stands:
                    return snapshot
                del self._standing[ids.pop(place)]
                place -= 1
        return None

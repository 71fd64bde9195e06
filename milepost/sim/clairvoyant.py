"""draft"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
import os

import msgspec

from milepost.prefix.eviction import Candidate, EvictionPolicy
from milepost.prefix.nodes import Snapshot
from milepost.prefix.plan import PlannedSnapshot, PromptView, Reason, SnapshotPlan, SnapshotPolicy
from milepost.sim.future_uses import NEVER, FutureUses
from milepost.sim.runs import RunSpec
from milepost.sim.setup import Parts
from milepost.sim.traces.trace import Trace

RANK = os.environ.get("RANK", "density")
ADMIT = float(os.environ.get("ADMIT", "0"))
DT = os.environ.get("DT", "requests")
VIA = os.environ.get("VIA", "1") == "1"


class Present:
    def __init__(self, future: FutureUses) -> None:
        self.future = future
        self.number = -1
        self.threshold = 0.0


class FollowedPolicy:
    def __init__(self, policy, present):
        self._policy = policy
        self._present = present

    @property
    def name(self):
        return self._policy.name

    def observe(self, view):
        self._present.number = self._present.future.number[view.request_id]
        self._policy.observe(view)

    def plan(self, view):
        return self._policy.plan(view)


class ClairvoyantPolicy:
    name = "clairvoyant"

    def __init__(self, present, state_pages=0, bs=1):
        self._present = present
        self._state_pages = state_pages
        self._bs = bs

    def observe(self, view):
        pass

    def plan(self, view):
        pr = self._present
        f = pr.future
        n = f.number[view.request_id]
        pts = []
        last = view.hit
        for position, following in f.places(n, view.hit):
            if ADMIT and pr.threshold:
                dt = pr.wait(following)
                d = pr.rank(position - last, self._state_pages + (position - last) / self._bs, dt)
                if d < ADMIT * pr.threshold:
                    continue
            pts.append(PlannedSnapshot(position, Reason.BRANCH))
            last = position
        return SnapshotPlan(points=tuple(pts))


class _Entry:
    __slots__ = ("through", "use", "alone", "second")

    def __init__(self, through):
        self.through = through
        self.use = -1
        self.second = -1


class ClairvoyantEviction:
    name = "clairvoyant"

    def __init__(self, present):
        self._present = present
        present.wait = self.wait
        present.rank = self.rank
        self._entries: dict[int, _Entry] = {}
        self._standing: dict[int, Snapshot] = {}
        self._ids: list[int] = []
        self._last = None
        self._last_worth = 0.0
        f = present.future
        self._size = f.block_size
        self._pace = (f.arrivals[-1] - f.arrivals[0]) / len(f.arrivals)

    def wait(self, use):
        f, now = self._present.future, self._present.number
        if DT == "requests":
            return use - now
        return f.arrivals[use] - f.arrivals[now] + self._pace

    def rank(self, gap, pages, dt):
        if RANK == "density":
            return gap / (pages or 1) / dt
        if RANK == "sqrt":
            return (gap / (pages or 1)) ** 0.5 / dt
        if RANK == "density2":
            return (gap / (pages or 1)) / dt**0.5
        if RANK == "square":
            return (gap / (pages or 1)) / dt**2
        if RANK == "time":
            return 1 / dt
        if RANK == "saved":
            return gap / dt
        raise ValueError

    def worth(self, c, now):
        if self._last is not None and not self._last.stands:
            if self._last_worth:
                self._present.threshold = self._last_worth
        use = self.next_use(c)
        w = 0.0 if use == NEVER else self.rank(c.gap, c.freed_pages, self.wait(use))
        self._last, self._last_worth = c, w
        return w

    def next_use(self, c):
        f = self._present.future
        now = self._present.number
        node = c.node
        block_id = node.key // self._size
        p = node.position
        entry = self._entries.get(block_id)
        if entry is None:
            entry = self._entries[block_id] = _Entry(f.first_through(block_id))
        use = entry.use
        if use <= now:
            use = entry.through
            while use <= now or f.resumes[use] < p:
                if use <= now: entry.through = use
                use = f.next_through(use, p)
                if use == NEVER:
                    break
            entry.use = use
        if use == NEVER:
            return NEVER
        if f.resumes[use] == p or not VIA or not self.deeper(use, p, f.resumes[use]):
            return use
        return f.next_resuming(block_id, use)

    def deeper(self, use, p, limit):
        size = self._size
        depth = limit // size
        first = p // size
        end = 0
        prompt = self._present.future.prompts[use]
        ids = self._ids
        starts = []
        for run in prompt.runs:
            if end >= depth:
                break
            starts.append((end, run))
            end += len(run)
        for start, run in reversed(starts):
            if start + len(run) <= first:
                break
            lo = run.start + max(0, first - start)
            hi = run.start + min(len(run), depth - start)
            k = bisect_left(ids, hi) - 1
            while k >= 0 and ids[k] >= lo:
                b = ids[k]
                if self._standing[b].stands:
                    return True
                del ids[k]
                del self._standing[b]
                k -= 1
        return False

    def written(self, c, now):
        b = c.node.key // self._size
        if b not in self._standing:
            insort(self._ids, b)
        self._standing[b] = c
        e = self._entries.get(b)
        n = self._present.number
        f = self._present.future
        if e is None:
            p = f.prompts[n]
            blocks = c.position // self._size
            if p.num_prompt // self._size >= blocks and p.block_id(blocks - 1) == b:
                self._entries[b] = _Entry(n)

    def consumed(self, c, now):
        pass


def clairvoyant_parts(parts, spec, trace, future):
    present = Present(future)
    policy = parts.policy
    if spec.policy == "clairvoyant":
        policy = ClairvoyantPolicy(present, parts.layout.pages_per_state, parts.layout.block_size)
    policy = FollowedPolicy(policy, present)
    ev = parts.eviction
    if spec.eviction == "clairvoyant":
        ev = ClairvoyantEviction(present)
    return msgspec.structs.replace(parts, policy=policy, eviction=ev)

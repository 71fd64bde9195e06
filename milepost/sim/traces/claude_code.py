"""Sessions of a coding agent: a session a line, an id for each 64 tokens.

    {"id": "trace_0003", "block_size": 64, "hash_id_scope": "local", "requests": [
      {"t": 3.2, "in": 19226, "out": 173, "hash_ids": [1, 2, ..., 300], ...},
      {"t": 134.2, "agent_id": "agent_001", "duration_ms": 126015, "requests": [...]}]}

Times are seconds within the session, so when sessions start is drawn. Ids are chained; those of scope
"local" mean nothing outside of their session. Only full blocks have one. They may be given as
"hash_ranges", inclusive pairs [first, last], instead of "hash_ids". A file may also hold one session only,
and a folder one file a session, as they were published.

What a sub-agent's entry does not say can be seen in the data: the `t` of its requests count from its own
beginning (they start with 0). The entry's own `t` is the moment in which it reports back, `duration_ms`
after it began: so computed, each begins within a second after one of the parent's answers, and agents that
were started together begin together. One that runs in the background has no duration, and begins at `t`.
Source: github.com/callanjfox/kv-cache-tester, traces.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from milepost.errors import TraceError
from milepost.sim.traces.block_tokens import BlockTokens, runs_of
from milepost.sim.traces.draft import Draft, lacks_last
from milepost.sim.traces.fields import brief, input_tokens, output_tokens, seconds
from milepost.sim.traces.options import TraceOptions
from milepost.sim.traces.rows import Rows
from milepost.sim.traces.trace import TraceRequest

__all__ = ["BLOCK_SIZE", "read_claude_code"]

BLOCK_SIZE = 64
_MAX_ID = 1 << 48
# Ids of blocks that have none in the file: above what sessions take.
_FRESH = 1 << 56
_SCOPES = ("local", "global")


class _Entry(msgspec.Struct):
    """A request, or a sub-agent with requests of its own."""

    t: float
    tokens_in: int | None = msgspec.field(name="in", default=None)
    out: int = 0
    hash_ids: list[int] | None = None
    hash_ranges: list[tuple[int, int]] | None = None
    duration_ms: float | None = None
    agent_id: str | int | None = None
    requests: list[_Entry] | None = None


class _Session(msgspec.Struct):
    requests: list[_Entry]
    id: str | int = ""
    block_size: int = BLOCK_SIZE
    hash_id_scope: str = "local"


def read_claude_code(rows: Rows, options: TraceOptions) -> Draft:
    """Read all sessions and let them start at random.

    Raises:
        TraceError: a bad row.
    """
    reader = _Reader(options)
    rows.each(msgspec.json.Decoder(_Session), reader.take)
    draft = reader.draft
    if draft.requests:
        draft.notes.append(
            f"Times are known within a session only: {reader.num_sessions:,} sessions start at random, "
            f"{options.session_rate:.4g} a second (seed {options.seed})."
        )
    return draft


class _Reader:
    def __init__(self, options: TraceOptions) -> None:
        self.draft = Draft(BLOCK_SIZE, in_order=False)
        self.num_sessions = 0
        self._rate = options.session_rate
        self._random = random.Random(options.seed)
        self._start = 0.0
        self._next_id = 0  # where the ids of the next session of scope "local" begin
        self._fresh = _FRESH
        self._scope = ""
        self._known: set[str] = set()

    def take(self, session: _Session) -> None:
        draft = self.draft
        name = self._check(session)
        base = self._next_id if session.hash_id_scope == "local" else 0
        read = _SessionReader(name, session.block_size, base, self._fresh)
        read.walk(session.requests, 0.0, name)
        if not read.requests:
            raise TraceError("a session must hold at least one request. Given: none")
        # From here on nothing can be wrong any more.
        self._start += self._random.expovariate(self._rate)
        self._next_id, self._fresh, self._scope = read.next_id, read.fresh, session.hash_id_scope
        self._known.add(name)
        self.num_sessions += 1
        draft.block_size = session.block_size
        draft.num_empty += read.num_empty
        draft.requests += read.finished(self._start)

    def _check(self, session: _Session) -> str:
        name = str(session.id) or f"session-{self.num_sessions + 1}"
        if name in self._known:
            raise TraceError(f"a session's id must be its own. Given: {brief(name)}, a second time")
        if session.hash_id_scope not in _SCOPES:
            raise TraceError(f"hash_id_scope must be local or global. Given: {brief(session.hash_id_scope)}")
        if self._scope not in ("", session.hash_id_scope):
            raise TraceError(
                f"hash_id_scope must be the same in all sessions, {self._scope}. "
                f"Given: {session.hash_id_scope}"
            )
        if not 2 <= session.block_size <= 1 << 20:
            raise TraceError(
                f"block_size must be from 2 to 1,048,576 tokens. Given: {brief(session.block_size)}"
            )
        if self.draft.requests and session.block_size != self.draft.block_size:
            raise TraceError(
                f"block_size must be the same in all sessions, {self.draft.block_size}. "
                f"Given: {brief(session.block_size)}"
            )
        return name


class _SessionReader:
    """One session's requests, by their times within it."""

    def __init__(self, name: str, block_size: int, base: int, fresh: int) -> None:
        self.requests: list[tuple[float, str, BlockTokens, int]] = []
        self.next_id = base
        self.fresh = fresh
        self.num_empty = 0
        self._name = name
        self._block_size = block_size
        self._base = base
        self._num_agents = 0

    def walk(self, entries: Sequence[_Entry], start: float, agent: str) -> None:
        """Take requests whose times count from `start`."""
        for place, entry in enumerate(entries):
            at = start + seconds("t", entry.t)
            if entry.requests is not None:
                self._num_agents += 1
                name = entry.agent_id if entry.agent_id is not None else f"agent-{self._num_agents}"
                took = 0.0 if entry.duration_ms is None else seconds("duration_ms", entry.duration_ms, 1e3)
                self.walk(entry.requests, max(start, at - took), f"{agent}/{name}")
                continue
            if entry.tokens_in is None:
                raise TraceError(f"request {place} of {agent} lacks its length, `in`, in tokens")
            self._request(entry, at, agent, entry.tokens_in)

    def _request(self, entry: _Entry, at: float, agent: str, tokens_in: int) -> None:
        num_prompt = input_tokens("in", tokens_in)
        num_output = output_tokens("out", entry.out)
        runs = [*_runs_of(entry, self._base)]
        if lacks_last(sum(map(len, runs)), num_prompt, self._block_size):
            runs.append(range(self.fresh, self.fresh + 1))
            self.fresh += 1
            named = runs[:-1]
        else:
            named = runs
        self.next_id = max([self.next_id, *(run.stop for run in named)])
        self.num_empty += num_output == 0
        prompt = BlockTokens(runs, num_prompt, self._block_size)
        self.requests.append((at, agent, prompt, max(1, num_output)))

    def finished(self, start: float) -> Iterator[TraceRequest]:
        """The requests of a session that begins at `start`, by arrival."""
        turns: dict[str, int] = {}
        for number, (at, agent, prompt, num_output) in enumerate(
            sorted(self.requests, key=lambda request: request[0])
        ):
            turn = turns.get(agent, 0)
            turns[agent] = turn + 1
            yield TraceRequest(
                request_id=f"{self._name}:{number}",
                arrival=start + at,
                prompt=prompt,
                num_output=num_output,
                message_ends=(prompt.num_prompt,),
                session=agent,
                turn=turn,
            )


def _runs_of(entry: _Entry, base: int) -> Iterator[range]:
    """A prompt's ids as runs, `base` higher."""
    if entry.hash_ranges is None:
        ids = entry.hash_ids or []
        if ids and not (min(ids) >= 0 and max(ids) < _MAX_ID):
            raise TraceError(
                f"hash_ids must be from 0 to {_MAX_ID:,}. Given: {brief(min(ids))} .. {brief(max(ids))}"
            )
        for run in runs_of(ids):
            yield range(run.start + base, run.stop + base)
        return
    if entry.hash_ids is not None:
        raise TraceError("a request has hash_ids or hash_ranges. Given: both")
    pending: range | None = None
    for first, last in entry.hash_ranges:
        if not 0 <= first <= last < _MAX_ID:
            raise TraceError(
                f"hash_ranges must be pairs of a first and a last id, 0 to {_MAX_ID:,}. "
                f"Given: [{brief(first)}, {brief(last)}]"
            )
        if pending is not None and pending.stop == first + base:
            pending = range(pending.start, last + 1 + base)
            continue
        if pending is not None:
            yield pending
        pending = range(first + base, last + 1 + base)
    if pending is not None:
        yield pending

"""Sessions of a coding agent."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import TraceError
from tests.sim.traces.files import SESSIONS, ids_of, jsonl, plain, raw_rows, read

FRESH = 1 << 56


def entry(t: float, tokens: int, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "s", "in": tokens, "out": 7} | more


def session(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": [*requests]} | more


def test_the_sample() -> None:
    trace = read(SESSIONS)
    entries = [entry for row in raw_rows(SESSIONS) for entry in row["requests"]]
    recorded = [request for entry in entries for request in entry.get("requests", [entry])]
    assert (trace.form, trace.block_size) == ("claude-code", 64)
    assert sorted(r.num_prompt for r in trace.requests) == sorted(request["in"] for request in recorded)
    names = {request.session for request in trace.requests}
    assert len(names) == 11  # six sessions, five sub-agents
    assert {"trace_0282", "trace_0282/agent_001", "trace_0291/agent_002"} <= names
    assert len({request.request_id for request in trace.requests}) == len(recorded)
    arrivals = [request.arrival for request in trace.requests]
    assert arrivals[0] == 0
    assert arrivals == sorted(arrivals)
    for name in names:
        turns = [request.turn for request in trace.requests if request.session == name]
        assert turns == [*range(len(turns))]
    assert trace.notes == (
        "Times are known within a session only: 6 sessions start at random, 0.01667 a second (seed 0).",
        "Requests that drew no token: 1. Each counts as drawing one.",
    )


def test_lists_of_ids_are_read_like_ranges(tmp_path: Path) -> None:
    """The form in which the sessions were published, and the one in which the sample ships."""
    rows = raw_rows(SESSIONS)
    for request in (
        request for row in rows for entry in row["requests"] for request in entry.get("requests", [entry])
    ):
        ranges = request.pop("hash_ranges")
        request["hash_ids"] = [block_id for first, last in ranges for block_id in range(first, last + 1)]
    assert plain(read(jsonl(tmp_path / "lists.jsonl", rows))) == plain(read(SESSIONS))


def test_ids_are_a_sessions_own(tmp_path: Path) -> None:
    """Two sessions that use the same numbers share nothing; partly filled blocks are nobody's."""
    rows = [
        session("a", entry(0, 128, hash_ids=[1, 2]), entry(1, 200, hash_ranges=[[1, 3]])),
        session("b", entry(0, 130, hash_ids=[1, 2]), entry(1, 192, hash_ranges=[[1, 2], [3, 3]])),
    ]
    trace = read(jsonl(tmp_path / "t.jsonl", rows), session_rate=1e-6)
    assert ids_of(trace) == [[1, 2], [1, 2, 3, FRESH], [5, 6, FRESH + 1], [5, 6, 7]]


def test_ids_of_a_global_scope_are_everybodys(tmp_path: Path) -> None:
    rows = [session(name, entry(0, 130, hash_ids=[1, 2]), hash_id_scope="global") for name in "ab"]
    trace = read(jsonl(tmp_path / "t.jsonl", rows))
    assert ids_of(trace) == [[1, 2, FRESH], [1, 2, FRESH + 1]]
    with pytest.raises(TraceError, match=r"line 2: hash_id_scope must be the same in all sessions, global"):
        read(jsonl(tmp_path / "u.jsonl", [rows[0], session("c", entry(0, 64, hash_ids=[1]))]))


def test_a_sub_agent_reports_back_when_its_entry_says(tmp_path: Path) -> None:
    agent = {"t": 60.0, "agent_id": "x", "duration_ms": 50_000}
    inner = [entry(0, 64, hash_ids=[9]), entry(20, 128, hash_ids=[9, 10])]
    late = {"t": 70.0, "agent_id": "y", "duration_ms": None, "requests": inner[:1]}
    row = session(
        "s", entry(5, 64, hash_ids=[1]), agent | {"requests": inner}, late, entry(65, 128, hash_ids=[1, 2])
    )
    trace = read(jsonl(tmp_path / "t.jsonl", [row]))
    found = [(request.session, request.turn, round(request.arrival, 6)) for request in trace.requests]
    # Arrivals count from the first request, which came after 5 seconds.
    assert found == [("s", 0, 0), ("s/x", 0, 5), ("s/x", 1, 25), ("s", 1, 60), ("s/y", 0, 65)]


def test_sub_agents_of_the_sample_begin_when_the_parent_was_answered() -> None:
    """What the reading of their times rests on: a tool call in an answer starts them, at once."""
    rows = {row["id"]: row for row in raw_rows(SESSIONS)}
    begun = {r.session: r.arrival for r in read(SESSIONS).requests if r.turn == 0}
    agents = [name for name in begun if "/" in name]
    assert len(agents) == 5
    for name in agents:
        parent = name.partition("/")[0]
        own = [request for request in rows[parent]["requests"] if "in" in request]
        answered = [begun[parent] - own[0]["t"] + request["t"] + request["api_time"] for request in own]
        assert min(abs(begun[name] - moment) for moment in answered) < 1
    # The three of one session were started together.
    together = [begun[name] for name in agents if name.startswith("trace_0282/")]
    assert max(together) - min(together) < 0.01


def test_sessions_start_at_random_and_keep_their_times(tmp_path: Path) -> None:
    rows = [session(str(i), *(entry(t, 64, hash_ids=[1]) for t in (0, 10, 12.5))) for i in range(400)]
    path = jsonl(tmp_path / "t.jsonl", rows)
    trace = read(path, session_rate=0.5, seed=3)
    assert plain(read(path, session_rate=0.5, seed=3)) == plain(trace)
    assert plain(read(path, session_rate=0.5, seed=4)) != plain(trace)
    starts = {r.session: r.arrival for r in trace.requests if r.turn == 0}
    for request in trace.requests:
        assert request.arrival - starts[request.session] == pytest.approx((0, 10, 12.5)[request.turn])
    gaps = [later - earlier for earlier, later in pairwise(sorted(starts.values()))]
    # Exponential with a mean of 2 s: mean and standard deviation agree; 5 standard errors of 399 draws.
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(2, abs=0.5)
    assert deviation == pytest.approx(2, abs=0.7)


def test_the_first_are_the_first_to_arrive(tmp_path: Path) -> None:
    rows = [session(name, entry(0, 64, hash_ids=[1]), entry(1e5, 64, hash_ids=[2])) for name in "ab"]
    trace = read(jsonl(tmp_path / "t.jsonl", rows), first=2)
    assert [request.session for request in trace.requests] == ["a", "b"]


def test_one_session_a_file_in_a_folder(tmp_path: Path) -> None:
    rows = [session(name, entry(0, 64, hash_ids=[1]), entry(3, 130, hash_ids=[1, 2])) for name in "ab"]
    for row in rows:
        (tmp_path / f"{row['id']}.json").write_text(json.dumps(row, indent=2), encoding="utf-8")
    one_file = jsonl(tmp_path.parent / "both.jsonl", rows)
    from_folder = read(tmp_path)
    assert plain(from_folder) == plain(read(one_file))
    assert from_folder.name == tmp_path.name


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (session("a", entry(-1, 64, hash_ids=[1])), "t must be a time from 0"),
        (session("a", entry(0, 64, hash_ids=[-1])), "hash_ids must be from 0"),
        (session("a", entry(0, 64, hash_ids=[1 << 60])), "hash_ids must be from 0"),
        (session("a", entry(0, 64, hash_ranges=[[3, 2]])), "hash_ranges must be pairs"),
        (session("a", entry(0, 64, hash_ranges=[[0, 1 << 60]])), "hash_ranges must be pairs"),
        (session("a", entry(0, 64, hash_ranges=[[1]])), r"Expected `array` of length 2"),
        (session("a", entry(0, 64, hash_ids=[1], hash_ranges=[[1, 1]])), "Given: both"),
        (session("a", entry(0, 64)), "64 tokens are 1 blocks of 64"),
        (session("a", entry(0, 10**18, hash_ranges=[[0, 10**12]])), "in must be a number of tokens"),
        (session("a", {"t": 0}), "lacks its length"),
        (session("a"), "at least one request"),
        (session("a", entry(0, 64, hash_ids=[1]), block_size=1), "block_size must be from 2"),
        (
            session("a", entry(0, 64, hash_ids=[1]), hash_id_scope="mine"),
            "hash_id_scope must be local or global",
        ),
    ],
)
def test_bad_sessions(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = session("good", entry(0, 64, hash_ids=[1]))
    path = jsonl(tmp_path / "t.jsonl", [good, row])
    with pytest.raises(TraceError, match=f"line 2: .*{message}"):
        read(path)
    trace = read(path, skip_bad=True)
    assert (len(trace.requests), trace.skipped) == (1, 1)


def test_a_session_comes_once(tmp_path: Path) -> None:
    row = session("a", entry(0, 64, hash_ids=[1]))
    with pytest.raises(
        TraceError, match=r"line 2: a session's id must be its own\. Given: 'a', a second time"
    ):
        read(jsonl(tmp_path / "t.jsonl", [row, row]))

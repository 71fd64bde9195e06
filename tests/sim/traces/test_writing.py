"""Traces in other forms: what was written is read back the same, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milepost.errors import ConfigError, TraceError
from milepost.sim.traces.compressed import open_unpacked
from milepost.sim.traces.options import FORMS
from milepost.sim.traces.stats import overlaps, stats_of
from milepost.sim.traces.trace import Trace
from milepost.sim.traces.writing import TARGETS, write_trace
from tests.sim.traces.files import MOONCAKE, SESSIONS, ids_of, jsonl, plain, read


def tokens_file(tmp_path: Path) -> Path:
    rows = [
        {"arrival": 0.5, "prompt_token_ids": [5, 6, 7], "output_token_ids": [8, 9], "message_ends": [2, 3]},
        {"arrival": 1.25, "prompt_token_ids": [5], "output_length": 4, "session": "s", "request_id": "named"},
        {"arrival": 1.375, "prompt_token_ids": [5, 1, 2], "session": "s"},
    ]
    return jsonl(tmp_path / "tokens.jsonl", rows)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_token_ids_come_back(tmp_path: Path, suffix: str) -> None:
    trace = read(tokens_file(tmp_path))
    out = tmp_path / f"out.jsonl{suffix}"
    assert write_trace(trace, out, "token-ids") == ()
    assert plain(read(out)) == plain(trace)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_mooncake_comes_back(tmp_path: Path, suffix: str) -> None:
    trace = read(MOONCAKE)
    out = tmp_path / f"out.jsonl{suffix}"
    assert write_trace(trace, out, "mooncake") == ()
    assert plain(read(out)) == plain(trace)
    with open_unpacked(out) as (content, _):
        first = json.loads(content.readline())
    assert out.read_bytes().startswith({"": b"{", ".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}[suffix])
    assert first == {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [*range(14)]}


def test_sessions_as_mooncake(tmp_path: Path) -> None:
    """Arrivals, sessions and turns stay; the block's size is said in each row."""
    trace = read(SESSIONS, seed=5)
    out = tmp_path / "out.jsonl.gz"
    notes = write_trace(trace, out, "mooncake")
    assert notes == (
        'Ids stand for 64 tokens, as "block_size" in each row says; tools that do not read it take 512.',
    )
    back = read(out)
    assert back.block_size == 64
    assert overlaps(back) == overlaps(trace)
    for ours, theirs in zip(trace.requests, back.requests, strict=True):
        assert theirs.arrival == pytest.approx(ours.arrival, abs=2e-6)
        assert (theirs.num_prompt, theirs.num_output) == (ours.num_prompt, ours.num_output)
        assert (theirs.session, theirs.turn, theirs.message_ends) == (
            ours.session,
            ours.turn,
            ours.message_ends,
        )
    assert same_pattern(ids_of(trace), ids_of(back))
    assert stats_of(back).sessions == stats_of(trace).sessions


def same_pattern(ours: list[list[int]], theirs: list[list[int]]) -> bool:
    pairs = {pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a, b, strict=True)}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    for suffix in ("", ".gz", ".zst"):
        for name in "ab":
            write_trace(read(SESSIONS), tmp_path / f"{name}{suffix}", "mooncake")
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_what_would_be_lost_is_refused(tmp_path: Path) -> None:
    blocks, tokens = read(MOONCAKE), read(tokens_file(tmp_path))
    table = tmp_path / "t.csv"
    table.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n", encoding="utf-8")
    lengths = read(table)
    refused: list[tuple[Trace, str, str]] = [
        (blocks, "token-ids", "knows blocks of 512 tokens, not the tokens. Give --to mooncake"),
        (tokens, "mooncake", "would keep whole blocks only. Give --to token-ids"),
        (lengths, "mooncake", "holds lengths only"),
        (lengths, "token-ids", "holds lengths only"),
        *((blocks, form, "can't be written as") for form in FORMS if form not in TARGETS),
    ]
    out = tmp_path / "out.jsonl"
    for trace, form, message in refused:
        with pytest.raises(TraceError, match=message):
            write_trace(trace, out, form)
    with pytest.raises(ConfigError, match=r"--to must be one of mooncake, token-ids\. Given: 'tokens-ids'"):
        write_trace(tokens, out, "tokens-ids")
    assert not out.exists()

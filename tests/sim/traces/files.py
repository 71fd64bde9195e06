"""Trace files of the tests: samples that ship, rows written by hand, whole traces where they are kept."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from milepost.sim.traces.block_tokens import BlockTokens
from milepost.sim.traces.options import TraceOptions
from milepost.sim.traces.reading import read_trace
from milepost.sim.traces.trace import Trace

SAMPLES = Path(__file__).parents[2] / "data" / "traces"
MOONCAKE = SAMPLES / "mooncake-300.jsonl.gz"
SESSIONS = SAMPLES / "claude-code-6.jsonl.gz"

Write = Callable[..., Path]


def whole(name: str) -> Path:
    """A whole published trace, in the folder that MILEPOST_TRACES names."""
    folder = os.environ.get("MILEPOST_TRACES")
    if not folder:
        pytest.skip("whole traces don't ship; name their folder in MILEPOST_TRACES")
    return Path(folder) / name


def jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """`rows` as JSON, a line each; bytes are written as they are."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read(path: Path, **options: Any) -> Trace:
    return read_trace(path, TraceOptions(**options))


def ids_of(trace: Trace) -> list[list[int]]:
    """Each prompt's block ids."""
    return [
        [block_id for run in blocks_of(trace, i).runs for block_id in run] for i in range(len(trace.requests))
    ]


def blocks_of(trace: Trace, place: int) -> BlockTokens:
    prompt = trace.requests[place].prompt
    assert isinstance(prompt, BlockTokens)
    return prompt


def raw_rows(path: Path) -> list[Any]:
    """The rows of a file that is packed with gzip, as JSON has them."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def plain(trace: Trace) -> list[tuple[Any, ...]]:
    """Requests as values that can be compared."""
    return [
        (
            *(r.request_id, r.arrival, r.num_prompt, getattr(r.prompt, "runs", r.prompt)),
            *(r.num_output, r.output_ids, r.message_ends, r.session, r.turn),
        )
        for r in trace.requests
    ]


def mooncake_row(
    ids: Sequence[int], tokens: int, timestamp: float = 0, output: int = 5, **more: Any
) -> dict[str, Any]:
    return {
        "timestamp": timestamp,
        "input_length": tokens,
        "output_length": output,
        "hash_ids": [*ids],
    } | more

"""Writes a trace in another form, as far as that form can say all that the trace says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from milepost.error_text import one_of
from milepost.errors import ConfigError, TraceError
from milepost.sim.traces.block_tokens import BlockTokens
from milepost.sim.traces.compressed import open_compressed
from milepost.sim.traces.mooncake import BLOCK_SIZE
from milepost.sim.traces.options import FORMS
from milepost.sim.traces.trace import Trace, TraceRequest

__all__ = ["TARGETS", "write_trace"]

TARGETS = ("mooncake", "token-ids")

# Of forms that nothing is written in.
_REASONS = {
    "claude-code": "a file of sessions has no clock that they share, so arrivals would be lost",
    "qwen-bailian": "its ids name blocks by themselves, and what these were can't be told from chained ids",
    "chat": "the text of the messages is not known any more",
    "azure": "it holds lengths only, so all that is known of reuse would be lost",
}


def write_trace(trace: Trace, path: Path, form: str) -> tuple[str, ...]:
    """Write a trace: gzip for a path that ends in .gz, zstd for .zst.

    Args:
        trace: what to write, times stretched and prompts as they are in memory.
        path: the file; an existing one is replaced.
        form: one of `TARGETS`.

    Returns:
        Sentences that whoever uses the file must know.

    Raises:
        ConfigError: a form that can't be written, or a library that is missing.
        TraceError: the form can't say what the trace says.
    """
    if form not in FORMS:
        raise ConfigError(one_of("--to", form, TARGETS))
    if form in _REASONS:
        raise TraceError(
            f"A trace can't be written as {form}: {_REASONS[form]}. Give {' or '.join(TARGETS)}."
        )
    if not trace.has_content:
        raise TraceError(
            f"{trace.name} holds lengths only; {form} says which tokens are equal. Give a trace that knows."
        )
    if form == "token-ids" and trace.block_size > 1:
        raise TraceError(
            f"{trace.name} knows blocks of {trace.block_size} tokens, not the tokens. Give --to mooncake."
        )
    if form == "mooncake" and trace.block_size == 1:
        raise TraceError(
            f"{trace.name} knows each token; mooncake would keep whole blocks only. Give --to token-ids."
        )
    rows = _mooncake_rows(trace) if form == "mooncake" else map(_token_row, trace.requests)
    encoder = msgspec.json.Encoder()
    with open_compressed(path) as file:
        for row in rows:
            file.write(encoder.encode(row) + b"\n")
    if form == "mooncake" and trace.block_size != BLOCK_SIZE:
        size = trace.block_size
        note = f'Ids stand for {size} tokens, as "block_size" in each row says; tools that do not read it '
        return (f"{note}take {BLOCK_SIZE}.",)
    return ()


def _mooncake_rows(trace: Trace) -> Iterator[dict[str, Any]]:
    size = {} if trace.block_size == BLOCK_SIZE else {"block_size": trace.block_size}
    for request in trace.requests:
        prompt = request.prompt
        assert isinstance(prompt, BlockTokens)
        row: dict[str, Any] = {
            "timestamp": _milliseconds(request.arrival),
            "input_length": prompt.num_prompt,
            "output_length": request.num_output,
            "hash_ids": [block_id for run in prompt.runs for block_id in run],
        }
        if request.session:
            row |= {"session_id": request.session, "turn": request.turn}
        yield row | size


def _milliseconds(seconds: float) -> float:
    """To the microsecond, as a whole number where it is one."""
    milliseconds = round(seconds * 1e6) / 1e3
    return int(milliseconds) if milliseconds == int(milliseconds) else milliseconds


def _token_row(request: TraceRequest) -> dict[str, Any]:
    row: dict[str, Any] = {
        "arrival": request.arrival,
        "request_id": request.request_id,
        "prompt_token_ids": request.prompt,
    }
    if request.output_ids:
        row["output_token_ids"] = request.output_ids
    else:
        row["output_length"] = request.num_output
    if request.message_ends:
        row["message_ends"] = request.message_ends
    if request.session:
        row["session"] = request.session
    return row

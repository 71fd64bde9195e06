"""Reads a trace, whatever its form: see docs/traces.md for what is known of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from milepost.error_text import printable
from milepost.errors import ConfigError, TraceError
from milepost.sim.traces.azure import read_azure
from milepost.sim.traces.block_tokens import BlockTokens
from milepost.sim.traces.chains import chained, is_chained
from milepost.sim.traces.chat_logs import EncodeChat, read_chat_logs
from milepost.sim.traces.claude_code import read_claude_code
from milepost.sim.traces.draft import Draft
from milepost.sim.traces.forms import HEAD_ROWS, find_form
from milepost.sim.traces.mooncake import read_mooncake
from milepost.sim.traces.options import AUTO, TraceOptions
from milepost.sim.traces.qwen_bailian import read_qwen_bailian
from milepost.sim.traces.rows import Progress, Rows
from milepost.sim.traces.token_ids import read_token_ids
from milepost.sim.traces.trace import Trace, TraceRequest

__all__ = ["find_trace_form", "read_trace"]

_DEFAULTS = TraceOptions()
_SUFFIXES = {".gz", ".zst", ".json", ".jsonl", ".csv"}
_SHARED_IDS = 256


def find_trace_form(path: Path) -> str:
    """The form of a trace, from its first rows.

    Raises:
        TraceError: it can't be read, or is in no form that is known.
    """
    return find_form(path, Rows(path).head(HEAD_ROWS))


def read_trace(
    path: Path,
    options: TraceOptions = _DEFAULTS,
    on_progress: Progress | None = None,
    *,
    encode_chat: EncodeChat | None = None,
) -> Trace:
    """Read a file, or a folder of files of sessions.

    Args:
        path: plain, gzip or zstd, which its content tells.
        options: how to read it.
        on_progress: called with (bytes read, bytes to read).
        encode_chat: writes a conversation as token ids; needed for chat logs only.

    Raises:
        TraceError: it can't be read, a row is bad (unless such rows are skipped), or there is no request.
        ConfigError: options that don't fit the trace, or a library that is missing.
    """
    form = find_trace_form(path) if options.form == AUTO else options.form
    first = options.first
    if form == "claude-code":
        first = None  # sessions overlap: which of their requests are the first is known in the end only
    elif form == "azure" and first is not None:
        first += 1  # the row of names
    rows = Rows(path, skip_bad=options.skip_bad, first=first, on_progress=on_progress)
    draft = _read(form, rows, options, encode_chat)
    if not draft.requests:
        skipped = f" Bad rows: {rows.skipped:,}; the first: {rows.first_skipped}." if rows.skipped else ""
        raise TraceError(f"{path} holds no request.{skipped} Give a trace with at least one, or its --form.")
    requests = _in_order(draft, options)
    if draft.block_size > 1 and draft.has_content:
        requests = _with_chained_ids(draft, requests)
    requests = _with_shared_prompt(draft, requests, options.shared_prompt_tokens)
    return Trace(
        name=_name(path),
        form=form,
        requests=requests,
        block_size=draft.block_size,
        has_content=draft.has_content,
        skipped=rows.skipped,
        notes=(*draft.notes, *_notes(draft, rows)),
    )


def _read(form: str, rows: Rows, options: TraceOptions, encode_chat: EncodeChat | None) -> Draft:
    if form == "claude-code":
        return read_claude_code(rows, options)
    if form == "chat":
        if encode_chat is None:
            raise ConfigError(
                "A chat log must be written as the model's tokens. Give --tokenizer with the model's folder. "
                "For a first look milepost-toy-k3, which is shipped, will do; it makes more tokens of a text "
                "than a large model's does."
            )
        return read_chat_logs(rows, encode_chat)
    readers = {
        "mooncake": read_mooncake,
        "qwen-bailian": read_qwen_bailian,
        "token-ids": read_token_ids,
        "azure": read_azure,
    }
    return readers[form](rows)


def _in_order(draft: Draft, options: TraceOptions) -> list[TraceRequest]:
    """The requests by arrival, from 0 on, stretched, and only as many as are asked for."""
    requests = draft.requests
    if any(later.arrival < earlier.arrival for earlier, later in pairwise(requests)):
        requests = sorted(requests, key=lambda request: request.arrival)
        if draft.in_order:
            draft.notes.append("Requests did not stand in the order of their arrival and were sorted.")
    begin = requests[0].arrival
    requests = requests[: options.first]
    if begin == 0 and options.time_scale == 1:
        return requests
    return [
        msgspec.structs.replace(request, arrival=(request.arrival - begin) * options.time_scale)
        for request in requests
    ]


def _with_chained_ids(draft: Draft, requests: list[TraceRequest]) -> list[TraceRequest]:
    """The same requests, with their ids chained where they are not, though the form says so."""
    prompts = [request.prompt for request in requests if isinstance(request.prompt, BlockTokens)]
    if is_chained(prompts):
        return requests
    draft.notes.append(
        "The same id stands behind different ones, so ids name blocks by themselves; they were chained on "
        "reading, so that only equal prefixes count as equal."
    )
    return [
        msgspec.structs.replace(request, prompt=prompt)
        for request, prompt in zip(requests, chained(prompts), strict=True)
    ]


def _with_shared_prompt(draft: Draft, requests: list[TraceRequest], num_tokens: int) -> list[TraceRequest]:
    """`num_tokens` tokens, the same for all, in front of each prompt."""
    if not num_tokens:
        return requests
    if not draft.has_content:
        raise ConfigError(
            "A trace of lengths can't share a prompt. Leave shared_prompt_tokens (--shared-prompt) 0."
        )
    if num_tokens % draft.block_size:
        raise ConfigError(
            f"shared_prompt_tokens (--shared-prompt) must be a multiple of the trace's block of "
            f"{draft.block_size} tokens. Given: {num_tokens}."
        )
    shared = tuple(place % _SHARED_IDS for place in range(num_tokens)) if draft.block_size == 1 else ()
    draft.notes.append(
        f"All prompts begin with the same {num_tokens:,} tokens, which the trace does not have."
    )
    return [
        msgspec.structs.replace(
            request,
            prompt=_behind(request.prompt, num_tokens, shared),
            message_ends=(num_tokens, *(end + num_tokens for end in request.message_ends)),
        )
        for request in requests
    ]


def _behind(
    prompt: BlockTokens | tuple[int, ...], num_tokens: int, shared: tuple[int, ...]
) -> BlockTokens | tuple[int, ...]:
    if not isinstance(prompt, BlockTokens):
        return shared + prompt
    blocks = num_tokens // prompt.block_size
    runs = [range(run.start + blocks, run.stop + blocks) for run in prompt.runs]
    if runs[0].start == blocks:
        runs[0] = range(runs[0].stop)
    else:
        runs.insert(0, range(blocks))
    return BlockTokens(runs, prompt.num_prompt + num_tokens, prompt.block_size)


def _notes(draft: Draft, rows: Rows) -> Sequence[str]:
    notes = []
    if draft.num_empty:
        notes.append(f"Requests that drew no token: {draft.num_empty:,}. Each counts as drawing one.")
    if rows.skipped:
        notes.append(f"Bad rows that were left out: {rows.skipped:,}. The first: {rows.first_skipped}.")
    return notes


def _name(path: Path) -> str:
    name = path.name or path.resolve().name
    while Path(name).suffix in _SUFFIXES:
        name = Path(name).stem
    return printable(name)

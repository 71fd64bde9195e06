"""Which form a trace is in, told from its first rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from milepost.errors import TraceError
from milepost.sim.traces.azure import find_columns
from milepost.sim.traces.options import FORMS

__all__ = ["HEAD_ROWS", "find_form"]

HEAD_ROWS = 20
"""Rows that are looked at; those that can't be read are passed over."""

_PROMPT_IDS = {"prompt_token_ids", "input_ids", "prompt_ids"}


def find_form(path: Path, head: Sequence[bytes]) -> str:
    """The form of a trace that begins with the rows `head`.

    Raises:
        TraceError: none that is known.
    """
    if not head:
        raise TraceError(f"{path} is empty. Give a trace with at least one request.")
    if not head[0].startswith(b"{") and find_columns(head[0]) is not None:
        return "azure"
    decoded = [row for row in map(_decoded, head) if row]
    form = next((form for form in map(_form_of, decoded) if form), None)
    if form is not None:
        return form
    seen = (
        f"Its rows have: {', '.join(map(str, list(decoded[0])[:12]))}."
        if decoded
        else f"It begins with {head[0][:60].decode('utf-8', 'backslashreplace')!r}."
    )
    raise TraceError(f"{path} is in no form that is known ({', '.join(FORMS)}). {seen}")


def _decoded(row: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(row, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def _form_of(row: Mapping[str, Any]) -> str | None:
    if isinstance(row.get("requests"), list):
        return "claude-code"
    if "hash_ids" in row:
        return "qwen-bailian" if "chat_id" in row else "mooncake"
    if _PROMPT_IDS & row.keys():
        return "token-ids"
    if any(
        "messages" in place for place in (row, row.get("body"), row.get("request")) if isinstance(place, dict)
    ):
        return "chat"
    return None

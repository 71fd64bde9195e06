"""Plain data that crosses package borders: requests, step messages and outputs.

A step is one schedule-run-update turn. The scheduler sends a `Batch`, an executor answers with a
`BatchResult`; both hold numbers and ids only, so that any executor (model runner, simulator's cost
model, scripted fake) can stand behind the same scheduler.
"""

from __future__ import annotations

from milepost.types.outputs import FinishReason, RequestOutput, TokenLogprobs, Usage
from milepost.types.requests import Request, SymbolicTokens, TokenIds, check_cache_salt
from milepost.types.sampling import MAX_LOGPROBS, Grammar, SamplingParams
from milepost.types.steps import (
    Batch,
    BatchResult,
    NewRequest,
    Row,
    RowResult,
    SnapshotOrder,
    Tier,
    Transfer,
    TransferResult,
)

__all__ = [
    "MAX_LOGPROBS",
    "Batch",
    "BatchResult",
    "FinishReason",
    "Grammar",
    "NewRequest",
    "Request",
    "RequestOutput",
    "Row",
    "RowResult",
    "SamplingParams",
    "SnapshotOrder",
    "SymbolicTokens",
    "Tier",
    "TokenIds",
    "TokenLogprobs",
    "Transfer",
    "TransferResult",
    "Usage",
    "check_cache_salt",
]

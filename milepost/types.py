"""Plain data that crosses package borders: requests, step messages and outputs.

A step is one schedule-run-update turn. The scheduler sends a `Batch`, an executor answers with a
`BatchResult`; both hold numbers and ids only, so that any executor (model runner, simulator's cost
model, scripted fake) can stand behind the same scheduler.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self, TypeAlias

import msgspec

from milepost.errors import RequestError

__all__ = [
    "Batch",
    "BatchResult",
    "FinishReason",
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

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 4096
MAX_SALT_CHARS = 256


class FinishReason(enum.Enum):
    """Why a request ended. Every accepted request ends with exactly one of these."""

    STOP = "stop"  # a stop token, the end-of-message token or a stop string
    LENGTH = "length"  # max_tokens or the model's context length
    ABORT = "abort"  # the client gave up
    ERROR = "error"  # the request failed; RequestOutput.error says how


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the tokens of one request are drawn; checked when built.

    ``temperature == 0`` is greedy. ``top_k == 0``, ``top_p == 1`` and ``min_p == 0`` are off.
    Penalties follow the field's usual definitions: repetition (CTRL, over prompt and output),
    presence and frequency (OpenAI, over output only). ``logprobs`` is how many alternatives are
    reported beside the drawn token, None for no log-probabilities at all.

    Raises:
        RequestError: a value is outside its range; ``param`` is the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        self._check_types()
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_k", self.top_k, 0, 1 << 30)
        _in_range("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p must be > 0. Given: 0. Use temperature 0 for greedy.", param="top_p")
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 1e-3, 100.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _in_range("seed", self.seed, -(1 << 63), (1 << 63) - 1)
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 1, 1 << 40)
        if self.logprobs is not None:
            _in_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(
                f"stop must hold at most {MAX_STOP_STRINGS} strings. Given: {len(self.stop)}.", param="stop"
            )
        if any(not text for text in self.stop):
            raise RequestError("stop must not hold an empty string.", param="stop")
        # Preparing to search for it takes the engine's thread time that every request waits for.
        longest = max(map(len, self.stop), default=0)
        if longest > MAX_STOP_CHARS:
            raise RequestError(
                f"stop must hold strings of at most {MAX_STOP_CHARS} characters. Given: one of {longest}.",
                param="stop",
            )
        if any(token_id < 0 for token_id in self.stop_token_ids):
            raise RequestError(
                f"stop_token_ids must not be negative. Given: {min(self.stop_token_ids)}.",
                param="stop_token_ids",
            )

    def _check_types(self) -> None:
        """Annotations bind nobody in Python, and a wrong type would only show in the middle of a step."""
        for name in ("temperature", "top_p", "min_p", *(f"{kind}_penalty" for kind in _PENALTIES)):
            _of_type(name, getattr(self, name), (int, float), "a number")
        for name in ("top_k", "seed", "max_tokens", "logprobs"):
            value = getattr(self, name)
            if value is not None or name == "top_k":
                _of_type(name, value, (int,), "an integer")
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(
                f"ignore_eos must be true or false. Given: {self.ignore_eos!r:.60}.", param="ignore_eos"
            )
        for name, kind, words in (("stop", str, "strings"), ("stop_token_ids", int, "integers")):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or not all(type(value) is kind for value in values):
                raise RequestError(f"{name} must be a tuple of {words}. Given: {values!r:.60}.", param=name)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0.0


_PENALTIES = ("repetition", "presence", "frequency")


def _of_type(name: str, value: object, kinds: tuple[type, ...], words: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise RequestError(f"{name} must be {words}. Given: {value!r:.60}.", param=name)


def _in_range(name: str, value: float, low: float, high: float) -> None:
    # `not (low <= value <= high)` also refuses NaN.
    if not (low <= value <= high):
        raise RequestError(f"{name} must be between {low} and {high}. Given: {value}.", param=name)


TokenIds: TypeAlias = Sequence[int]
"""Token ids to be read, whatever holds them."""


class SymbolicTokens(Sequence[int], ABC):
    """Tokens that are not spelled out, as a trace without text has them; what runs on them knows none.

    The scheduler lets a `copy` grow where it would else make a list, and nothing else differs.
    """

    __slots__ = ()

    @abstractmethod
    def append(self, token_id: int) -> None:
        """Take one drawn token."""

    @abstractmethod
    def copy(self) -> Self:
        """The same tokens, to grow by themselves."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the control plane sees it: token ids and numbers, no text.

    Attributes:
        request_id: unique among the requests that are alive.
        prompt_token_ids: the prompt, at least one token; an engine takes a tuple, a simulator also
            `SymbolicTokens`.
        sampling: how tokens are drawn and when the request ends.
        priority: lower runs earlier; equal priorities run first come, first served.
        arrival_time: seconds on the engine's clock.
        message_ends: token positions P (0 < P <= prompt length) at which a message of the prompt
            ends, ascending: the natural places for snapshots. Empty when unknown.
        cache_salt: only requests with the same salt share cached prefixes (a tenant's secret, say).
        output_reusable: whether a later prompt is expected to hold this request's output as it was
            drawn. False when the next turn will strip it, such as thinking.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...] | SymbolicTokens
    sampling: SamplingParams = SamplingParams()
    priority: int = 0
    arrival_time: float = 0.0
    message_ends: tuple[int, ...] = ()
    cache_salt: str = ""
    output_reusable: bool = True


def check_cache_salt(salt: object) -> str:
    """A request's cache salt as it may be used; fronts call it before they build a `Request`.

    Raises:
        RequestError: not a string, too long, or no Unicode text.
    """
    if not isinstance(salt, str):
        raise RequestError(f"cache_salt must be a string. Given: {salt!r:.60}.", param="cache_salt")
    # A salt is a secret: errors, which logs keep, don't show it.
    if len(salt) > MAX_SALT_CHARS:
        raise RequestError(
            f"cache_salt must be at most {MAX_SALT_CHARS} characters. Given: {len(salt)}.", param="cache_salt"
        )
    if any("\ud800" <= char <= "\udfff" for char in salt):
        raise RequestError("cache_salt must be Unicode text. Given: half a character.", param="cache_salt")
    return salt


class NewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor must know of a request, sent once with its first row.

    After a preemption the request is not sent anew: its sampling state (penalty counts, seed
    position) belongs to the tokens it has drawn, which a preemption keeps.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...] | SymbolicTokens
    sampling: SamplingParams


class SnapshotOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot that a row leaves: its state after exactly `position` tokens, written to `pages`.

    Attributes:
        position: tokens of the sequence that the state has seen; ``start < position <= start +
            len(token_ids)`` of its row. Any token may be asked for, and any number of them.
        pages: page of each logical page of the snapshot, as in a state table; nobody else's.
    """

    position: int
    pages: tuple[int, ...]


class Tier(enum.Enum):
    """Where pages can lie. Every tier numbers its pages from 0, all of the arena's page size."""

    ARENA = "arena"
    HOST = "host"
    DISK = "disk"


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Pages to copy from one tier to another.

    From the arena to the host it is done before anything of its step runs. All others run in the
    background from their step on, in order; source and target pages are left alone until the result is
    in. One from the disk to the disk has no pages: it forgets everything there, for later processes too.

    Attributes:
        transfer_id: unique among all transfers.
        source: tier that is read.
        target: tier that is written.
        pages: (source page, target page) pairs.
        record: for a transfer to disk, what makes its pages findable after a restart; opaque.
    """

    transfer_id: int
    source: Tier
    target: Tier
    pages: tuple[tuple[int, int], ...]
    record: bytes = b""

    @property
    def is_immediate(self) -> bool:
        """Whether it is done before anything of its step runs, and not in the background."""
        return self.source is Tier.ARENA and self.target is Tier.HOST


class TransferResult(msgspec.Struct, frozen=True, kw_only=True):
    """A transfer has ended. With an `error` nothing that it wrote may be used."""

    transfer_id: int
    error: str | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one request that a step computes.

    ``token_ids`` are the tokens at positions ``start .. start + len(token_ids) - 1``; KV and state
    already hold exactly ``start`` tokens. The tables are live references: an executor reads them during
    `run`. A table belongs to one life of one request and only ever grows, so the same object in a later
    step names the same pages as far as it went; another life brings other objects.

    Attributes:
        request_id: whose tokens these are.
        start: tokens computed before this step; 0 means that the state starts from zero.
        token_ids: the tokens of this chunk, at least one.
        block_table: page of each block; block i holds tokens i*block_size .. (i+1)*block_size-1.
        state_table: page of each logical page of the state.
        samples: whether the logits of the last token are drawn from. False for a chunk that
            does not reach the last known token.
        num_output_tokens: tokens the request has drawn before this step (the random draw's index).
        snapshots: states to leave behind, by ascending position.
    """

    request_id: str
    start: int
    token_ids: TokenIds
    block_table: Sequence[int]
    state_table: Sequence[int]
    samples: bool
    num_output_tokens: int = 0
    snapshots: tuple[SnapshotOrder, ...] = ()


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an executor does in one step, in this order.

    Forget and learn; copy from the arena to the host; scrub; copy pages; start the other transfers;
    run the rows, which leave their snapshots.

    Attributes:
        step: number of the step, counting from 0.
        rows: one row per request at most.
        new_requests: requests that appear in `rows` for the first time.
        released: ids of requests that will not come again (finished, aborted, failed).
        scrubs: pages to fill with zeros before anything runs: whatever failed requests held, KV and state.
        tail_scrubs: (page, tokens) pairs: KV pages to fill with zeros behind their first tokens. A failed
            request wrote there, and others rely on what is before.
        copies: (source page, target page) pairs: a consumer's private copy of a snapshot, and of the
            last block below it when that is partly filled. No target is also a source.
        transfers: copies between tiers; see `Transfer`.
        waits: a batch without rows whose executor returns once at least one transfer has ended,
            because nothing else can go on.
    """

    step: int
    rows: tuple[Row, ...]
    new_requests: tuple[NewRequest, ...] = ()
    released: tuple[str, ...] = ()
    scrubs: tuple[int, ...] = ()
    tail_scrubs: tuple[tuple[int, int], ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    transfers: tuple[Transfer, ...] = ()
    waits: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens that this step computes."""
        return sum(len(row.token_ids) for row in self.rows)


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities (natural log, of the unmodified distribution) at one drawn token."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one row: the drawn tokens, or why it failed.

    ``token_ids`` is empty when the row did not sample. ``error`` is a sentence for the user; the
    request then ends with `FinishReason.ERROR` and nothing that it wrote is reused. ``snapshots``
    are the positions of the ordered snapshots that were written and are finite; the others are
    not there.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    snapshots: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to the `Batch` of the same step: one result per row, in any order.

    `transfers` are those that have ended since the result before, this batch's or older ones.
    """

    step: int
    rows: tuple[RowResult, ...]
    transfers: tuple[TransferResult, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one request so far."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    num_preemptions: int = 0


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """News of one request: what a step added. The last one carries `finish_reason`.

    ``text`` is whole characters only and never part of a stop string. ``token_ids`` and
    ``logprobs`` are the tokens drawn since the last output; text may lag behind them.
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    usage: Usage

    @property
    def finished(self) -> bool:
        """Whether this is the request's last output."""
        return self.finish_reason is not None

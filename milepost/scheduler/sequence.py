"""A request while the scheduler holds it: its tokens so far, and how many of them are computed."""

from __future__ import annotations

from milepost.memory.tables import SequencePages
from milepost.prefix.plan import PlannedSnapshot
from milepost.prefix.trail import Trail
from milepost.types import (
    FinishReason,
    NewRequest,
    Request,
    SnapshotOrder,
    SymbolicTokens,
    TokenIds,
    Usage,
)

__all__ = ["Sequence"]


class Sequence:
    """One accepted request.

        tokens        [ prompt ................ | drawn ...... ]
        computed      [ KV and state hold these ..... ) wanted [
                                                    └ num_computed

    The scheduler's whole job is to let `num_computed` catch up with `len(tokens)`; when it has, the
    logits of the last token give one more. Drawn tokens are never drawn again: a preempted
    sequence computes them as if they were prompt.

    Attributes:
        request: what was asked.
        request_id: its id.
        order: sorts sequences: suspects, then by priority, then by arrival.
        suspected_to: it is a suspect until it has computed so many tokens by itself; 0 when it is none.
        tokens: prompt and drawn tokens.
        num_computed: tokens whose KV and state the pages hold, as of the last completed step.
        pages: where they lie; None while the sequence waits.
        announced: whether the executor knows the request.
        num_preemptions: how often its pages were taken away.
        trail: its way through the prefix cache; None without one.
        ordered: snapshots that the running step leaves, and their pages, by ascending position.
        partial_source: page of a partly filled block to copy from, until the copy is planned.
    """

    __slots__ = (
        "_end_of_reply",
        "announced",
        "length_limit",
        "num_computed",
        "num_preemptions",
        "order",
        "ordered",
        "pages",
        "partial_source",
        "request",
        "request_id",
        "suspected_to",
        "tokens",
        "trail",
    )

    def __init__(
        self, request: Request, *, arrival: int, length_limit: int, stop_token_ids: tuple[int, ...]
    ) -> None:
        """`length_limit` is the most tokens that context and pool allow; `stop_token_ids` the model's."""
        sampling = request.sampling
        num_prompt = len(request.prompt_token_ids)
        self.request = request
        self.request_id = request.request_id
        self.order = (True, request.priority, arrival)
        self.suspected_to = 0
        prompt = request.prompt_token_ids
        self.tokens: list[int] | SymbolicTokens = list(prompt) if isinstance(prompt, tuple) else prompt.copy()
        self.num_computed = 0
        self.pages: SequencePages | None = None
        self.announced = False
        self.num_preemptions = 0
        self.trail: Trail | None = None
        self.ordered: list[tuple[PlannedSnapshot, tuple[int, ...]]] = []
        self.partial_source: int | None = None
        self.length_limit = length_limit
        if sampling.max_tokens is not None:
            self.length_limit = min(length_limit, num_prompt + sampling.max_tokens)
        stops = sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids + stop_token_ids
        self._end_of_reply = frozenset(stops)

    @property
    def num_wanted(self) -> int:
        """Known tokens that are not computed yet; at least one while the sequence is alive."""
        return len(self.tokens) - self.num_computed

    @property
    def last_computed(self) -> int:
        """Most tokens that it can ever have computed: the last one drawn needs no computing."""
        return self.length_limit - 1

    @property
    def in_prompt(self) -> bool:
        """Whether it still has prompt to compute."""
        return self.num_computed < len(self.request.prompt_token_ids)

    @property
    def keeps_last(self) -> bool:
        """Whether its last state becomes a snapshot when it ends."""
        return self.trail is not None and self.trail.keep_last

    @property
    def num_output_tokens(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - len(self.request.prompt_token_ids)

    def suspect(self, suspected_to: int) -> None:
        """Make it a suspect up to so many computed tokens, or none with 0; it must stand in no line."""
        _, priority, arrival = self.order
        self.order = (not suspected_to, priority, arrival)
        self.suspected_to = suspected_to

    def chunk(self, count: int) -> TokenIds:
        """The next `count` tokens to compute; costs time in `count` only."""
        start = self.num_computed
        chunk = self.tokens[start : start + count]
        return tuple(chunk) if isinstance(chunk, list) else chunk

    def snapshot_orders(self) -> tuple[SnapshotOrder, ...]:
        """What is `ordered`, as the executor gets it."""
        if not self.ordered:
            return ()
        return tuple(SnapshotOrder(position=planned.position, pages=pages) for planned, pages in self.ordered)

    def append(self, token_id: int) -> tuple[FinishReason | None, int | None]:
        """Take a drawn token; returns why the request ends with it, if it does, and the stop token."""
        self.tokens.append(token_id)
        if token_id in self._end_of_reply:
            return FinishReason.STOP, token_id
        if len(self.tokens) >= self.length_limit:
            return FinishReason.LENGTH, None
        return None, None

    def announcement(self) -> NewRequest:
        """What the executor must know, sent once."""
        request = self.request
        return NewRequest(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            sampling=request.sampling,
        )

    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            prompt_tokens=len(self.request.prompt_token_ids),
            output_tokens=self.num_output_tokens,
            cached_tokens=0 if self.trail is None else self.trail.hit,
            num_preemptions=self.num_preemptions,
        )

"""A trace in memory: requests in order of arrival, whatever form they were recorded in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from milepost.sim.traces.block_tokens import BlockTokens

__all__ = ["Trace", "TraceRequest"]


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was recorded.

    Attributes:
        request_id: unique in the trace.
        arrival: seconds from the trace's beginning.
        prompt: token ids, or blocks of tokens of which only equality is known. Without `Trace.has_content`
            blocks that nobody else has.
        num_output: tokens that were drawn, at least 1.
        output_ids: what they were; empty when the trace does not say.
        message_ends: positions at which messages end, as `milepost.types.Request.message_ends`; for blocks
            only the prompt's own end is known.
        session: the conversation that it belongs to, "" when unknown.
        turn: its number in the session, from 0.
    """

    request_id: str
    arrival: float
    prompt: BlockTokens | tuple[int, ...]
    num_output: int = 1
    output_ids: tuple[int, ...] = ()
    message_ends: tuple[int, ...] = ()
    session: str = ""
    turn: int = 0

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded traffic.

    Attributes:
        name: what it is called in results: its file's name without suffixes, as a rule.
        form: the form that it was read in, such as "mooncake".
        requests: by ascending arrival.
        block_size: tokens that the trace tells apart; 1 when it has token ids.
        has_content: whether it says which tokens are equal at all. Without, no reuse can be computed.
        skipped: rows that could not be read and were left out on request.
        notes: sentences that a user of the results must know, such as what was assumed in reading.
    """

    name: str
    form: str
    requests: Sequence[TraceRequest]
    block_size: int
    has_content: bool = True
    skipped: int = 0
    notes: tuple[str, ...] = ()

    def block_or(self, usual: int) -> int:
        """Tokens of the blocks that it tells apart, or `usual` where it has token ids."""
        return self.block_size if self.block_size > 1 else usual

    @property
    def num_input(self) -> int:
        """Tokens of all prompts together."""
        return sum(request.num_prompt for request in self.requests)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].arrival - self.requests[0].arrival if self.requests else 0.0

"""From logits to tokens: one `RowResult` per sampled row, whatever else is in the batch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from milepost.errors import InvariantError, MilepostError
from milepost.grammar.compiler import GrammarCompiler
from milepost.runtime.greedy import greedy
from milepost.runtime.logit_filters import Floats, best_ids, log_softmax
from milepost.runtime.random_draws import SeedSource
from milepost.runtime.request_sampling import RequestSampling
from milepost.types import NewRequest, Row, RowResult, TokenLogprobs

__all__ = ["Sampler"]

logger = logging.getLogger(__name__)

_takes_largest = attrgetter("takes_largest")


class Sampler:
    """Draws tokens and keeps each request's sampling state, by request id and never by row.

    Greedy rows that want nothing else share one vectorised search; any other row is drawn alone, exactly,
    in float64, in the order that `milepost.runtime.logit_filters` documents. Whatever goes wrong in such a
    draw fails its own row.

    Args:
        seed: the engine's seed, from which requests without their own get one; None: fresh ones.
        stop_token_ids: tokens that end replies, which a reply's least length puts off.
        grammars: compiles the requests' grammars; None: requests with one fail.
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        stop_token_ids: Sequence[int] = (),
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._seeds = SeedSource(seed)
        self._stop_token_ids = tuple(stop_token_ids)
        self._grammars = grammars
        self._requests: dict[str, RequestSampling] = {}

    @property
    def num_requests(self) -> int:
        """Requests whose sampling state is kept."""
        return len(self._requests)

    def learn(self, new_requests: Iterable[NewRequest]) -> None:
        """Start the sampling state of requests that appear for the first time."""
        for request in new_requests:
            if request.request_id in self._requests:
                raise InvariantError(f"Request {request.request_id!r} is announced twice.")
            seed = request.sampling.seed
            if seed is None:
                seed = self._seeds.next_seed()
            self._requests[request.request_id] = RequestSampling(
                request, seed, stop_token_ids=self._stop_token_ids, grammars=self._grammars
            )

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop requests that will not come again; ids that never ran are fine."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def draw(self, rows: Sequence[Row], logits: Tensor) -> list[RowResult]:
        """Draw the next token of each row.

        Args:
            rows: the rows that sample, in the order of the logits.
            logits: [rows, vocab], float; not changed.

        Returns:
            One result per row; a row whose logits are not finite has an error and no token, and so has one
            whose grammar can't go on.
        """
        if not rows:
            return []
        states = [self._state_of(row) for row in rows]
        ids, finite = greedy(logits)
        if all(finite) and all(map(_takes_largest, states)):
            return _largest(rows, states, ids)
        results = []
        for index, (row, state) in enumerate(zip(rows, states, strict=True)):
            if not finite[index]:
                results.append(_failed(row, logits[index]))
                continue
            results.append(_draw_alone(row, state, ids[index], logits[index]))
        return results

    def _state_of(self, row: Row) -> RequestSampling:
        state = self._requests.get(row.request_id)
        if state is None:
            raise InvariantError(f"A row of request {row.request_id!r}, which was never announced.")
        if state.num_drawn != row.num_output_tokens:
            raise InvariantError(
                f"Request {row.request_id!r}: the scheduler counts {row.num_output_tokens} output tokens, "
                f"the sampler drew {state.num_drawn}."
            )
        return state


def _largest(rows: Sequence[Row], states: Sequence[RequestSampling], ids: Sequence[int]) -> list[RowResult]:
    """Results of rows that take the largest logit and want nothing else: most batches are such."""
    for state in states:
        state.num_drawn += 1
    return [
        RowResult(request_id=row.request_id, token_ids=(token_id,))
        for row, token_id in zip(rows, ids, strict=True)
    ]


def _draw_alone(row: Row, state: RequestSampling, largest: int, logits: Tensor) -> RowResult:
    """One row's result: its draw, or what went wrong in it."""
    try:
        token_id = largest if state.plain_greedy else _token(state, largest, logits)
        state.record(token_id)
        return _drawn(row, token_id, logits, state.params.logprobs)
    except MilepostError as error:
        return RowResult(request_id=row.request_id, error=str(error))
    except Exception as error:
        logger.exception("No token could be drawn for request %s", row.request_id)
        return RowResult(
            request_id=row.request_id,
            # What an exception says, paths perhaps, is for the log alone.
            error=f"No token could be drawn ({type(error).__name__}). The server's log says more.",
        )


def _token(state: RequestSampling, largest: int, logits: Tensor) -> int:
    allowed = state.allowed(logits.numel())
    if not state.prefers_largest:
        return state.draw(_float64(logits), allowed)
    if allowed is None or allowed[largest]:
        return largest
    ids = np.flatnonzero(allowed)
    # A wider number compares the same; NumPy takes the first of equals and knows no bfloat16.
    return int(ids[logits[torch.from_numpy(ids)].float().numpy(force=True).argmax()])


def _float64(logits: Tensor) -> Floats:
    """A private copy of a row: [vocab] float64."""
    copy: Floats = logits.to(torch.float64, copy=True).numpy(force=True)
    return copy


def _drawn(row: Row, token_id: int, logits: Tensor, num_logprobs: int | None) -> RowResult:
    if num_logprobs is None:
        return RowResult(request_id=row.request_id, token_ids=(token_id,))
    logprobs = log_softmax(_float64(logits))
    top: tuple[tuple[int, float], ...] = ()
    if num_logprobs:
        ids = best_ids(logprobs, num_logprobs)
        ids = ids[np.argsort(-logprobs[ids], kind="stable")]
        top = tuple((int(i), float(logprobs[i])) for i in ids)
    entry = TokenLogprobs(token_id=token_id, logprob=float(logprobs[token_id]), top=top)
    return RowResult(request_id=row.request_id, token_ids=(token_id,), logprobs=(entry,))


def _failed(row: Row, logits: Tensor) -> RowResult:
    wrong = int((~torch.isfinite(logits)).sum())
    return RowResult(
        request_id=row.request_id,
        error=(
            f"The model's logits are not finite ({wrong} of {logits.numel()} values) after "
            f"{row.start + len(row.token_ids)} tokens, so no token can be drawn and the request ends. "
            "Check the checkpoint's weights, or use a wider dtype."
        ),
    )

"""Which tokens a request may draw at all, whatever their logits: its grammar, and its shortest reply."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from milepost.errors import RequestError
from milepost.grammar.compiler import GrammarCompiler, Matcher
from milepost.types import SamplingParams

__all__ = ["Restrictions"]


class Restrictions:
    """The restrictions of one request. They belong to its drawn tokens, so a preemption keeps them.

    Before ``min_tokens`` are drawn no token that would end the reply may be. Where a grammar has come to its
    end there is no other, and the reply ends.

    Args:
        params: of the request.
        stop_token_ids: the engine's.
        grammars: compiles the request's grammar; None when the engine has no compiler.

    Attributes:
        exist: whether there are any.
    """

    def __init__(
        self, params: SamplingParams, stop_token_ids: Sequence[int], grammars: GrammarCompiler | None
    ) -> None:
        self._grammar = params.grammar
        self._min_tokens = params.min_tokens
        self._grammars = grammars
        self._matcher: Matcher | None = None
        stops = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *stop_token_ids)
        self._stops = np.array(sorted(set(stops)), np.int64)
        self.exist = self._grammar is not None or self._min_tokens > 0

    def allowed(self, num_drawn: int, vocab_size: int) -> NDArray[np.bool_] | None:
        """The tokens that may be the next: [vocab] bool, at least one; None: all.

        Args:
            num_drawn: tokens that the request has drawn.
            vocab_size: of the logits.

        Raises:
            RequestError: the grammar can't be compiled.
            ExecutionError: the grammar can't go on.
        """
        mask = None if self._grammar is None else self._opened().mask()
        if num_drawn >= self._min_tokens:
            return mask
        early = np.ones(vocab_size, np.bool_) if mask is None else mask.copy()
        early[self._stops[self._stops < vocab_size]] = False
        return early if early.any() else mask

    def record(self, token_id: int) -> None:
        """Let a drawn token pass.

        Raises:
            ExecutionError: the grammar does not take it.
        """
        if self._grammar is not None:
            self._opened().take(token_id)

    def _opened(self) -> Matcher:
        """The grammar's matcher. What goes wrong when it is first needed is this request's alone."""
        if self._matcher is None:
            assert self._grammar is not None  # whoever asks has seen it
            if self._grammars is None:
                raise RequestError("This engine takes no grammars.", param="grammar")
            self._matcher = self._grammars.matcher(self._grammar)
        return self._matcher

"""What the sampler remembers of one request: how it draws and what it has seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from milepost.grammar.compiler import GrammarCompiler
from milepost.runtime.logit_filters import Floats, Ids, allowed_ids, scaled_scores
from milepost.runtime.random_draws import draw_any, gumbel_noise
from milepost.runtime.restrictions import Restrictions
from milepost.types import NewRequest, SamplingParams

__all__ = ["RequestSampling"]

_FEW = 128  # allowed tokens that are looked at by themselves


class RequestSampling:
    """The sampling state of one request. It outlives preemptions: drawn tokens stay drawn.

    Args:
        request: prompt and parameters.
        seed: of the draws; the request's own or a fresh one.
        stop_token_ids: the engine's.
        grammars: compiles the request's grammar; None when the engine has no compiler.

    Attributes:
        params: how the request draws.
        num_drawn: output tokens drawn so far, which is the index of the next.
        prefers_largest: whether the next token is the largest logit of those that may be drawn.
        plain_greedy: whether the next token is the largest logit and nothing else matters.
        takes_largest: whether that is all that is wanted: no log-probabilities either.
    """

    def __init__(
        self,
        request: NewRequest,
        seed: int,
        *,
        stop_token_ids: Sequence[int] = (),
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.params: SamplingParams = request.sampling
        self.num_drawn = 0
        self._seed = seed
        self._repeats = self.params.repetition_penalty != 1.0
        self._penalized = self._repeats or self.params.presence_penalty or self.params.frequency_penalty
        self._filtered = self.params.top_k > 0 or self.params.top_p < 1.0 or self.params.min_p > 0.0
        self._prompt_ids: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        if self._repeats:
            self._prompt_ids = np.unique(np.asarray(request.prompt_token_ids, dtype=np.int64))
        self._output_counts: dict[int, int] = {}
        bias = self.params.logit_bias
        self._biased_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self._biases = np.fromiter(bias.values(), np.float64, len(bias))
        self._restrictions = Restrictions(self.params, stop_token_ids, grammars)
        self.prefers_largest = self.params.greedy and not self._penalized and not bias
        self.plain_greedy = self.prefers_largest and not self._restrictions.exist
        self.takes_largest = self.plain_greedy and self.params.logprobs is None

    def allowed(self, vocab_size: int) -> NDArray[np.bool_] | None:
        """The tokens that may be the next: [vocab] bool; None: all. Errors are those of `Restrictions`."""
        return self._restrictions.allowed(self.num_drawn, vocab_size)

    def draw(self, logits: Floats, allowed: NDArray[np.bool_] | None = None) -> int:
        """The next token from a row of finite logits: [vocab], overwritten.

        Args:
            logits: of the model.
            allowed: the tokens that may be drawn: [vocab], at least one; None: all.
        """
        if self._biases.size:
            logits[self._biased_ids] += self._biases
        if self._penalized:
            self._penalize(logits)
        if allowed is not None:
            logits[~allowed] = -np.inf
        if self.params.greedy:
            return int(logits.argmax())
        if allowed is not None and np.count_nonzero(allowed) <= _FEW:
            return self._draw_of(np.flatnonzero(allowed), logits)
        scores = scaled_scores(logits, self.params.temperature)
        if not self._filtered:
            return draw_any(self._seed, self.num_drawn, scores)
        ids = allowed_ids(scores, self.params)
        return self._loudest(ids, scores[ids])

    def _draw_of(self, few: Ids, logits: Floats) -> int:
        """Draw from a few tokens, without a look at the others."""
        scores = scaled_scores(logits[few], self.params.temperature)
        if self._filtered:
            places = allowed_ids(scores, self.params)
            few, scores = few[places], scores[places]
        return self._loudest(few, scores)

    def _loudest(self, ids: Ids, scores: Floats) -> int:
        """The token with the largest score and its noise together, of some with these scores."""
        return int(ids[np.argmax(scores + gumbel_noise(self._seed, self.num_drawn, ids))])

    def record(self, token_id: int) -> None:
        """Count a drawn token.

        Raises:
            ExecutionError: the request's grammar does not take it.
        """
        self.num_drawn += 1
        self._restrictions.record(token_id)
        if self._penalized:
            self._output_counts[token_id] = self._output_counts.get(token_id, 0) + 1

    def _penalize(self, logits: Floats) -> None:
        """Apply the three penalties in place, repetition first.

        Repetition (N. Keskar et al., CTRL, 2019): a seen token's logit is divided by the penalty if
        positive, multiplied if not; seen means in the prompt or the output. Presence and frequency
        (OpenAI's API): less ``presence + frequency * count``, over the output.
        """
        drawn = len(self._output_counts)
        output_ids = np.fromiter(self._output_counts.keys(), np.int64, drawn)
        if self._repeats:
            seen = np.union1d(self._prompt_ids, output_ids)
            value, penalty = logits[seen], self.params.repetition_penalty
            logits[seen] = np.where(value > 0, value / penalty, value * penalty)
        counts = np.fromiter(self._output_counts.values(), np.float64, drawn)
        logits[output_ids] -= self.params.presence_penalty + self.params.frequency_penalty * counts

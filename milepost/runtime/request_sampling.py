"""What the sampler remembers of one request: how it draws and what it has seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from milepost.runtime.logit_filters import Floats, allowed_ids, scaled_scores
from milepost.runtime.random_draws import draw_any, gumbel_noise
from milepost.types import NewRequest, SamplingParams

__all__ = ["RequestSampling"]


class RequestSampling:
    """The sampling state of one request. It outlives preemptions: drawn tokens stay drawn.

    Args:
        request: prompt and parameters.
        seed: of the draws; the request's own or a fresh one.

    Attributes:
        params: how the request draws.
        num_drawn: output tokens drawn so far, which is the index of the next.
        plain_greedy: whether the next token is the largest logit and nothing else matters.
        takes_largest: whether that is all that is wanted: no log-probabilities either.
    """

    def __init__(self, request: NewRequest, seed: int) -> None:
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
        self.plain_greedy = self.params.greedy and not self._penalized
        self.takes_largest = self.plain_greedy and self.params.logprobs is None

    def draw(self, logits: Floats) -> int:
        """The next token from a row of finite logits: [vocab], overwritten."""
        if self._penalized:
            self._penalize(logits)
        if self.params.greedy:
            return int(logits.argmax())
        scores = scaled_scores(logits, self.params.temperature)
        if not self._filtered:
            return draw_any(self._seed, self.num_drawn, scores)
        ids = allowed_ids(scores, self.params)
        noise = gumbel_noise(self._seed, self.num_drawn, ids)
        return int(ids[np.argmax(scores[ids] + noise)])

    def record(self, token_id: int) -> None:
        """Count a drawn token."""
        self.num_drawn += 1
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

"""What can be served at all: refused up front is better than waiting forever."""

from __future__ import annotations

from milepost.errors import RequestError, RequestTooLargeError
from milepost.memory.capacity import max_sequence_tokens, sequence_pages
from milepost.memory.layout import Layout
from milepost.memory.pool import PagePool
from milepost.scheduler.config import SchedulerConfig
from milepost.types import Request, SamplingParams, SymbolicTokens

__all__ = ["Limits"]

_INTEGER = frozenset([int])


class Limits:
    """Limits of a request that follow from configuration, layout and pool, and never change.

    Attributes:
        max_length: most tokens of a request, prompt and output together.
    """

    def __init__(self, config: SchedulerConfig, layout: Layout, pool: PagePool) -> None:
        self._config = config
        self._layout = layout
        self._num_usable = pool.num_usable
        # The last token drawn is never computed, so it needs no room in a page.
        self.max_length = min(config.max_model_len, max_sequence_tokens(layout, pool.num_pages) + 1)
        # All choices of one request share their prompt, and each is validated at more than one door.
        self._sound_prompt: tuple[int, ...] | None = None

    def validate(self, request: Request) -> None:
        """Refuse what could never be served. Safe from any thread.

        A prompt is served when it and one token of output fit into the context and the pool. Output
        that grows into either limit ends with `FinishReason.LENGTH`, whatever ``max_tokens`` asked.

        Raises:
            RequestTooLargeError: the request can never fit; says its need and the limit.
            RequestError: the prompt is empty, or it or the sampling parameters name a token that the model
                does not know.
        """
        self._validate_sampling(request.sampling)
        prompt = request.prompt_token_ids
        if not prompt:
            raise RequestError("The prompt must hold at least one token. Given: none.", param="prompt")
        if len(prompt) + 1 > self._config.max_model_len:
            raise RequestTooLargeError(
                f"The prompt must be at most {self._config.max_model_len - 1} tokens, the context length "
                f"less one token of output. Given: {len(prompt)}. Shorten it.",
                param="prompt",
            )
        if len(prompt) + 1 > self.max_length:
            raise RequestTooLargeError(
                f"The prompt needs {sequence_pages(self._layout, len(prompt))} pages of memory and the "
                f"engine has {self._num_usable}: prompts can be at most {self.max_length - 1} tokens. "
                f"Given: {len(prompt)}. Shorten it, or start the engine with more memory.",
                param="prompt",
            )
        if isinstance(prompt, SymbolicTokens):
            return  # nothing in them could be wrong
        if prompt is self._sound_prompt:
            return
        if not _INTEGER.issuperset(map(type, prompt)):  # quicker than a loop: prompts may be very long
            wrong = next(token_id for token_id in prompt if type(token_id) is not int)
            raise RequestError(
                f"Prompt token ids must be integers. Given: {wrong!r:.60}, {type(wrong).__name__}.",
                param="prompt",
            )
        vocab_size = self._config.vocab_size
        if vocab_size is not None and (min(prompt) < 0 or max(prompt) >= vocab_size):
            raise RequestError(
                f"Prompt token ids must be between 0 and {vocab_size - 1}. "
                f"Given: {min(prompt)} to {max(prompt)}.",
                param="prompt",
            )
        if isinstance(prompt, tuple):  # what can't change stays sound
            self._sound_prompt = prompt

    def _validate_sampling(self, sampling: SamplingParams) -> None:
        vocab_size = self._config.vocab_size
        if vocab_size is None:
            return
        for name, token_ids in (
            ("logit_bias", sampling.logit_bias),
            ("stop_token_ids", sampling.stop_token_ids),
        ):
            if token_ids and max(token_ids) >= vocab_size:
                raise RequestError(
                    f"{name} must hold token ids between 0 and {vocab_size - 1}. Given: {max(token_ids)}.",
                    param=name,
                )

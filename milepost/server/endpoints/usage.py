"""Token counts of a reply with one choice or many."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from milepost.server.protocol.responses import CompletionTokensDetails, PromptTokensDetails, UsageBody
from milepost.types import Usage

__all__ = ["Tally"]


class Tally:
    """Adds up what the choices of one HTTP request cost; a prompt counts once, however many choices it has.

    Args:
        prompt_lengths: tokens of each prompt; choice i belongs to prompt ``i // choices_each``.
        choices_each: choices of each prompt.
    """

    def __init__(self, prompt_lengths: Sequence[int], choices_each: int) -> None:
        self._prompt_lengths = prompt_lengths
        self._each = choices_each
        self._usages: list[Usage | None] = [None] * (len(prompt_lengths) * choices_each)
        self._reasoning: int | None = None

    def note(self, choice: int, usage: Usage, reasoning_tokens: int | None = None) -> None:
        """Take the newest counts of a choice, and how many of its new tokens it thought; None is unknown."""
        self._usages[choice] = usage
        if reasoning_tokens is not None:
            self._reasoning = (self._reasoning or 0) + reasoning_tokens

    def body(self) -> UsageBody:
        """The counts so far."""
        prompt = sum(self._prompt_lengths)
        output = sum(usage.output_tokens for usage in self._usages if usage is not None)
        return UsageBody(
            prompt_tokens=prompt,
            completion_tokens=output,
            total_tokens=prompt + output,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._cached()),
            completion_tokens_details=UNSET
            if self._reasoning is None
            else CompletionTokensDetails(reasoning_tokens=self._reasoning),
        )

    def _cached(self) -> int:
        """Of each prompt, what none of its choices computed: the first one computes it for the others."""
        total = 0
        for start in range(0, len(self._usages), self._each):
            known = [usage for usage in self._usages[start : start + self._each] if usage is not None]
            total += min((usage.cached_tokens for usage in known), default=0)
        return total

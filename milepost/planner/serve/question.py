"""What ``milepost plan serve`` is asked: a deployment, its requests, limits, a price, drafts."""

from __future__ import annotations

import msgspec

from milepost.errors import ConfigError
from milepost.planner.deployment import Deployment
from milepost.planner.limits import check_within
from milepost.planner.serve.speculation import Speculation

__all__ = ["ServeQuestion", "check_question"]

MOST_TOKENS = 1 << 30
MOST_DEVICES = 1 << 14
MOST = 1e9
"""Of seconds and of prices: what is more is a slip of the pen."""


class ServeQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be planned.

    Attributes:
        deployment: the model, on what, divided how. A search chooses those ranks that are left as they are
            by default.
        input_tokens: of a prompt.
        output_tokens: of an answer.
        hit_tokens: of the prompt, those that a prefix cache has; at most all but one.
        batch: sequences that decode together in one tensor-parallel group; 0 for the most that memory and
            limits allow.
        token_budget: most tokens of a step of one group; 0: a search tries several, else 8,192.
        ttft_limit_seconds: of the time to the first token, in the mean; None for none.
        tpot_limit_seconds: of the time for each further token, in the mean; None for none.
        price_per_hour: of one device; None: costs are left out.
        slots: states of each running request, snapshots of its prompt among them; a measured mean may be
            a fraction.
        slots_source: where `slots` is from, in words.
        lengths_source: where the tokens of a request are from, in words.
        notes: what a reader must know of either.
        speculation: drafts that the model verifies; None for none.
        gpus: (fewest, most) devices of a search; None plans the one arrangement of `deployment`.
    """

    deployment: Deployment = Deployment()
    input_tokens: int = 8192
    output_tokens: int = 1024
    hit_tokens: int = 0
    batch: int = 0
    token_budget: int = 0
    ttft_limit_seconds: float | None = None
    tpot_limit_seconds: float | None = None
    price_per_hour: float | None = None
    slots: float = 1.0
    slots_source: str = "--slots"
    lengths_source: str = ""
    notes: tuple[str, ...] = ()
    speculation: Speculation | None = None
    gpus: tuple[int, int] | None = None

    @property
    def new_tokens(self) -> int:
        """Tokens of a prompt that are computed."""
        return self.input_tokens - self.hit_tokens

    @property
    def length_tokens(self) -> int:
        """Tokens of a finished sequence."""
        return self.input_tokens + self.output_tokens


def check_question(question: ServeQuestion, max_position: int) -> None:
    """Refuse what no deployment could do.

    Args:
        question: to be checked.
        max_position: tokens of the model's longest sequence.

    Raises:
        ConfigError: what, its limit, what was given.
    """
    for name, least in (("input_tokens", 1), ("output_tokens", 1), ("hit_tokens", 0), ("batch", 0)):
        check_within(name, getattr(question, name), least, MOST_TOKENS)
    check_within("token_budget", question.token_budget, 0, MOST_TOKENS)
    if question.hit_tokens >= question.input_tokens:
        raise ConfigError(
            f"hit_tokens must be below input_tokens, as the last token is always computed. "
            f"Given: {question.hit_tokens:,} of {question.input_tokens:,}."
        )
    if question.length_tokens > max_position:
        raise ConfigError(
            f"A sequence of this model must be at most {max_position:,} tokens long. Given: "
            f"{question.input_tokens:,} of input and {question.output_tokens:,} of output."
        )
    for limit in ("ttft_limit_seconds", "tpot_limit_seconds", "price_per_hour"):
        value = getattr(question, limit)
        if value is not None and not 0 < value <= MOST:  # also refuses NaN
            raise ConfigError(f"{limit} must be above 0 and at most {MOST:g}. Given: {value}.")
    if not 1.0 <= question.slots <= 1e6:  # also refuses NaN
        raise ConfigError(
            f"slots must be at least 1, the state of the running sequence. Given: {question.slots}."
        )
    if question.gpus is not None:
        fewest, most = question.gpus
        check_within("gpus", fewest, 1, MOST_DEVICES)
        check_within("gpus", most, 1, MOST_DEVICES)
        if fewest > most:
            raise ConfigError(f"A range of gpus must go up. Given: {fewest}-{most}.")

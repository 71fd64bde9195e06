"""What goes first when pages are needed: eviction policies.

What is evicted is always a snapshot, together with the KV that only it needed; KV that no snapshot
stands on can never be hit and goes before anything else, without a policy being asked. The same
holds for spare snapshots, which go in an order that keeps a spread.

    parse_eviction("lru")                  the longest unused goes first
    parse_eviction("marconi(alpha=0.5)")   recency + alpha * FLOPs saved per byte freed
    parse_eviction("value")                expected tokens saved per page and second (the default)

Thousands of candidates are scored at a time, so a score is a few operations on numbers.
"""

from __future__ import annotations

import math
from typing import Protocol

from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.prefix.plan import Reason
from milepost.prefix.reuse_rates import ReuseRates
from milepost.prefix.terms import parse_terms

__all__ = ["Candidate", "EvictionPolicy", "Lru", "Marconi", "Value", "parse_eviction"]

# The defaults of `Value`.
EXPONENT = 0.5
PATIENCE = 60.0

# A superseded snapshot has lost its purpose: it goes before those that have one, however they compare.
SUPERSEDED_FACTOR = 1e-6


class Candidate(Protocol):
    """A cached snapshot as an eviction policy sees it."""

    @property
    def position(self) -> int:
        """Tokens that its state has seen."""
        ...

    @property
    def gap(self) -> int:
        """Tokens from the deepest snapshot before it on its path: what is lost when it is gone."""
        ...

    @property
    def freed_pages(self) -> int:
        """Pages that come free with it: its state, and KV that nothing else needs."""
        ...

    @property
    def used_at(self) -> float:
        """Seconds, when it was last consumed, else when it was written."""
        ...

    @property
    def hits(self) -> int:
        """How often it was consumed."""
        ...

    @property
    def reason(self) -> Reason:
        """Why it was left."""
        ...

    @property
    def superseded(self) -> bool:
        """Its conversation went on behind it, where an append-only chat looks, and nobody else used it."""
        ...


class EvictionPolicy(Protocol):
    """Says which cached snapshot is worth least; the same classes run in the engine and in the simulator."""

    @property
    def name(self) -> str:
        """The policy as it is written on the command line."""
        ...

    def worth(self, candidate: Candidate, now: float) -> float:
        """How much it is worth to keep `candidate` at `now` (seconds); the least goes first."""
        ...

    def written(self, candidate: Candidate, now: float) -> None:
        """A snapshot was left for its reason and published, spare ones too.

        Called once more for a spare one that gets a better reason.
        """
        ...

    def consumed(self, candidate: Candidate, now: float) -> None:
        """A request has just resumed from `candidate`, whose fields are still those from before."""
        ...


class Lru:
    """The longest unused goes first."""

    steady = True  # a worth changes with use alone, see `Evictor`

    @property
    def name(self) -> str:
        """``lru``."""
        return "lru"

    def worth(self, candidate: Candidate, now: float) -> float:  # noqa: ARG002  # the protocol's signature
        """When it was used last, seconds."""
        return candidate.used_at

    def written(self, candidate: Candidate, now: float) -> None:
        """Nothing to learn."""

    def consumed(self, candidate: Candidate, now: float) -> None:
        """Nothing to learn."""


class Marconi:
    """Recency plus `alpha` times the FLOPs saved per byte freed (Marconi, arXiv 2411.19379, section 4.2).

    The paper takes 1 / age for recency and brings both terms to 0..1 by the least and the greatest
    value among all candidates of the moment. A candidate that is scored alone knows neither, so

    - recency is 1 / (1 + age in seconds), which is 1 for one that was used just now and goes to 0;
    - FLOPs per byte are divided by the greatest value that this policy has met so far;
    - FLOPs are counted as tokens to be computed again: their share that grows with the context
      (attention) is left out;
    - bytes are the pages that come free; the paper counts the KV of the whole prefix, shared or not.

    Args:
        alpha: weight of the second term. Its own tuner chooses 0 on the conversation trace that we
            compare on, and greater ones hurt there.
    """

    def __init__(self, alpha: float = 0.0) -> None:
        self.alpha = alpha
        self._greatest = 0.0

    @property
    def name(self) -> str:
        """Such as ``marconi(alpha=0.5)``."""
        return f"marconi(alpha={self.alpha:g})"

    def worth(self, candidate: Candidate, now: float) -> float:
        """Recency + alpha * efficiency, 0 .. 1 + alpha."""
        recency = 1.0 / (1.0 + max(now - candidate.used_at, 0.0))
        if not self.alpha:
            return recency
        efficiency = candidate.gap / max(candidate.freed_pages, 1)
        self._greatest = max(self._greatest, efficiency)
        return recency + self.alpha * efficiency / self._greatest if efficiency else recency

    def written(self, candidate: Candidate, now: float) -> None:
        """Nothing to learn."""

    def consumed(self, candidate: Candidate, now: float) -> None:
        """Nothing to learn."""


class Value:
    """Expected tokens saved per page and second; learns which reasons' snapshots come back.

        worth = (chance of reuse * (1 + hits) * gap / freed pages) ^ exponent / (age + patience)

    1 / (age + patience) is the rate at which a snapshot unused for `age` is asked for when the times
    between uses follow a power law (Lomax). Hits keep the beginning that half of all prompts share:
    its gap is short, and without them it goes as soon as nobody comes for a minute. An exponent
    below 1 and the other constants were found on a trace, see docs/log.md. Chances are learned by
    reason, see `ReuseRates`. A superseded snapshot is worth next to nothing.

    Args:
        exponent: weight of what a page saves against age; 0 is recency alone.
        patience: seconds within which age hardly counts.
    """

    def __init__(self, exponent: float = EXPONENT, patience: float = PATIENCE) -> None:
        self.exponent = exponent
        self.patience = patience
        self._rates = ReuseRates()

    @property
    def name(self) -> str:
        """``value``, with the parameters that aren't the defaults."""
        given = (("exponent", self.exponent, EXPONENT), ("patience", self.patience, PATIENCE))
        changed = [f"{key}={number:g}" for key, number, usual in given if number != usual]
        return f"value({','.join(changed)})" if changed else "value"

    def worth(self, candidate: Candidate, now: float) -> float:
        """What a page of it is expected to save, to the exponent, over its age."""
        hits = candidate.hits
        chance = (self._rates.later if hits else self._rates.first)[candidate.reason]
        saved = chance * (1 + hits) * candidate.gap / (candidate.freed_pages or 1)
        worth = math.pow(saved, self.exponent) / (max(now - candidate.used_at, 0.0) + self.patience)
        return worth * SUPERSEDED_FACTOR if candidate.superseded else worth

    def written(self, candidate: Candidate, now: float) -> None:  # noqa: ARG002  # the protocol's signature
        """Count it among those that may be reused."""
        self._rates.written(candidate.reason)

    def consumed(self, candidate: Candidate, now: float) -> None:  # noqa: ARG002  # the protocol's signature
        """Count it as reused."""
        self._rates.consumed(candidate.reason, candidate.hits)


_OPTION = "eviction"
_RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "lru": {},
    "marconi": {"alpha": (0.0, 1e6)},
    "value": {"exponent": (0.0, 4.0), "patience": (1e-3, 1e9)},
}
"""Every policy's parameters, with the least and the greatest value."""


def parse_eviction(text: str) -> EvictionPolicy:
    """The policy that `text` names, with its parameters, such as ``marconi(alpha=0.5)``.

    Raises:
        ConfigError: an unknown name or parameter (with the nearest match), more than one policy, or a
            value that is no number or out of range.
    """
    terms = parse_terms(_OPTION, text)
    if len(terms) > 1:
        raise ConfigError(f"{_OPTION} takes one policy. Given: {text!r:.100}.")
    (term,) = terms
    if term.name not in _RANGES:
        raise ConfigError(one_of(_OPTION, term.name, _RANGES))
    numbers = {key: _number(term.name, key, value) for key, value in term.bind([*_RANGES[term.name]]).items()}
    if term.name == "lru":
        return Lru()
    return Marconi(**numbers) if term.name == "marconi" else Value(**numbers)


def _number(policy: str, key: str, value: str) -> float:
    low, high = _RANGES[policy][key]
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not low <= number <= high:  # also refuses NaN
        raise ConfigError(
            f"{_OPTION}: {policy}'s {key} must be a number between {low:g} and {high:g}. "
            f"Given: {value!r:.100}."
        )
    return number

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
import re
from collections.abc import Mapping
from typing import Protocol

from milepost.error_text import nearest
from milepost.errors import ConfigError
from milepost.prefix.plan import Reason
from milepost.prefix.reuse_rates import ReuseRates

__all__ = ["Candidate", "EvictionPolicy", "Lru", "Marconi", "Value", "parse_eviction"]

# A superseded snapshot has lost its purpose: it goes before all that have one, however they compare.
# Tokens per page, ages and chances of two snapshots rarely differ by more than this.
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
        """Never hit, and its conversation went on behind it, where an append-only chat looks."""
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

    def written(self, reason: Reason) -> None:
        """A snapshot was left for `reason` and published; called once for each, spare ones too."""
        ...

    def consumed(self, candidate: Candidate, now: float) -> None:
        """A request has just resumed from `candidate`, whose fields are still those from before."""
        ...


class Lru:
    """The longest unused goes first."""

    RANGES: Mapping[str, tuple[float, float]] = {}

    @property
    def name(self) -> str:
        """``lru``."""
        return "lru"

    def worth(self, candidate: Candidate, now: float) -> float:  # noqa: ARG002  # the protocol's signature
        """When it was used last, seconds."""
        return candidate.used_at

    def written(self, reason: Reason) -> None:
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

    RANGES: Mapping[str, tuple[float, float]] = {"alpha": (0.0, 1e6)}

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

    def written(self, reason: Reason) -> None:
        """Nothing to learn."""

    def consumed(self, candidate: Candidate, now: float) -> None:
        """Nothing to learn."""


class Value:
    """Expected tokens saved per page and second; learns which reasons' snapshots come back.

        worth = chance of reuse * (gap / freed pages) ^ exponent / (age + patience)

    1 / (age + patience) is the rate at which a snapshot unused for `age` is asked for when the times
    between uses follow a power law (Lomax). The exponent below 1 was found on traces: long gaps save
    more, and come back less often. Chances are learned by reason, see `ReuseRates`. A superseded
    snapshot is worth next to nothing.

    Args:
        exponent: weight of the tokens saved per page; 0 ignores them.
        patience: seconds within which age hardly counts.
    """

    RANGES: Mapping[str, tuple[float, float]] = {"exponent": (0.0, 4.0), "patience": (1e-3, 1e9)}

    def __init__(self, exponent: float = 0.5, patience: float = 60.0) -> None:
        self.exponent = exponent
        self.patience = patience
        self._rates = ReuseRates()

    @property
    def name(self) -> str:
        """``value``, with the parameters that aren't the defaults."""
        default = Value.__init__.__defaults__ or ()
        given = {"exponent": self.exponent, "patience": self.patience}
        changed = [
            f"{key}={x:g}" for (key, x), usual in zip(given.items(), default, strict=True) if x != usual
        ]
        return f"value({','.join(changed)})" if changed else "value"

    def worth(self, candidate: Candidate, now: float) -> float:
        """Chance of reuse times tokens per page to the exponent, per second."""
        rates = self._rates
        chance = (rates.later if candidate.hits else rates.first)[candidate.reason]
        density = candidate.gap / (candidate.freed_pages or 1)
        age = now - candidate.used_at
        worth = chance * math.pow(density, self.exponent) / (max(age, 0.0) + self.patience)
        return worth * SUPERSEDED_FACTOR if candidate.superseded else worth

    def written(self, reason: Reason) -> None:
        """Count it among those that may be reused."""
        self._rates.written(reason)

    def consumed(self, candidate: Candidate, now: float) -> None:  # noqa: ARG002  # the protocol's signature
        """Count it as reused."""
        self._rates.consumed(candidate.reason, candidate.hits)


_POLICIES: dict[str, type[Lru] | type[Marconi] | type[Value]] = {
    "lru": Lru,
    "marconi": Marconi,
    "value": Value,
}
_FORM = re.compile(r"\s*([\w-]+)\s*(?:\(([^()]*)\)\s*)?")


def parse_eviction(text: object) -> EvictionPolicy:
    """A policy from its name and, in brackets, parameters, such as ``marconi(alpha=0.5)``.

    Raises:
        ConfigError: an unknown name or parameter (with the nearest match), one given twice, a value
            that is no number or out of range.
    """
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigError(
            f"eviction must be a policy's name, with parameters in brackets where it has some, such as "
            f"'marconi(alpha=0.5)'. Given: {text!r:.100}."
        )
    name, inside = found[1], found[2]
    policy = _POLICIES.get(name)
    if policy is None:
        raise ConfigError(
            f"eviction must be one of {', '.join(_POLICIES)}. Given: {name!r:.100}.{nearest(name, _POLICIES)}"
        )
    numbers: dict[str, float] = {}
    for part in (inside or "").split(",") if (inside or "").strip() else ():
        key, value = _parameter(name, part, policy.RANGES)
        if key in numbers:
            raise ConfigError(f"eviction {name}: the parameter {key!r} is given twice. Leave one out.")
        numbers[key] = value
    return policy(**numbers)


def _parameter(policy: str, part: str, ranges: Mapping[str, tuple[float, float]]) -> tuple[str, float]:
    key, equals, value = (piece.strip() for piece in part.partition("="))
    if key not in ranges:
        known = f"Known: {', '.join(ranges)}." if ranges else "It takes none."
        raise ConfigError(f"eviction {policy} has no parameter {key!r:.100}.{nearest(key, ranges)} {known}")
    low, high = ranges[key]
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or not low <= number <= high:
        raise ConfigError(
            f"eviction {policy}: {key} must be a number between {low:g} and {high:g}, written "
            f"'{key}=NUMBER'. Given: {part.strip()!r:.100}."
        )
    return key, number

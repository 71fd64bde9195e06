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
from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.prefix.keys import Key
from milepost.prefix.kinds import ANY, INSIDE, WIDER, kind_of_end, kind_of_passed
from milepost.prefix.plan import Reason
from milepost.prefix.reuse_rates import ReturnRates
from milepost.prefix.stays import NEW, Places, Stay, Visit
from milepost.prefix.terms import parse_terms

__all__ = ["Candidate", "EvictionPolicy", "Lru", "Marconi", "Unlearning", "Value", "parse_eviction"]


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
    def unit_key(self) -> Key:
        """Key of the whole unit at or before it."""
        ...

    @property
    def inside(self) -> bool:
        """Whether its prompt was known to go on behind it when it was written."""
        ...

    @property
    def visit(self) -> Visit:
        """What its request's first look-up told."""
        ...

    stay: Stay | None
    """A policy's own: how long its place has been waiting."""

    heir: Stay | None
    """A policy's own: for whom it stands in, whose snapshot is gone."""


class EvictionPolicy(Protocol):
    """Says which cached snapshot is worth least; the same classes run in the engine and in the simulator."""

    steady: bool
    """Whether a worth changes with use alone; then it need not be computed anew as time goes by."""

    @property
    def name(self) -> str:
        """The policy as it is written on the command line."""
        ...

    def worth(self, candidate: Candidate, now: float) -> float:
        """How much it is worth to keep `candidate` at `now` (seconds); the least goes first."""
        ...

    def looked_up(self, keys: Sequence[Key], num_tokens: int, now: float) -> Visit:
        """A request was looked up for the first time: the full keys of its path, all its tokens."""
        ...

    def written(self, candidate: Candidate, now: float) -> None:
        """A snapshot was left for its reason and published, spare ones too.

        Called once more for a spare one that gets a better reason.
        """
        ...

    def consumed(self, candidate: Candidate, now: float) -> None:
        """A request has just resumed from `candidate`, whose fields are still those from before."""
        ...

    def dropped(self, candidate: Candidate, before: Candidate | None, now: float) -> None:
        """`candidate` goes; `before` is the snapshot before it on its path."""
        ...


class Unlearning:
    """What the policies have in common that learn nothing."""

    steady = False

    def looked_up(self, keys: Sequence[Key], num_tokens: int, now: float) -> Visit:  # noqa: ARG002
        """Nothing to learn."""
        return NEW

    def written(self, candidate: Candidate, now: float) -> None:
        """Nothing to learn."""

    def consumed(self, candidate: Candidate, now: float) -> None:
        """Nothing to learn."""

    def dropped(self, candidate: Candidate, before: Candidate | None, now: float) -> None:
        """Nothing to learn."""


class Lru(Unlearning):
    """The longest unused goes first."""

    steady = True

    @property
    def name(self) -> str:
        """``lru``."""
        return "lru"

    def worth(self, candidate: Candidate, now: float) -> float:  # noqa: ARG002  # the protocol's signature
        """When it was used last, seconds."""
        return candidate.used_at


class Marconi(Unlearning):
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
        number = f"{Decimal(str(self.alpha)):f}".removesuffix(".0")  # no exponent: it can be read again
        return f"marconi(alpha={number})"

    def worth(self, candidate: Candidate, now: float) -> float:
        """Recency + alpha * efficiency, 0 .. 1 + alpha."""
        recency = 1.0 / (1.0 + max(now - candidate.used_at, 0.0))
        if not self.alpha:
            return recency
        efficiency = candidate.gap / max(candidate.freed_pages, 1)
        self._greatest = max(self._greatest, efficiency)
        return recency + self.alpha * efficiency / self._greatest if efficiency else recency


class Value:
    """Expected tokens saved per page and second; learns which places come back, and how soon.

        worth = gap / freed pages * rate of its place at its age

    Places fall into kinds by what is known when a prompt comes: how many turns of a conversation it goes on
    from, and how many tokens are new, by powers of two; a place inside a prompt; a place that was asked for
    once, twice and so on, such as the state that a later turn has left behind, or a system prompt. What a
    kind is worth is counted, see `ReturnRates`: nothing here says that a superseded state is worthless.

    Whoever asks for a place whose snapshot is gone resumes from the one before it. So a snapshot that goes
    leaves its expectations to that one, as its `heir`.
    """

    steady = False

    def __init__(self) -> None:
        self._rates = ReturnRates(WIDER)
        self._places = Places()

    @property
    def name(self) -> str:
        """``value``."""
        return "value"

    def worth(self, candidate: Candidate, now: float) -> float:
        """Tokens that a page of it is expected to save in a second, at best."""
        stay, heir = candidate.stay, candidate.heir
        if stay is None:
            rate = self._rates.rate(ANY, now - candidate.used_at)
        else:
            rate = self._rates.rate(stay.kind, now - stay.since)
        if heir is not None:
            rate += self._rates.rate(heir.kind, now - heir.since)
        return rate * candidate.gap / (candidate.freed_pages or 1)

    def looked_up(self, keys: Sequence[Key], num_tokens: int, now: float) -> Visit:
        """The deepest place on the prompt's path was asked for; it waits for the next to come."""
        self._rates.pass_time(now)
        stay = self._places.deepest(keys)
        if stay is None:
            return Visit(0, num_tokens)
        turns = stay.turns if stay.passes else stay.turns + 1
        visit = Visit(turns, max(num_tokens - stay.position, 0))
        self._rates.end(stay, now)
        if self._places.get(keys[-1]) is stay:  # the prompt ends where it went on from
            stay.passes += 1
            self._end_at(stay, visit, now)
        else:
            self._pass(stay, now)
        return visit

    def written(self, candidate: Candidate, now: float) -> None:
        """Its place waits from now on; a spare one's is none until somebody resumes there."""
        if candidate.reason is Reason.SPARE:
            return
        stay = self._places.get(candidate.unit_key)
        if stay is None:
            stay = Stay(INSIDE, candidate.position, candidate.visit.turns)
            self._places.put(candidate.unit_key, stay)
            if candidate.inside:
                self._rates.begin(stay, now)
        if not candidate.inside:
            self._end_at(stay, candidate.visit, now)
        candidate.stay = stay

    def consumed(self, candidate: Candidate, now: float) -> None:
        """Whoever came for what stood behind it has been served; a spare one becomes a place like others."""
        candidate.heir = None
        if candidate.stay is None:
            stay = self._places.get(candidate.unit_key)
            if stay is None:
                stay = Stay(ANY, candidate.position, candidate.visit.turns)
                self._places.put(candidate.unit_key, stay)
                self._pass(stay, now)
            candidate.stay = stay

    def dropped(self, candidate: Candidate, before: Candidate | None, now: float) -> None:
        """The snapshot before it inherits who is expected here, if nobody likelier is expected there."""
        if before is None:
            return
        for stay in (candidate.stay, candidate.heir):
            if stay is None:
                continue
            rate, known = self._rates.rate(stay.kind, now - stay.since), before.heir
            if known is None or rate > self._rates.rate(known.kind, now - known.since):
                before.heir = stay

    def _end_at(self, stay: Stay, visit: Visit, now: float) -> None:
        stay.turns = visit.turns
        stay.kind = kind_of_end(visit)
        self._rates.begin(stay, now)

    def _pass(self, stay: Stay, now: float) -> None:
        stay.passes += 1
        stay.kind = kind_of_passed(stay.passes)
        self._rates.begin(stay, now)


_OPTION = "eviction"
_RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "lru": {},
    "marconi": {"alpha": (0.0, 1e6)},
    "value": {},
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
    return Marconi(**numbers) if term.name == "marconi" else Value()


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

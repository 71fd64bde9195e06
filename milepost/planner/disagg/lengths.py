"""Which requests come: lengths of prompts and outputs, as weighted points of a distribution.

Percentiles become a distribution that has exactly these percentiles: the logarithm of a length is piecewise
linear in the normal quantile z, so between two given percentiles, and beyond them, it is a log-normal one.
Two percentiles give one log-normal distribution; one gives requests that are all alike.

    log n(p) = log n_i + (z(p) - z_i) (log n_(i+1) - log n_i) / (z_(i+1) - z_i)      z: the normal quantile
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import NormalDist

import msgspec

from milepost.errors import ConfigError
from milepost.sim.traces.options import MAX_TOKENS

__all__ = ["Lengths", "Mix", "Share", "mix_of", "parse_lengths", "truncated_log_normal"]

POINTS = 200
"""Points of equal weight that a distribution is taken at: the middles of so many equal parts."""

_NORMAL = NormalDist()
_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
_COUNT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([kKmM]?)")
_PERCENTILE = re.compile(r"[pP]([0-9]{1,2}(?:\.[0-9]{1,6})?)")
_FORM = "a number of tokens, or percentiles such as p50=8k,p90=32k,p99=128k (k is 1,024) with min= and max="


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that are alike.

    Attributes:
        weight: their share of all requests.
        prompt_tokens: of the prompt.
        cached_tokens: of them, those that the prefill side has cached.
    """

    weight: float
    prompt_tokens: int
    cached_tokens: int = 0

    @property
    def uncached_tokens(self) -> int:
        """Tokens to compute."""
        return self.prompt_tokens - self.cached_tokens


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """All requests.

    Attributes:
        source: where the lengths are from, in words.
        shares: by ascending uncached tokens; weights add up to 1.
        output_tokens: mean of the outputs.
        decode_context_tokens: mean context of a decode step, over all steps of all requests.
        held_tokens: mean length at the end, over all steps: what a running request will have come to.
        notes: what a reader must know.
    """

    source: str
    shares: tuple[Share, ...]
    output_tokens: float
    decode_context_tokens: float
    held_tokens: float
    notes: tuple[str, ...] = ()

    def mean(self, value: Callable[[Share], float]) -> float:
        """Of a number that each request has."""
        return math.fsum(share.weight * value(share) for share in self.shares)

    @property
    def prompt_tokens(self) -> float:
        """Mean of the prompts."""
        return self.mean(lambda share: share.prompt_tokens)

    @property
    def cached_tokens(self) -> float:
        """Mean of the cached part."""
        return self.mean(lambda share: share.cached_tokens)

    @property
    def longest_tokens(self) -> int:
        """The longest prompt."""
        return max(share.prompt_tokens for share in self.shares)

    def at(self, share: float) -> Share:
        """The request at a share of all, by uncached tokens: 0.9 for the 90th percentile."""
        passed = 0.0
        for one in self.shares:
            passed += one.weight
            if passed >= share - 1e-12:
                return one
        return self.shares[-1]


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of lengths.

    Attributes:
        text: as it was given.
        quantiles: (z, log length) by ascending z; one for lengths that are all alike.
        least: shorter ones count as this.
        most: longer ones count as this.
    """

    text: str
    quantiles: tuple[tuple[float, float], ...]
    least: int = 1
    most: int = MAX_TOKENS

    def at(self, share: float) -> int:
        """The length that a share of all, above 0 and below 1, does not exceed."""
        if len(self.quantiles) == 1:
            return self._within(self.quantiles[0][1])
        z = _NORMAL.inv_cdf(share)
        segment = 0
        while segment < len(self.quantiles) - 2 and z > self.quantiles[segment + 1][0]:
            segment += 1
        (z0, log0), (z1, log1) = self.quantiles[segment : segment + 2]
        return self._within(log0 + (z - z0) * (log1 - log0) / (z1 - z0))

    def points(self, count: int = POINTS) -> tuple[int, ...]:
        """`count` lengths of equal weight, ascending."""
        if len(self.quantiles) == 1:
            return (self.at(0.5),)
        return tuple(self.at((place + 0.5) / count) for place in range(count))

    def _within(self, log_length: float) -> int:
        # exp() of what no length could be would overflow.
        length = round(math.exp(min(log_length, 40.0)))
        return max(self.least, min(self.most, length))


def parse_lengths(option: str, text: str) -> Lengths:
    """Read lengths: "8k", or "p50=8k,p90=32k,p99=128k" with "min=" and "max=" if wanted.

    Raises:
        ConfigError: wrong text, no percentile, percentiles or lengths that do not increase.
    """
    given: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals:
            name, value = ("p50", name) if part == text else (name, "")  # "" is no length: refused
        if (name := name.strip().lower()) in given:
            raise ConfigError(f"{option} names {name} twice. Given: {text!r:.100}.")
        given[name] = _count(option, value.strip(), text)
    least, most = given.pop("min", 1), given.pop("max", MAX_TOKENS)
    if least > most:
        raise ConfigError(f"{option} must have min at or below max. Given: {text!r:.100}.")
    percentiles = [(_percentile(option, name, text), count) for name, count in given.items()]
    if not percentiles:
        raise ConfigError(f"{option} must be {_FORM}. Given: {text!r:.100}.")
    for (before, shorter), (after, longer) in pairwise(percentiles):
        if after <= before or longer < shorter:
            raise ConfigError(
                f"{option} must have percentiles that rise, with lengths that don't fall. "
                f"Given: p{after:g}={longer:,} behind p{before:g}={shorter:,}."
            )
    quantiles = tuple((_NORMAL.inv_cdf(place / 100), math.log(count)) for place, count in percentiles)
    return Lengths(text=text, quantiles=quantiles, least=least, most=most)


def _count(option: str, value: str, text: str) -> int:
    match = _COUNT.fullmatch(value)
    count = round(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if not 1 <= count <= MAX_TOKENS:
        raise ConfigError(
            f"{option} must be {_FORM}; a length is 1 to {MAX_TOKENS:,} tokens. Given: {text!r:.100}."
        )
    return count


def _percentile(option: str, name: str, text: str) -> float:
    match = _PERCENTILE.fullmatch(name)
    place = float(match[1]) if match else 0.0
    if not 0 < place < 100:
        raise ConfigError(
            f"{option} must be {_FORM}; a percentile is above 0 and below 100. Given: {text!r:.100}."
        )
    return place


def truncated_log_normal(mu: float, sigma: float, least: int, most: int) -> Callable[[float], int]:
    """Quantiles of a log-normal distribution of which only what lies between two lengths is drawn.

    Args:
        mu: mean of the logarithm.
        sigma: its standard deviation, above 0.
        least: the shortest that is drawn.
        most: the longest that is drawn.
    """
    low, high = (_NORMAL.cdf((math.log(end) - mu) / sigma) for end in (least, most))

    def quantile(share: float) -> int:
        return round(math.exp(mu + sigma * _NORMAL.inv_cdf(low + share * (high - low))))

    return quantile


def mix_of(prompts: Sequence[int], outputs: Sequence[int], *, hit_rate: float = 0.0, source: str) -> Mix:
    """A mix whose outputs do not depend on the prompts.

    Args:
        prompts: lengths of equal weight.
        outputs: lengths of equal weight.
        hit_rate: share of each prompt that is cached; the last token of a prompt is always computed.
        source: where the lengths are from.
    """
    weight = 1.0 / len(prompts)
    shares = sorted(
        (
            Share(
                weight=weight,
                prompt_tokens=prompt,
                cached_tokens=min(math.floor(prompt * hit_rate), prompt - 1),
            )
            for prompt in prompts
        ),
        key=lambda share: share.uncached_tokens,
    )
    prompt = math.fsum(prompts) / len(prompts)
    output = math.fsum(outputs) / len(outputs)
    squares = math.fsum(count * count for count in outputs) / len(outputs)
    return Mix(
        source=source,
        shares=tuple(shares),
        output_tokens=output,
        # Each of a request's `output` steps weighs alike: longer outputs have more of them.
        decode_context_tokens=prompt + squares / (2 * output),
        held_tokens=prompt + squares / output,
    )

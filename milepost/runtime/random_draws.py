"""Random numbers that depend on a request's seed and the index of the token drawn, nothing else.

The generator is counter-based (Philox 4x64: J. Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011): the key is the seed, the counter starts at a place of its own for each token. So
a draw can be repeated after a preemption, in another batch or in another process.
"""

from __future__ import annotations

import secrets

import numpy as np

# Both are loaded at their first use otherwise: by a request, and not without a descriptor.
import numpy.ma
import numpy.random
from numpy.typing import NDArray

__all__ = ["SeedSource", "draw_any", "gumbel_noise"]

# The upper half of Philox's 128-bit key: draws and seeds never share a stream.
_DRAWS = int.from_bytes(b"tokens__", "big") << 64
_SEEDS = int.from_bytes(b"requests", "big") << 64
_SEED_MASK = (1 << 64) - 1

_BLOCK = 4  # numbers that one step of the counter makes
_COST_OF_A_SKIP = 800  # numbers that are drawn in the time of one skip
_NEAR = 3.0  # scores that are looked at before the others: those this close to the largest


def gumbel_noise(seed: int, index: int, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise of some tokens at the `index`-th output token.

    Adding it to log-probabilities and taking the largest draws from the distribution
    (E. Gumbel, 1954). Unlike a search in the cumulative sum, the outcome depends on the few best
    candidates only, so the last-digit differences between batch shapes practically never change it.

    Args:
        seed: of the request.
        index: output tokens drawn before.
        token_ids: [n], ascending, at least one. A token's noise does not depend on the others.

    Returns:
        [n] float64.
    """
    stream, last = _stream(seed, index), int(token_ids[-1])
    if token_ids.size * _COST_OF_A_SKIP > last:
        return _noise_of(stream.random_raw(last + 1)[token_ids])
    # Few tokens of a large vocabulary: what lies between their numbers is skipped, not drawn.
    bits: list[int] = []
    block, words, at = -1, np.empty(0, np.uint64), 0
    for token_id in token_ids.tolist():
        if token_id // _BLOCK != block:
            block = token_id // _BLOCK
            stream.advance(block - at)
            words, at = stream.random_raw(_BLOCK), block + 1
        bits.append(words[token_id % _BLOCK])
    return _noise_of(np.array(bits, np.uint64))


def draw_any(seed: int, index: int, scores: NDArray[np.float64]) -> int:
    """Draw from a whole vocabulary: the token with the largest score and `gumbel_noise` together.

    Args:
        seed: of the request.
        index: output tokens drawn before.
        scores: [vocab], log-probabilities up to a constant, the largest is 0.

    Returns:
        the first of the largest.
    """
    bits = _stream(seed, index).random_raw(scores.size)
    near = np.flatnonzero(scores > -_NEAR)
    totals = scores[near] + _noise_of(bits[near])
    best = near[totals.argmax()]
    # Any other needs more noise than this to win; a little less is asked for, in case of rounding.
    uniform = np.exp(-np.exp(-(totals.max() + _NEAR))) * (1.0 - 1e-9)
    lucky = np.flatnonzero(bits >= np.uint64(uniform * 2.0**64 * (1.0 - 2.0**-52)))
    ids = np.union1d(lucky, best)
    return int(ids[np.argmax(scores[ids] + _noise_of(bits[ids]))])


def _stream(seed: int, index: int) -> np.random.Philox:
    """The numbers of one draw, the n-th for token n; the counter's upper half is the draw's index."""
    return np.random.Philox(key=_DRAWS | (seed & _SEED_MASK), counter=index << 128)


def _noise_of(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    # The middle of one of 2**53 equal steps of (0, 1): never 0 and never 1. Built from the raw
    # stream, which numpy keeps the same between versions.
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


class SeedSource:
    """Seeds for requests that bring none of their own.

    Args:
        seed: the engine's seed: the n-th seed handed out is then always the same; None draws from
            the system's randomness.
    """

    def __init__(self, seed: int | None) -> None:
        self._bits = None if seed is None else np.random.Philox(key=_SEEDS | (seed & _SEED_MASK))

    def next_seed(self) -> int:
        """A fresh 64-bit seed."""
        if self._bits is None:
            return secrets.randbits(64)
        return int(self._bits.random_raw())

"""Random numbers that depend on a request's seed and the index of the token drawn, nothing else.

The generator is counter-based (Philox 4x64: J. Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011): the key is the seed, the counter starts at a place of its own for each token. So
a draw can be repeated after a preemption, in another batch or in another process.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

__all__ = ["SeedSource", "gumbel_noise"]

# The upper half of Philox's 128-bit key: draws and seeds never share a stream.
_DRAWS = int.from_bytes(b"tokens__", "big") << 64
_SEEDS = int.from_bytes(b"requests", "big") << 64
_SEED_MASK = (1 << 64) - 1


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
    # The counter's upper half is the token's index: 2**128 numbers lie between two tokens.
    stream = np.random.Philox(key=_DRAWS | (seed & _SEED_MASK), counter=index << 128)
    bits = stream.random_raw(int(token_ids[-1]) + 1)[token_ids]
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

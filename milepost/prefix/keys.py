"""Keys of token prefixes: a chained, keyed hash for every match unit, and tail keys in between.

    root    = H_root(salt)                               position 0
    full_i  = H_full(full_{i-1}, tokens of unit i)       position (i + 1) * match_unit, full_{-1} = root
    tail    = H_tail(parent full key, tail tokens)       any other position

H is BLAKE2b (RFC 7693) with a secret key and a digest of 128 bits. Its `person` parameter tells the three
kinds apart, so that a tail never passes for a unit. Without the secret nobody can make two prefixes
collide, or check a guess of what was said against a key. Keys do not depend on the machine: with the same
secret a cache on disk is found again after a restart.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from array import array
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from milepost.errors import ConfigError, InputError, InvariantError

__all__ = ["KEY_BYTES", "Hasher", "Key", "KeyChain", "KeyHasher", "Keys"]

Key: TypeAlias = bytes | int
"""Names a prefix: a hash of its tokens, or a number where a trace knows which prefixes are equal."""

KEY_BYTES = 16
"""Length of every key."""

_SECRET_BYTES = 32  # of a secret that we draw ourselves
_MIN_SECRET_BYTES = 16
_MAX_SECRET_BYTES = hashlib.blake2b.MAX_KEY_SIZE
_TOKEN_BYTES = 4
_MAX_TOKEN = 2**32 - 1


class Keys(Protocol):
    """The keys of one growing sequence of tokens."""

    @property
    def root(self) -> Key:
        """Key of position 0; depends on the salt."""
        ...

    @property
    def full(self) -> Sequence[Key]:
        """``full[i]`` is the key of position ``(i + 1) * match_unit``."""
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Make `full` reach as far as `tokens`, all tokens of the sequence so far, have whole units."""
        ...

    def key_at(self, tokens: Sequence[int], position: int) -> Key:
        """The key of the first `position` of `tokens`."""
        ...


class Hasher(Protocol):
    """Makes the keys of one cache's sequences."""

    @property
    def match_unit(self) -> int:
        """Tokens between two full keys."""
        ...

    def chain(self, salt: str = "") -> Keys:
        """The keys of an empty sequence; with different salts no two keys are equal."""
        ...


class KeyHasher:
    """Makes the key chains of one cache.

    Args:
        match_unit: tokens between two full keys, at least 1.
        secret: key of the hash, 16 to 64 bytes; None draws one for this process alone.

    Raises:
        ConfigError: a match unit or a secret outside these limits.
    """

    __slots__ = ("_full", "_match_unit", "_root", "_tail")

    def __init__(self, match_unit: int, secret: bytes | None = None) -> None:
        if match_unit < 1:
            raise ConfigError(f"match_unit must be at least 1 token. Given: {match_unit}.")
        if secret is None:
            secret = secrets.token_bytes(_SECRET_BYTES)
        if not _MIN_SECRET_BYTES <= len(secret) <= _MAX_SECRET_BYTES:
            raise ConfigError(
                f"The secret of the cache's keys must have {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes. "
                f"Given: {len(secret)} bytes. `openssl rand -hex {_SECRET_BYTES}` makes a good one."
            )
        self._match_unit = match_unit
        self._root = hashlib.blake2b(digest_size=KEY_BYTES, key=secret, person=b"milepost root")
        self._full = hashlib.blake2b(digest_size=KEY_BYTES, key=secret, person=b"milepost full")
        self._tail = hashlib.blake2b(digest_size=KEY_BYTES, key=secret, person=b"milepost tail")

    @property
    def match_unit(self) -> int:
        """Tokens between two full keys."""
        return self._match_unit

    def chain(self, salt: str = "") -> KeyChain:
        """An empty chain; chains with different salts share no key."""
        return KeyChain(self, salt)

    def root(self, salt: str) -> bytes:
        """The key of position 0."""
        state = self._root.copy()
        # Half of a surrogate pair can come in through JSON's escapes; it makes a salt like any other.
        state.update(salt.encode("utf-8", "surrogatepass"))
        return state.digest()

    def full(self, parent: bytes, packed: memoryview) -> list[bytes]:
        """The keys of consecutive units behind `parent`; `packed` has whole units, 4 bytes a token."""
        size = self._match_unit * _TOKEN_BYTES
        # A copy of a keyed state is quicker than a new one, whose arguments are parsed each time.
        copy = self._full.copy
        keys = []
        for start in range(0, len(packed), size):
            state = copy()
            state.update(parent)
            state.update(packed[start : start + size])
            parent = state.digest()
            keys.append(parent)
        return keys

    def tail(self, parent: bytes, packed: bytes) -> bytes:
        """The key of a position less than a unit behind `parent`; `packed` has 4 bytes a token."""
        state = self._tail.copy()
        state.update(parent)
        state.update(packed)
        return state.digest()


class KeyChain:
    """The keys of one growing sequence of tokens; nothing is ever hashed twice.

    Attributes:
        root: key of position 0; depends on the salt.
        full: ``full[i]`` is the key of position ``(i + 1) * match_unit``. Callers only read it.
    """

    __slots__ = ("_hasher", "full", "root")

    def __init__(self, hasher: KeyHasher, salt: str) -> None:
        """Use `KeyHasher.chain`."""
        self._hasher = hasher
        self.root = hasher.root(salt)
        self.full: list[bytes] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Hash the whole units that are new in `tokens`, all tokens of the sequence so far.

        Costs time for the new units alone, however many tokens there are already.

        Raises:
            InputError: a token id outside 0 to 2**32 - 1; the chain stays as it was.
            InvariantError: fewer tokens than were hashed before.
        """
        unit = self._hasher.match_unit
        start = len(self.full) * unit
        if len(tokens) < start:
            raise InvariantError(f"a chain of {start} hashed tokens was given only {len(tokens)} of them")
        end = len(tokens) - len(tokens) % unit
        if start < end:
            packed = _pack(tokens[start:end])
            self.full += self._hasher.full(self.full[-1] if self.full else self.root, memoryview(packed))

    def key_at(self, tokens: Sequence[int], position: int) -> bytes:
        """The key of the first `position` of `tokens`: full at a whole number of units, else a tail key.

        Costs at most one unit's time if `extend` has seen the tokens, else theirs too.

        Raises:
            InputError: as `extend`.
            InvariantError: a position outside 0 to ``len(tokens)``, or fewer tokens than were hashed.
        """
        if not 0 <= position <= len(tokens):
            raise InvariantError(f"position {position} lies outside the {len(tokens)} tokens")
        unit = self._hasher.match_unit
        units = position // unit
        if units > len(self.full):
            self.extend(tokens)
        parent = self.full[units - 1] if units else self.root
        if position == units * unit:
            return parent
        return self._hasher.tail(parent, _pack(tokens[units * unit : position]))


def _pack(tokens: Sequence[int]) -> bytes:
    """Four bytes a token, little-endian."""
    packed = array("I")
    try:
        # Not the constructor: it would take `bytes` for packed numbers.
        packed.extend(tokens)
    except (OverflowError, TypeError) as error:
        raise InputError(_wrong_token(tokens)) from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _wrong_token(tokens: Sequence[object]) -> str:
    wrong = next((t for t in tokens if not isinstance(t, int) or not 0 <= t <= _MAX_TOKEN), tokens)
    return f"A token id must be an integer from 0 to {_MAX_TOKEN}. Given: {wrong!r}."

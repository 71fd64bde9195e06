"""Tags: hashes of tokens that stand for the numbers that a model would have made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["drawn_token", "expected_output", "extend_tag", "root_tag", "tag_of"]

_MASK = (1 << 64) - 1
_EMPTY = 0x243F6A8885A308D3  # the tag of no tokens; any constant does (these are digits of pi)


def root_tag(salt: str = "") -> int:
    """The tag of no tokens, under a request's cache salt: no tag of one salt is one of another."""
    tag = _EMPTY
    for byte in salt.encode():
        # Token ids are not negative, so no prompt spells a salt.
        tag = extend_tag(tag, -1 - byte)
    return tag


def extend_tag(tag: int, token_id: int) -> int:
    """The tag of a sequence that had `tag` before `token_id` came (a splitmix64 step)."""
    mixed = (tag + (token_id + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def tag_of(token_ids: Iterable[int], salt: str = "") -> int:
    """The tag of exactly these tokens."""
    tag = root_tag(salt)
    for token_id in token_ids:
        tag = extend_tag(tag, token_id)
    return tag


def drawn_token(tag: int, vocab_size: int) -> int:
    """The token that follows the tokens of `tag`."""
    return (tag >> 32) % vocab_size


def expected_output(prompt: Sequence[int], count: int, vocab_size: int, salt: str = "") -> list[int]:
    """The first `count` tokens that a request with this prompt draws, whatever else goes on."""
    tag, output = tag_of(prompt, salt), []
    for _ in range(count):
        output.append(drawn_token(tag, vocab_size))
        tag = extend_tag(tag, output[-1])
    return output

"""Why a prompt does not hit more: its tokens, divided among what hits and what is lost by each cause.

0 ............ hit ............ matched ............ evicted KV ............ N-1   N
not computed      state lost            KV lost              unseen          cap
"""

from __future__ import annotations

from collections.abc import Sequence

from milepost.prefix.ghosts import Ghosts
from milepost.prefix.index import Found, PrefixIndex
from milepost.prefix.keys import KeyChain
from milepost.prefix.reports import Explanation, Loss, PathSnapshot

__all__ = ["explain", "losses"]


def explain(
    index: PrefixIndex,
    ghosts: Ghosts,
    chain: KeyChain,
    tokens: Sequence[int],
    found: Found,
    match_unit: int,
) -> Explanation:
    """What a look-up of `tokens` found, and why it did not find more."""
    return Explanation(
        prompt_tokens=len(tokens),
        hit_tokens=0 if found.usable is None else found.usable.position,
        matched_tokens=found.matched.position,
        deepest_snapshot=0 if found.deepest is None else found.deepest.position,
        snapshots=tuple(
            PathSnapshot(position=snapshot.position, reason=snapshot.reason.value, hits=snapshot.hits)
            for snapshot in index.path_snapshots(found.matched, chain, tokens)
        ),
        losses=losses(ghosts, chain, tokens, found, match_unit),
    )


def losses(
    ghosts: Ghosts,
    chain: KeyChain,
    tokens: Sequence[int],
    found: Found,
    match_unit: int,
    *,
    hit: int | None = None,
    in_flight: int = 0,
    other_salt: bool = False,
) -> dict[str, int]:
    """Tokens of a prompt that are computed, by cause; they add up to all but the hit.

    Args:
        ghosts: what was evicted lately.
        chain: the prompt's keys.
        tokens: the prompt.
        found: its look-up.
        match_unit: tokens between full keys.
        hit: tokens that are not computed; None for all that the look-up found.
        in_flight: tokens of the prompt that a running request has planned to compute or is computing.
        other_salt: whether the prompt's beginning is known under another salt. How far it would have
            been matched there is not known, so all tokens that would be unseen are charged to the salt.
    """
    usable = 0 if found.usable is None else found.usable.position
    position = usable if hit is None else hit
    last = len(tokens) - 1  # always computed
    shares: dict[str, int] = {}

    def charge(loss: Loss, up_to: int) -> None:
        nonlocal position
        up_to = min(up_to, last)
        if up_to > position:
            shares[loss.value] = shares.get(loss.value, 0) + up_to - position
            position = up_to

    charge(Loss.NO_MEMORY, usable)
    charge(Loss.EVICTED_STATE, min(ghosts.deepest_state(chain.full), found.matched.position))
    uncovered = found.matched.position - position
    charge(Loss.BELOW_UNIT if uncovered < match_unit else Loss.NO_SNAPSHOT, found.matched.position)
    charge(Loss.EVICTED_KV, ghosts.deepest_kv(chain.full))
    charge(Loss.NOT_PUBLISHED, in_flight)
    charge(Loss.SALT if other_salt else Loss.UNSEEN, last)
    shares[Loss.CAP.value] = 1
    return shares

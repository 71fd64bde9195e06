"""Why a prompt does not hit more: its tokens, divided among what hits and what is lost by each cause.

From the beginning of a prompt of N tokens to its end:

    0 ............ hit ............ matched ............ evicted KV ............ N-1   N
      not computed      state lost            KV lost              unseen          cap
"""

from __future__ import annotations

from collections.abc import Sequence

from milepost.prefix.ghosts import Ghosts
from milepost.prefix.index import PrefixIndex
from milepost.prefix.keys import Keys
from milepost.prefix.reports import Explanation, Loss, PathSnapshot
from milepost.prefix.tiers import Tiers
from milepost.prefix.tree import Found

__all__ = ["explain", "losses"]


def explain(
    index: PrefixIndex,
    ghosts: Ghosts,
    chain: Keys,
    tokens: Sequence[int],
    found: Found,
    *,
    tiers: Tiers | None = None,
    other_salt: bool = False,
) -> Explanation:
    """What a look-up of `tokens` found, and why it did not find more.

    `index` is the arena's; what `tiers` would load first counts as if it were there. The rest is as of
    `losses`.
    """
    hit, loaded, in_tiers = (0 if found.usable is None else found.usable.position), 0, 0
    snapshots = tuple(
        PathSnapshot(position=snapshot.position, reason=snapshot.reason.value, hits=snapshot.hits)
        for snapshot in index.path_snapshots(found.matched, chain, tokens)
    )
    if tiers is not None:
        loaded, in_tiers = tiers.reach(chain, tokens, hit)
        hit = max(hit, loaded)
        snapshots = tiers.path_snapshots(chain, tokens, snapshots)
    return Explanation(
        prompt_tokens=len(tokens),
        hit_tokens=hit,
        matched_tokens=max(loaded, found.matched.position),
        deepest_snapshot=max(loaded, 0 if found.deepest is None else found.deepest.position),
        snapshots=snapshots,
        losses=losses(ghosts, chain, tokens, found, hit=hit, in_tiers=in_tiers, other_salt=other_salt),
    )


def losses(
    ghosts: Ghosts,
    chain: Keys,
    tokens: Sequence[int],
    found: Found,
    *,
    hit: int | None = None,
    in_flight: int = 0,
    in_tiers: int = 0,
    other_salt: bool = False,
) -> dict[str, int]:
    """Tokens of a prompt that are computed, by cause; they add up to all but the hit.

    Args:
        ghosts: what was evicted lately.
        chain: the prompt's keys.
        tokens: the prompt.
        found: its look-up.
        hit: tokens that are not computed; None for all that the look-up found.
        in_flight: tokens of the prompt that a running request has planned to compute or is computing.
        in_tiers: tokens of the prompt up to the deepest snapshot that a tier behind the arena has.
        other_salt: whether the prompt's beginning is known under another salt. How far it would have
            been matched there is not known, so all tokens that would be unseen are charged to the salt,
            unless the beginning is known under the prompt's own one too.
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
    charge(Loss.NOT_LOADED, in_tiers)
    charge(Loss.EVICTED_STATE, min(ghosts.deepest_state(chain.full, position), found.matched.position))
    uncovered = found.matched.position - position
    charge(Loss.BELOW_UNIT if uncovered < ghosts.match_unit else Loss.NO_SNAPSHOT, found.matched.position)
    charge(Loss.EVICTED_KV, ghosts.deepest_kv(chain.full, position))
    charge(Loss.NOT_PUBLISHED, in_flight)
    charge(Loss.SALT if other_salt and not found.matched.position else Loss.UNSEEN, last)
    shares[Loss.CAP.value] = 1
    return shares

"""Two bounds: a model without a recurrent state, and one whose states cost nothing and memory no end."""

from __future__ import annotations

import msgspec

from milepost.model_spec import ModelSpec
from milepost.sim.presets.block_ends import EveryUnit
from milepost.sim.presets.path_lru import PathLru
from milepost.sim.presets.preset import sizes_of
from milepost.sim.replay.flat_layout import FlatLayout
from milepost.sim.replay.setup import Parts, layout_and_pool
from milepost.sim.runs import RunSpec
from milepost.sim.traces.trace import Trace

__all__ = ["Stateless", "Unlimited"]


class Stateless:
    """KV alone: what simulators for attention models compute, and what a hybrid model can't have.

    Args:
        tails: whether a partly filled last block stays cached, although nobody can find it.
    """

    source = (
        "kvcache-simulator 0.1.3 (PyPI, Apache-2.0), kvcache_sim/policies.py: a trie of whole blocks, LRU "
        "over its leaves, a hit refreshes its path, the current request's path is safe; its figures are "
        "those of the second half of the requests"
    )
    simplifications = (
        "The recurrent state takes no memory and is found at every match unit.",
        (
            "A partly filled last block is kept until it is the longest unused, as kvcache-simulator does; "
            "real engines keep whole blocks only, which stateless(tails=0) does."
        ),
        "The request that is served holds its pages, with the block that its first token needs.",
    )

    def __init__(self, tails: bool = True) -> None:
        self._tails = tails
        self.name = "stateless" if tails else "stateless(tails=0)"

    def parts(self, spec: RunSpec, trace: Trace, model: ModelSpec) -> Parts:
        """A snapshot of no pages at every unit, and LRU by paths."""
        sizes = sizes_of(spec, trace)
        return _stateless_parts(spec, sizes.match_unit, sizes.block_size, model, tails=self._tails)


class Unlimited:
    """The prefix bound in whole match units: every token of an earlier prompt is found again."""

    name = "unlimited"
    source = "by definition: the longest prefix that any earlier prompt has, in whole match units"
    simplifications = (
        "Memory has no end and the recurrent state takes none; a budget that is given is not looked at.",
    )

    def parts(self, spec: RunSpec, trace: Trace, model: ModelSpec) -> Parts:
        """As stateless, with an endless pool."""
        sizes = sizes_of(spec, trace)
        endless = msgspec.structs.replace(spec, budget_bytes=None)
        return _stateless_parts(endless, sizes.match_unit, sizes.block_size, model, tails=False)


def _stateless_parts(
    spec: RunSpec, match_unit: int, block_size: int, model: ModelSpec, *, tails: bool
) -> Parts:
    token_bytes = len(model.mla_layers) * model.mla.row_dim * spec.kv_itemsize
    flat = FlatLayout(block_size=block_size, page_bytes=block_size * token_bytes, pages_per_state=0)
    layout, pool = layout_and_pool(spec.budget_bytes, flat)
    return Parts(
        layout=layout,
        state_bytes=0,
        pool=pool,
        policy=EveryUnit(match_unit, tails=tails),
        eviction=PathLru(),
        match_unit=match_unit,
        # Units are whole blocks, and the end must stay where it is.
        moves_places=False,
    )

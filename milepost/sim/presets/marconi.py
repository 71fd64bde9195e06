"""A model of Marconi: states where prompts part and at the last token, recency and FLOPs per byte."""

from __future__ import annotations

from milepost.memory.layout import paged_layout
from milepost.model_spec import ModelSpec
from milepost.prefix.eviction import Lru, Marconi
from milepost.sim.presets.block_ends import LeafAndBranch
from milepost.sim.presets.preset import number_text, sizes_of
from milepost.sim.replay.flat_layout import FlatLayout
from milepost.sim.replay.setup import Parts, layout_and_pool
from milepost.sim.runs import RunSpec
from milepost.sim.traces.trace import Trace

__all__ = ["MarconiPreset"]


class MarconiPreset:
    """Marconi's admission and eviction in one pool for states and KV.

    Args:
        alpha: weight of FLOPs per byte against recency.
    """

    source = (
        "Marconi: Prefix Caching for the Era of Hybrid LLMs, arXiv 2411.19379 v3, MLSys 2025: section 4.1 "
        "(admission: branch points and the last decoded token), 4.2 (eviction by recency + alpha * FLOPs "
        "per byte)"
    )
    simplifications = (
        (
            "alpha stays what it is; the paper's tuner replays a window of requests to choose it, and "
            "chooses 0 on the conversation trace that we compare on."
        ),
        (
            "Recency and FLOPs per byte are not brought to 0..1 by the candidates of the moment, see "
            "milepost.prefix.eviction.Marconi."
        ),
        (
            "The state of a parting is left when the second prompt that parts there runs, as in the paper; "
            "the paper's speculative insertion runs prefill twice, which costs nothing here."
        ),
        "States and KV take the bytes that they have, rounded up to whole pages of a KV block.",
    )

    def __init__(self, alpha: float = 0.0) -> None:
        self._alpha = alpha
        self.name = "marconi" if not alpha else f"marconi(alpha={number_text(alpha)})"

    def parts(self, spec: RunSpec, trace: Trace, model: ModelSpec) -> Parts:
        """One pool, leaf and branch."""
        sizes = sizes_of(spec, trace)
        paged = paged_layout(
            model,
            kv_itemsize=spec.kv_itemsize,
            recurrent_itemsize=spec.state_itemsize,
            tensor_parallel=spec.tensor_parallel,
        )
        page_bytes = sizes.block_size * paged.kv_bytes_per_token
        flat = FlatLayout(
            block_size=sizes.block_size,
            page_bytes=page_bytes,
            pages_per_state=-(-paged.state_bytes // page_bytes),
        )
        layout, pool = layout_and_pool(spec.budget_bytes, flat)
        return Parts(
            layout=layout,
            state_bytes=paged.state_bytes,
            pool=pool,
            policy=LeafAndBranch(1),
            # Without its second term it is LRU, which need not be asked over and over.
            eviction=Marconi(self._alpha) if self._alpha else Lru(),
            match_unit=sizes.match_unit,
        )

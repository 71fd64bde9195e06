"""A model of vLLM's cache for hybrid models: whole aligned blocks, states where chunks end."""

from __future__ import annotations

from milepost.errors import ConfigError
from milepost.memory.aligned import aligned_layout
from milepost.model_spec import ModelSpec
from milepost.prefix.eviction import Lru
from milepost.sim.presets.block_ends import ChunkEnds
from milepost.sim.presets.preset import sizes_of
from milepost.sim.replay.setup import Parts, layout_and_pool
from milepost.sim.runs import RunSpec
from milepost.sim.traces.trace import Trace

__all__ = ["Vllm"]

_KERNEL_ALIGNMENT = 128


class Vllm:
    """``--mamba-cache-mode align`` with a prefix match unit.

    Args:
        retention: tokens between the chunk ends whose states are kept, rounded up to whole blocks; 0 for
            none but the last and where prompts part; None for all.
        alignment: tokens that the attention kernel takes at a time; the block is a multiple of it.
    """

    source = (
        "vllm-project/vllm, vllm/config/cache.py (mamba_cache_mode, prefix_match_unit, "
        "prefix_cache_retention_interval; read November 2026); pull requests 30877 (align mode), 37898 (a "
        "state where prompts part), 45939 and 46384 (partial hits at the match unit), 45845 and 52216 "
        "(retention interval, 0 by default since August 2026); vllm/platforms/interface.py for the block's "
        "growth"
    )
    simplifications = (
        (
            "Chunks of a prompt are as long as the step's budget allows and end where blocks do, as "
            "vLLM's; the steps that the run itself takes need not, so times differ a little."
        ),
        (
            "All chunk ends are kept unless a retention interval is given: vllm(retention=0) is vLLM's "
            "default since August 2026."
        ),
        (
            "A hit refreshes the state that it resumes from; KV goes when no state needs it, where vLLM's "
            "block queue may drop KV below a state that is still cached."
        ),
        "A running request holds one state; vLLM holds two in align mode, and more with drafts.",
        "States that decoding leaves at block ends are not kept: the traces do not spell outputs out.",
        "A trace that knows only whole blocks moves every place down to one of its own.",
    )

    def __init__(self, retention: int | None = None, alignment: int = _KERNEL_ALIGNMENT) -> None:
        self._retention = retention
        self._alignment = alignment
        given = [] if retention is None else [f"retention={retention}"]
        given += [] if alignment == _KERNEL_ALIGNMENT else [f"alignment={alignment}"]
        self.name = f"vllm({','.join(given)})" if given else "vllm"

    def parts(self, spec: RunSpec, trace: Trace, model: ModelSpec) -> Parts:
        """The aligned layout and states at the ends of its blocks."""
        if spec.block_size:
            raise ConfigError(
                "preset vllm finds its own block_size, a multiple of vllm(alignment=N). "
                f"Given: {spec.block_size}. Leave it out."
            )
        unit = sizes_of(spec, trace).match_unit
        aligned = aligned_layout(
            model,
            kernel_alignment=self._alignment,
            kv_itemsize=spec.kv_itemsize,
            recurrent_itemsize=spec.state_itemsize,
            tensor_parallel=spec.tensor_parallel,
        )
        block = aligned.block_size
        retention = None if self._retention is None else -(-self._retention // block) * block
        layout, pool = layout_and_pool(spec.budget_bytes, aligned)
        return Parts(
            layout=layout,
            layout_name="aligned",
            state_bytes=aligned.pages_per_state * aligned.page_bytes,
            pool=pool,
            policy=ChunkEnds(block, unit, spec.token_budget, retention),
            eviction=Lru(),
            match_unit=unit,
        )

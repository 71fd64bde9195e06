"""A model of SGLang's cache for hybrid models: states at leaves and branches, in slots of their own."""

from __future__ import annotations

from functools import partial

from milepost.errors import ConfigError
from milepost.memory.layout import paged_layout
from milepost.model_spec import ModelSpec
from milepost.sim.presets.block_ends import LeafAndBranch
from milepost.sim.presets.path_lru import PathLru
from milepost.sim.presets.preset import number_text, sizes_of
from milepost.sim.presets.slots import SlotCache
from milepost.sim.replay.flat_layout import FlatLayout
from milepost.sim.replay.setup import Parts, layout_and_pool
from milepost.sim.runs import RunSpec
from milepost.sim.traces.trace import Trace

__all__ = ["Sglang"]

_RATIO = 0.9
_HELD = 3  # the live state and two buffers that take turns
_SLOTS_A_REQUEST = 5  # three, and two more for the buffers: how many requests may run
_GRID = 64  # tokens between the states that the kernel can hand out


class Sglang:
    """``--mamba-radix-cache-strategy extra_buffer``.

    Args:
        ratio: memory of states over memory of KV.
        chunk: tokens of a prefill chunk after each of which a state is left too; 0 for none.
    """

    source = (
        "sgl-project/sglang, srt/model_executor/model_runner_kv_cache_mixin.py (the split by "
        "mamba_full_memory_ratio, 0.9; 3 + 2 slots for each request that may run) and "
        "srt/mem_cache/mamba_radix_cache.py; pull requests 11214 (radix cache of states), 14792 (states "
        "where prompts part, on a grid of 64 tokens, and two buffers a request); documentation of "
        "Qwen3-Next; read November 2026"
    )
    simplifications = (
        (
            "A prompt leaves a state at its end and where it leaves what is cached, down to the grid of 64 "
            "tokens; sglang(chunk=8192) also keeps those that each chunk of a long prefill leaves."
        ),
        (
            "A running request holds three slots and a fifth of the slots may run, as with extra_buffer "
            "and without drafts."
        ),
        (
            "KV that no state needs goes first of all, and else the leaf that was used longest ago; the "
            "radix tree goes by last use alone."
        ),
        "KV is counted in blocks of the run, where SGLang's pages may be smaller.",
        (
            "States that decoding leaves every 256 tokens are left out, but the last where the output is "
            "known."
        ),
    )

    def __init__(self, ratio: float = _RATIO, chunk: int = 0) -> None:
        self.ratio = ratio
        self._chunk = chunk
        given = [] if ratio == _RATIO else [f"ratio={number_text(ratio)}"]
        given += [f"chunk={chunk}"] if chunk else []
        self.name = f"sglang({','.join(given)})" if given else "sglang"

    def parts(self, spec: RunSpec, trace: Trace, model: ModelSpec) -> Parts:
        """Two pools: slots for states, pages for KV.

        Raises:
            ConfigError: a budget too small for the states of one request and a block.
        """
        sizes = sizes_of(spec, trace)
        state_bytes = paged_layout(
            model,
            kv_itemsize=spec.kv_itemsize,
            recurrent_itemsize=spec.state_itemsize,
            tensor_parallel=spec.tensor_parallel,
        ).state_bytes
        token_bytes = len(model.mla_layers) * model.mla.row_dim * spec.kv_itemsize
        flat = FlatLayout(
            block_size=sizes.block_size, page_bytes=sizes.block_size * token_bytes, pages_per_state=0
        )
        slots, kv_bytes = self._split(spec.budget_bytes, state_bytes)
        layout, pool = layout_and_pool(kv_bytes, flat)
        return Parts(
            layout=layout,
            layout_name="split",
            state_bytes=state_bytes,
            pool=pool,
            policy=LeafAndBranch(_GRID, self._chunk),
            eviction=PathLru(),
            match_unit=sizes.match_unit,
            cache_type=partial(SlotCache, slots=slots, held=_HELD),
            max_num_seqs=0 if slots is None else max(1, slots // _SLOTS_A_REQUEST),
        )

    def _split(self, budget_bytes: int | None, state_bytes: int) -> tuple[int | None, int | None]:
        """(slots, bytes of KV)."""
        if budget_bytes is None:
            return None, None
        slots = int(budget_bytes * self.ratio / (1 + self.ratio)) // state_bytes
        if slots < _HELD:
            need = int(_HELD * state_bytes * (1 + self.ratio) / self.ratio) + 1
            raise ConfigError(
                f"preset {self.name} needs a budget of at least {need:,} bytes: a running request holds "
                f"{_HELD} states, and states get {self.ratio / (1 + self.ratio):.0%} of it. "
                f"Given: {budget_bytes:,}. Give more, or leave this preset out."
            )
        return slots, budget_bytes - slots * state_bytes

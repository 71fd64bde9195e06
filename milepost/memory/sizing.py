"""From options to numbers: how large the arena is, and how long a sequence may get in it."""

from __future__ import annotations

import os
from pathlib import Path

from milepost.byte_counts import format_bytes, parse_bytes
from milepost.config import MEMORY_SHARE, EngineConfig, ResolvedConfig
from milepost.errors import ConfigError
from milepost.machine import available_memory, total_memory, usable_cores
from milepost.memory.capacity import max_sequence_tokens, sequence_pages
from milepost.memory.layout import Layout
from milepost.memory.reuse_notes import reuse_notes
from milepost.model_spec import ModelSpec

__all__ = ["resolve"]


def resolve(
    config: EngineConfig,
    spec: ModelSpec,
    layout: Layout,
    *,
    weight_bytes: int = 0,
    available_bytes: int | None = None,
) -> ResolvedConfig:
    """Turn options into numbers.

    Args:
        config: what was asked.
        spec: the model; its `max_position` limits a sequence.
        layout: the one that `config.layout` names, built with `config.layout_options()`.
        weight_bytes: weights that are still to be loaded, kept free of the default arena.
        available_bytes: memory of the machine to share out; None asks the system.

    Raises:
        ConfigError: not one sequence fits the arena, or `max_model_len` does not fit the model
            or the arena; the message holds the need, the limit and what to change.
    """
    asked_len = _asked_model_len(config, spec)
    budget = _arena_budget(config, layout, asked_len, weight_bytes, available_bytes)
    num_pages = budget // layout.page_bytes
    smallest = 1 + sequence_pages(layout, 1)
    if num_pages < smallest:
        raise ConfigError(
            f"Too little memory for one sequence: it needs at least {smallest} pages of {layout.page_bytes} "
            f"bytes (the dummy page, {layout.pages_per_state} for its state, {layout.pages_per_block} for "
            f"its first KV block), {smallest * layout.page_bytes} bytes. "
            f"Given: {_budget_text(config, budget)}. "
            f"Set memory to {smallest * layout.page_bytes} or more, or choose {_smaller_pages(config)}."
        )
    # The last token drawn is never computed, so it needs no room in a page.
    longest = max_sequence_tokens(layout, num_pages) + 1
    if config.max_model_len is not None and asked_len > longest:
        need = (1 + sequence_pages(layout, asked_len - 1)) * layout.page_bytes
        raise ConfigError(
            f"max_model_len {asked_len} does not fit the arena: one such sequence needs {need} bytes "
            f"({format_bytes(need)}). Given: {_budget_text(config, budget)}, which is enough for "
            f"{longest}. Set memory to {need} or more, or max_model_len to {longest} or less."
        )
    max_model_len = min(asked_len, longest)
    cache = config.resolved_cache(layout.block_size)
    if cache is not None and cache.host_bytes:
        _within_machine("host_cache", cache.host_bytes, config.host_cache)
    return ResolvedConfig(
        dtype=config.resolved_dtype,
        kv_dtype=config.resolved_kv_dtype,
        recurrent_dtype=config.resolved_recurrent_dtype,
        weights=config.weights,
        weight_bytes=weight_bytes,
        num_pages=num_pages,
        memory_bytes=num_pages * layout.page_bytes,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        seed=config.seed,
        kernels=config.kernels,
        threads=config.threads or usable_cores(),
        served_model_name=config.served_model_name or _printable(Path(config.model).resolve().name),
        check_states=config.check_states,
        notes=reuse_notes(layout, max_model_len, None if cache is None else cache.match_unit),
        cache=cache,
    )


def _asked_model_len(config: EngineConfig, spec: ModelSpec) -> int:
    if config.max_model_len is None:
        return spec.max_position
    if config.max_model_len > spec.max_position:
        raise ConfigError(
            f"max_model_len must be at most {spec.max_position}, the model's own limit. "
            f"Given: {config.max_model_len}."
        )
    return config.max_model_len


def _arena_budget(
    config: EngineConfig, layout: Layout, model_len: int, weight_bytes: int, available_bytes: int | None
) -> int:
    """Bytes that the arena may take."""
    if config.memory is not None:
        return _within_machine("memory", parse_bytes(config.memory), config.memory)
    available = available_memory() if available_bytes is None else available_bytes
    share = max(0, int(MEMORY_SHARE * (available - weight_bytes)))
    usable_pages = 1 + config.max_num_seqs * sequence_pages(layout, model_len - 1)
    if config.prefix_cache:
        usable_pages *= 2  # as much again for what has run before, or one sequence would leave nothing to hit
    return min(share, usable_pages * layout.page_bytes)


def _within_machine(option: str, asked: int, given: int | str | None) -> int:
    """`asked` bytes, if the machine has as many; tables of pages nobody can have would take real memory."""
    total = total_memory()
    if asked > total:
        raise ConfigError(
            f"{option} must be at most {total} ({format_bytes(total)}), all that this machine has. "
            f"Given: {given!r}. Choose less memory."
        )
    return asked


def _smaller_pages(config: EngineConfig) -> str:
    # A grown block is as long as a state is large, whatever it grows by.
    return "a smaller block_size" if config.layout == "paged" else "the paged layout, whose pages are smaller"


def _budget_text(config: EngineConfig, budget: int) -> str:
    if config.memory is None:
        return f"{format_bytes(budget)}, {MEMORY_SHARE:.0%} of the memory available"
    return f"memory {config.memory!r}"


def _printable(name: str) -> str:
    """`name` with U+FFFD for bytes that are no UTF-8: a folder's name may hold them, JSON may not."""
    return os.fsencode(name).decode("utf-8", "replace")

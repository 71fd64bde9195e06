"""The engine's options, checked when built and resolved once into the numbers used everywhere.

    EngineConfig.from_options({...})       what was asked; an unknown name or value is a ConfigError
    config.layout_options()                sizes that the page layout is built from
    resolve(config, spec, layout)          -> ResolvedConfig: no "auto" and no None is left

Nothing here knows torch: a dtype is its name ("float32"), and `milepost.runtime` maps the names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from milepost.errors import ConfigError
from milepost.machine import available_memory, format_bytes, nearest, parse_bytes, usable_cores
from milepost.model_spec import ModelSpec

__all__ = [
    "DTYPE_ITEMSIZE",
    "EngineConfig",
    "PageSizes",
    "ResolvedConfig",
    "format_bytes",
    "parse_bytes",
    "resolve",
]

DTYPE_ITEMSIZE = {"bfloat16": 2, "float32": 4, "float64": 8}
DTYPES = ("auto", *DTYPE_ITEMSIZE)
KERNELS = ("cpu", "reference")
DEVICES = ("cpu",)

# With no memory given, the arena may take this share of what is available once the weights are
# counted: the rest is for activations, the tokenizer and whatever else lives on the machine.
MEMORY_SHARE = 0.5


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked of the engine; `resolve` turns it into numbers.

    Attributes:
        model: the checkpoint's folder.
        device: where the model runs.
        dtype: of weights and activations; "auto" is float32 on CPU (bf16 products crawl on a CPU
            without bf16 instructions).
        kv_dtype: of the cached KV; "auto" is `dtype`.
        memory: bytes of the arena (KV and states, not weights) as a number or such as "2GiB"; None
            takes `MEMORY_SHARE` of the available memory, and no more than the sequences can use.
        block_size: tokens of a KV block.
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: token budget of one step.
        max_model_len: tokens of one sequence, prompt and output together; None is the model's own
            limit or what the arena holds, whichever is less.
        seed: from which requests without a seed of their own get theirs; None draws fresh ones.
        kernels: backend of the kernels; "reference" is slow and written to be read.
        threads: CPU threads of the kernels; None is all usable cores.
        served_model_name: the name the server answers to; None is the folder's name.
        check_states: also check every step that the recurrent states are finite (slow; for debugging).

    Raises:
        ConfigError: a value of the wrong kind or out of range, with the limit.
    """

    model: str
    device: str = "cpu"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    memory: int | str | None = None
    block_size: int = 64
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    seed: int | None = None
    kernels: str = "cpu"
    threads: int | None = None
    served_model_name: str | None = None
    check_states: bool = False

    def __post_init__(self) -> None:
        _text("model", self.model)
        _choice("device", self.device, DEVICES)
        _choice("dtype", self.dtype, DTYPES)
        _choice("kv_dtype", self.kv_dtype, DTYPES)
        _choice("kernels", self.kernels, KERNELS)
        if self.memory is not None:
            parse_bytes(self.memory)
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            _integer(name, getattr(self, name), low=1)
        if self.max_model_len is not None:
            _integer("max_model_len", self.max_model_len, low=2)  # a prompt token and an output token
        if self.threads is not None:
            _integer("threads", self.threads, low=1)
        if self.seed is not None:
            _integer("seed", self.seed, low=-(1 << 63), high=(1 << 63) - 1)
        if self.served_model_name is not None:
            _text("served_model_name", self.served_model_name)
        if not isinstance(self.check_states, bool):
            raise ConfigError(f"check_states must be true or false. Given: {self.check_states!r}.")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> EngineConfig:
        """Build from named options, such as keyword arguments or a command line's.

        Raises:
            ConfigError: an unknown option (with the nearest match), a missing or a wrong one.
        """
        known = cls.__struct_fields__
        for name in options:
            if name not in known:
                raise ConfigError(
                    f"Unknown option {name!r}.{nearest(name, known)} Known: {', '.join(known)}."
                )
        if "model" not in options:
            raise ConfigError("The option 'model' is missing: name the checkpoint's folder.")
        given = dict(options)
        if isinstance(given["model"], os.PathLike):
            given["model"] = os.fspath(given["model"])
        return cls(**given)

    @property
    def resolved_dtype(self) -> str:
        """Dtype of weights, activations and convolution windows."""
        return "float32" if self.dtype == "auto" else self.dtype

    @property
    def resolved_kv_dtype(self) -> str:
        """Dtype of the cached KV."""
        return self.resolved_dtype if self.kv_dtype == "auto" else self.kv_dtype

    @property
    def resolved_recurrent_dtype(self) -> str:
        """Dtype of the recurrent matrices: float32, and float64 only in a float64 engine."""
        return "float64" if self.resolved_dtype == "float64" else "float32"

    def layout_options(self) -> dict[str, int]:
        """Keyword arguments for `milepost.memory.layout.paged_layout`."""
        return {
            "block_size": self.block_size,
            "kv_itemsize": DTYPE_ITEMSIZE[self.resolved_kv_dtype],
            "conv_itemsize": DTYPE_ITEMSIZE[self.resolved_dtype],
            "recurrent_itemsize": DTYPE_ITEMSIZE[self.resolved_recurrent_dtype],
        }


class ResolvedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's numbers; see `EngineConfig` for their meaning. Built by `resolve`.

    Attributes:
        num_pages: pages of the arena, the dummy page counted.
        memory_bytes: bytes of the arena, ``num_pages * page_bytes``.
        max_sequence_tokens: computed tokens of the longest sequence that the arena could hold alone.
            The last token drawn is never computed, so `max_model_len` may be one more.
    """

    model: str
    device: str
    dtype: str
    kv_dtype: str
    recurrent_dtype: str
    page_bytes: int
    num_pages: int
    memory_bytes: int
    max_sequence_tokens: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    seed: int | None
    kernels: str
    threads: int
    served_model_name: str
    check_states: bool


class PageSizes(Protocol):
    """What `resolve` must know of a layout; every `milepost.memory.layout.Layout` has it."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""
        ...

    @property
    def pages_per_block(self) -> int:
        """Pages of a KV block."""
        ...

    @property
    def pages_per_state(self) -> int:
        """Pages of a state."""
        ...

    def blocks_for(self, num_tokens: int) -> int:
        """KV blocks that hold `num_tokens` tokens."""
        ...


def resolve(
    config: EngineConfig,
    spec: ModelSpec,
    layout: PageSizes,
    *,
    weight_bytes: int = 0,
    available_bytes: int | None = None,
) -> ResolvedConfig:
    """Turn options into numbers.

    Args:
        config: what was asked.
        spec: the model; its `max_position` limits a sequence.
        layout: built with `config.layout_options()`.
        weight_bytes: weights that are still to be loaded, kept free of the default arena.
        available_bytes: memory of the machine to share out; None asks the system.

    Raises:
        ConfigError: not one sequence fits the arena, or `max_model_len` does not fit the model
            or the arena; the message holds the need, the limit and what to change.
    """
    asked_len = _asked_model_len(config, spec)
    budget = _arena_budget(config, layout, asked_len, weight_bytes, available_bytes)
    num_pages = budget // layout.page_bytes
    smallest = _pages_for(layout, 1)
    if num_pages < smallest:
        raise ConfigError(
            f"Too little memory for one sequence: it needs at least {smallest} pages of {layout.page_bytes} "
            f"bytes (the dummy page, {layout.pages_per_state} for its state, {layout.pages_per_block} for "
            f"its first KV block), {smallest * layout.page_bytes} bytes. "
            f"Given: {_budget_text(config, budget)}. "
            f"Set memory to {smallest * layout.page_bytes} or more, or choose a smaller block_size."
        )
    held_blocks = (num_pages - 1 - layout.pages_per_state) // layout.pages_per_block
    max_sequence_tokens = held_blocks * layout.block_size
    if config.max_model_len is not None and asked_len > max_sequence_tokens + 1:
        need = _pages_for(layout, asked_len - 1) * layout.page_bytes
        raise ConfigError(
            f"max_model_len {asked_len} does not fit the arena: one such sequence needs {need} bytes "
            f"({format_bytes(need)}). Given: {_budget_text(config, budget)}, which is enough for "
            f"{max_sequence_tokens + 1}. "
            f"Set memory to {need} or more, or max_model_len to {max_sequence_tokens + 1} or less."
        )
    return ResolvedConfig(
        model=config.model,
        device=config.device,
        dtype=config.resolved_dtype,
        kv_dtype=config.resolved_kv_dtype,
        recurrent_dtype=config.resolved_recurrent_dtype,
        page_bytes=layout.page_bytes,
        num_pages=num_pages,
        memory_bytes=num_pages * layout.page_bytes,
        max_sequence_tokens=max_sequence_tokens,
        max_model_len=min(asked_len, max_sequence_tokens + 1),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        seed=config.seed,
        kernels=config.kernels,
        threads=config.threads or usable_cores(),
        served_model_name=config.served_model_name or Path(config.model).resolve().name,
        check_states=config.check_states,
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


def _pages_for(layout: PageSizes, num_tokens: int) -> int:
    """Pages of an arena that holds one sequence of `num_tokens` tokens: dummy, state, KV."""
    return 1 + layout.pages_per_state + layout.pages_per_block * layout.blocks_for(num_tokens)


def _arena_budget(
    config: EngineConfig, layout: PageSizes, model_len: int, weight_bytes: int, available_bytes: int | None
) -> int:
    """Bytes that the arena may take."""
    if config.memory is not None:
        return parse_bytes(config.memory)
    available = available_memory() if available_bytes is None else available_bytes
    share = max(0, int(MEMORY_SHARE * (available - weight_bytes)))
    usable_pages = 1 + config.max_num_seqs * (_pages_for(layout, model_len - 1) - 1)
    return min(share, usable_pages * layout.page_bytes)


def _budget_text(config: EngineConfig, budget: int) -> str:
    if config.memory is None:
        return f"{format_bytes(budget)}, {MEMORY_SHARE:.0%} of the memory available"
    return f"memory {config.memory!r}"


def _integer(name: str, value: object, *, low: int, high: int | None = None) -> None:
    limit = f"at least {low}" if high is None else f"between {low} and {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, {limit}. Given: {value!r}.")
    if value < low or (high is not None and value > high):
        raise ConfigError(f"{name} must be {limit}. Given: {value}.")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a non-empty string. Given: {value!r}.")


def _choice(name: str, value: object, known: Collection[str]) -> None:
    if value not in known:
        hint = nearest(value, known) if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be one of {', '.join(known)}. Given: {value!r}.{hint}")

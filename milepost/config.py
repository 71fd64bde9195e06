"""The engine's options, checked when built, and the numbers that they are resolved into once.

    EngineConfig.from_options({...})           what was asked; an unknown name or value is a ConfigError
    config.layout_options()                    sizes that the page layout is built from
    memory.sizing.resolve(config, ...)         -> ResolvedConfig: no "auto" and no None is left

Nothing here knows torch: a dtype is its name ("float32"), and `milepost.runtime` maps the names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from milepost.byte_counts import parse_bytes
from milepost.error_text import nearest, one_of
from milepost.errors import ConfigError

__all__ = [
    "DTYPES",
    "DTYPE_ITEMSIZE",
    "KERNELS",
    "LAYOUTS",
    "MEMORY_SHARE",
    "WEIGHTS",
    "EngineConfig",
    "ResolvedCache",
    "ResolvedConfig",
]

DTYPE_ITEMSIZE = {"bfloat16": 2, "float32": 4, "float64": 8}
DTYPES = ("auto", *DTYPE_ITEMSIZE)
KERNELS = ("auto", "cpu", "reference")
WEIGHTS = ("auto", "float32", "bfloat16", "int8", "mxfp4")
LAYOUTS = ("paged", "aligned")

# With no memory given, the arena may take this share of what is available once the weights are
# counted: the rest is for activations, the tokenizer and whatever else lives on the machine.
MEMORY_SHARE = 0.5

# The thread pools behind the kernels crash when they are asked for more than the system starts.
MAX_THREADS = 1024

# Bytes of the secret behind the prefix keys: fewer can be guessed, more the hash does not take.
MIN_KEY_BYTES = 16
MAX_KEY_BYTES = 64


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked of the engine; `milepost.memory.sizing.resolve` turns it into numbers.

    Attributes:
        model: the checkpoint's folder.
        dtype: of activations and convolution windows; "auto" is float32. Compiled kernels compute in
            float32 whatever this says: with "bfloat16" they store windows (and KV) in that.
        kv_dtype: of the cached KV; "auto" is `dtype`.
        weights: how weight matrices are stored. "auto" keeps them as the checkpoint has them: bfloat16
            stays that, other floats become float32 (float64 in a float64 model). "int8" rounds them to
            8 bits with a scale an output; "mxfp4" packs experts to 4 bits and keeps the rest in bfloat16.
            Experts that come packed stay packed.
        memory: bytes of the arena (KV and states, not weights) as a number or such as "2GiB"; None
            takes `MEMORY_SHARE` of the available memory, and no more than the sequences can use,
            twice that with a prefix cache.
        layout: how states and KV share pages; "aligned" is the design of engines whose states are
            contiguous, for comparison.
        block_size: tokens of a KV block; on "aligned" the steps in which the block grows.
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: token budget of one step.
        max_model_len: tokens of one sequence, prompt and output together; None is the model's own
            limit or what the arena holds, whichever is less.
        seed: from which requests without a seed of their own get theirs; None draws fresh ones.
        kernels: backend of the kernels; "cpu" is compiled and computes in float32, "reference" is slow and
            written to be read. "auto" is "cpu" where it is built and float64 isn't asked for.
        threads: CPU threads of the kernels; None is all usable cores.
        served_model_name: the name the server answers to; None is the folder's name.
        check_states: also check every step that the recurrent states are finite (slow; for debugging).
        prefix_cache: whether requests resume from snapshots that earlier ones left.
        match_unit: tokens between prefix keys; "block" is the layout's block size. Smaller finds longer
            shared prefixes of prompts that part where nobody foresaw it, at more hashing.
        snapshot_policy: where snapshots stand, such as "adaptive" or "turns+branch+every(8192)".
        eviction: what goes first when pages are needed, such as "value" or "marconi(alpha=0.5)".
        host_cache: bytes of host memory beside the arena for what was evicted, as `memory`; None for none.
        disk_cache: a folder and the bytes that its pages may take, "PATH,20GiB", for what survives a
            restart, behind a `host_cache`; None for none.
        cache_key: the secret behind the prefix keys, 16 to 64 bytes in hexadecimal; None takes the disk
            cache's own, or draws one a process.
        chat_template: a file with a Hugging Face chat template, in place of the model's own form.
        reply_parser: how replies to a template's prompts mark their parts: "plain", "think-tags", "hermes",
            or several joined by "+".
        wait_for_leaders: whether a request waits for a snapshot that another one is computing right now.

    Raises:
        ConfigError: a value of the wrong kind or out of range, with the limit.
    """

    model: str
    dtype: str = "auto"
    kv_dtype: str = "auto"
    weights: str = "auto"
    memory: int | str | None = None
    layout: str = "paged"
    block_size: int = 64
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    seed: int | None = None
    kernels: str = "auto"
    threads: int | None = None
    served_model_name: str | None = None
    check_states: bool = False
    prefix_cache: bool = True
    match_unit: int | str = 16
    snapshot_policy: str = "adaptive"
    eviction: str = "value"
    host_cache: int | str | None = None
    disk_cache: str | None = None
    cache_key: str | None = None
    chat_template: str | None = None
    reply_parser: str | None = None
    wait_for_leaders: bool = True

    def __post_init__(self) -> None:
        _text("model", self.model)
        _choice("dtype", self.dtype, DTYPES)
        _choice("kv_dtype", self.kv_dtype, DTYPES)
        _choice("weights", self.weights, WEIGHTS)
        _choice("kernels", self.kernels, KERNELS)
        if self.kernels == "cpu" and self.wants_float64:
            raise ConfigError(
                "kernels cpu compute in float32, so dtype and kv_dtype must be bfloat16 or float32. "
                f"Given: {self.dtype!r} and {self.kv_dtype!r}. Choose kernels reference for float64."
            )
        if self.layout == "lcm":
            raise ConfigError(
                "layout lcm is one that only the simulator and the planner know: no kernel reads it. "
                f"An engine's layout must be one of {', '.join(LAYOUTS)}. Given: 'lcm'."
            )
        _choice("layout", self.layout, LAYOUTS)
        if self.memory is not None:
            parse_bytes(self.memory)
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            _integer(name, getattr(self, name), low=1)
        if self.max_model_len is not None:
            _integer("max_model_len", self.max_model_len, low=2)  # a prompt token and an output token
        if self.threads is not None:
            _integer("threads", self.threads, low=1, high=MAX_THREADS)
        if self.seed is not None:
            _integer("seed", self.seed, low=-(1 << 63), high=(1 << 63) - 1)
        if self.served_model_name is not None:
            _text("served_model_name", self.served_model_name)
            if any("\ud800" <= char <= "\udfff" for char in self.served_model_name):
                raise ConfigError(f"served_model_name must be UTF-8. Given: {self.served_model_name!r}.")
        _flag("check_states", self.check_states)
        self._check_chat()
        self._check_cache()

    def _check_chat(self) -> None:
        # What they may hold is known to `milepost.chat`, which is asked before any weight is read.
        for name in ("chat_template", "reply_parser"):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name))

    def _check_cache(self) -> None:
        _flag("prefix_cache", self.prefix_cache)
        _flag("wait_for_leaders", self.wait_for_leaders)
        _match_unit(self.match_unit, 1)
        # What they may say is known to `milepost.prefix`, which the composition root asks first thing.
        _text("snapshot_policy", self.snapshot_policy)
        _text("eviction", self.eviction)
        if self.host_cache is not None:
            parse_bytes(self.host_cache, name="host_cache")
        if self.disk_cache is not None:
            _disk_cache(self.disk_cache)
        if self.cache_key is not None:
            _secret(self.cache_key)
        if self.disk_cache is not None and self.host_cache is None:
            raise ConfigError(
                f"disk_cache needs host_cache, through which every page passes. Given: {self.disk_cache!r} "
                "alone. Set host_cache too, such as 1GiB."
            )
        for name in ("host_cache", "disk_cache"):
            if not self.prefix_cache and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} must be left out when prefix_cache is off: there is nothing to keep. "
                    f"Given: {getattr(self, name)!r}."
                )

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
        """Dtype of activations and convolution windows."""
        return "float32" if self.dtype == "auto" else self.dtype

    @property
    def resolved_kv_dtype(self) -> str:
        """Dtype of the cached KV."""
        return self.resolved_dtype if self.kv_dtype == "auto" else self.kv_dtype

    @property
    def wants_float64(self) -> bool:
        """Whether anything is to be in float64, which only the reference kernels know."""
        return "float64" in (self.dtype, self.kv_dtype)

    @property
    def resolved_recurrent_dtype(self) -> str:
        """Dtype of the recurrent matrices: float32, and float64 only in a float64 engine."""
        return "float64" if self.resolved_dtype == "float64" else "float32"

    def layout_options(self) -> dict[str, int]:
        """Keyword arguments for `milepost.memory.named_layout.named_layout`, its name and model aside."""
        return {
            "block_size": self.block_size,
            "kv_itemsize": DTYPE_ITEMSIZE[self.resolved_kv_dtype],
            "conv_itemsize": DTYPE_ITEMSIZE[self.resolved_dtype],
            "recurrent_itemsize": DTYPE_ITEMSIZE[self.resolved_recurrent_dtype],
        }

    def resolved_cache(self, block_size: int) -> ResolvedCache | None:
        """The prefix cache's numbers, None when it is off.

        Args:
            block_size: tokens of a block of the layout that the engine runs on.
        """
        if not self.prefix_cache:
            return None
        disk_path, disk_bytes = (None, 0) if self.disk_cache is None else _disk_cache(self.disk_cache)
        return ResolvedCache(
            match_unit=_match_unit(self.match_unit, block_size),
            snapshot_policy=self.snapshot_policy,
            eviction=self.eviction,
            host_bytes=0 if self.host_cache is None else parse_bytes(self.host_cache, name="host_cache"),
            disk_path=disk_path,
            disk_bytes=disk_bytes,
            secret=None if self.cache_key is None else _secret(self.cache_key),
            wait_for_leaders=self.wait_for_leaders,
        )


class ResolvedCache(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix cache's numbers; see `EngineConfig` for their meaning.

    Attributes:
        match_unit: tokens between prefix keys.
        host_bytes: of the host tier, 0 for none.
        disk_path: the disk tier's folder, None for no such tier.
        disk_bytes: what it may hold.
        secret: behind the prefix keys; None when it is the disk tier's own or the process draws one.
    """

    match_unit: int
    snapshot_policy: str
    eviction: str
    host_bytes: int
    disk_path: str | None
    disk_bytes: int
    secret: bytes | None
    wait_for_leaders: bool


class ResolvedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's numbers; see `EngineConfig` for their meaning. Built by `milepost.memory.sizing.resolve`.

    Attributes:
        weights: the format of weight matrices; "auto" here means each as the checkpoint stores it.
        weight_bytes: of all weights in memory; 0 where nothing was loaded.
        num_pages: pages of the arena, the dummy page counted.
        memory_bytes: bytes of the arena, ``num_pages * page_bytes``.
        notes: what the user should know of these numbers at start, a sentence or two each.
        cache: the prefix cache's numbers, None when it is off.
    """

    dtype: str
    kv_dtype: str
    recurrent_dtype: str
    weights: str
    num_pages: int
    memory_bytes: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    seed: int | None
    kernels: str
    threads: int
    served_model_name: str
    check_states: bool
    cache: ResolvedCache | None
    weight_bytes: int = 0
    notes: tuple[str, ...] = ()


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
        raise ConfigError(one_of(name, value, known))


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false. Given: {value!r}.")


def _match_unit(value: int | str, block_size: int) -> int:
    """Tokens of a match unit; "block" is a block's."""
    if value == "block":
        return block_size
    if isinstance(value, str):
        raise ConfigError(f'match_unit must be a number of tokens or "block". Given: {value!r}.')
    _integer("match_unit", value, low=1)
    return value


def _disk_cache(value: object) -> tuple[str, int]:
    """The folder and the bytes of "PATH,20GiB"; a path may hold commas, a size has none."""
    path, comma, size = value.rpartition(",") if isinstance(value, str) else ("", "", "")
    if not comma or not path.strip() or not size.strip() or "\0" in path:
        raise ConfigError(
            'disk_cache must be a folder and the bytes that it may hold, such as "cache,20GiB". '
            f"Given: {value!r}."
        )
    return path.strip(), parse_bytes(size, name="disk_cache's size")


def _secret(value: object) -> bytes:
    """The bytes of a cache key; its text never stands in an error, since logs keep those."""
    limit = f"{2 * MIN_KEY_BYTES} to {2 * MAX_KEY_BYTES} hexadecimal digits"
    if not isinstance(value, str):
        raise ConfigError(f"cache_key must be a string of {limit}. Given: {type(value).__name__}.")
    try:
        secret = bytes.fromhex(value)
    except ValueError:
        secret = b""
    if not MIN_KEY_BYTES <= len(secret) <= MAX_KEY_BYTES:
        raise ConfigError(
            f"cache_key must be {limit}. Given: {len(value)} characters, not shown. "
            "Draw one with: openssl rand -hex 32"
        )
    return secret

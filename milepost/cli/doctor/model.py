"""Findings about a model on this machine: whether it is whole, whether it fits, how it would be served."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from milepost.byte_counts import format_bytes
from milepost.cli.doctor.finding import Finding, Level
from milepost.cli.shipped_model import shipped_model
from milepost.config import EngineConfig, ResolvedConfig
from milepost.config_json import read_model_spec
from milepost.errors import CheckpointError, ConfigError, TokenizerError
from milepost.machine import available_memory
from milepost.memory.capacity import max_sequences
from milepost.memory.named_layout import named_layout
from milepost.memory.sizing import resolve
from milepost.model_spec import ModelSpec

if TYPE_CHECKING:
    from milepost.kernels.native.limits import MachineLimits
    from milepost.memory.layout import TiledLayout
    from milepost.models.summary import CheckpointSummary

__all__ = ["examine_model"]

_TOPIC = "model"
_CONTEXT = 512
_TYPICAL_TOKENS = 8192
_FORMATS = ("auto", "int8", "mxfp4")
"""Formats to try, those that change the model least first."""
_MORE_THAN_CACHES = 256 << 20
"""Bytes of weights that come from memory at every step on any processor."""
_FOR_PROCESS = 512 << 20
"""Bytes that Python, torch and activations take beside weights and arena."""


def examine_model(
    folder: Path,
    limits: MachineLimits | None,
    config: EngineConfig | None = None,
    config_file: Path | None = None,
) -> Iterator[Finding]:
    """Look at a checkpoint, reading no weight.

    Args:
        folder: of the checkpoint.
        limits: the machine's rates, None where they could not be measured.
        config: the engine's options; None takes their defaults.
        config_file: the file that says so, for the command that is proposed.
    """
    from milepost.models.summary import summarize  # loads torch, which takes a while

    try:
        spec = read_model_spec(folder)
        summary = summarize(folder)
    except CheckpointError as error:
        yield _finding("checkpoint", Level.PROBLEM, *_told(error))
        return
    yield _checkpoint(summary)
    yield _tokenizer(folder, spec)
    config = EngineConfig(model=str(folder)) if config is None else config
    weights = _fitting(summary.memory_by_weights, config.weights)
    yield _weights(summary.memory_by_weights, weights, config.weights)
    if weights is None:
        return
    try:
        resolved, layout = _resolved(config, spec, summary, weights)
    except ConfigError as error:
        yield _finding("arena", Level.PROBLEM, *_told(error))
        return
    yield _arena(spec, resolved, layout)
    beyond_caches = resolved.weight_bytes > _MORE_THAN_CACHES
    if limits is not None and summary.num_shards and resolved.kernels == "cpu" and beyond_caches:
        yield _decode(folder, spec, resolved, limits)
    if config_file is None:
        yield _command(folder, spec, resolved)
    else:
        yield _command_with(config_file, asked=config.weights, weights=weights)


def _checkpoint(summary: CheckpointSummary) -> Finding:
    spec = summary.spec
    found = f"{spec.family.value}, {len(spec.layers)} layers, {summary.parameters.total:,} parameters"
    if not summary.num_shards:
        advice = "To serve it, copy its *.safetensors and their index there."
        return _finding("checkpoint", Level.WARNING, f"{found}; no shard here, only config.json", advice)
    return _finding("checkpoint", Level.OK, f"{found}, all tensors in {summary.num_shards} shards")


def _tokenizer(folder: Path, spec: ModelSpec) -> Finding:
    from milepost.chat.families import chat_encoding
    from milepost.chat.tokenizer_folder import load_tokenizer

    try:
        tokenizer = load_tokenizer(folder, model_vocab_size=spec.vocab_size)
        chat_encoding(spec.family.value, tokenizer)
    except TokenizerError as error:
        return _finding("tokenizer", Level.PROBLEM, *_told(error))
    return _finding("tokenizer", Level.OK, f"{tokenizer.vocab_size:,} tokens")


def _fitting(sizes: dict[str, int], asked: str = "auto") -> str | None:
    """The first format of weights, `asked` before others, that leaves as much memory as the process takes."""
    room = available_memory() - 2 * _FOR_PROCESS
    return next((name for name in (asked, *_FORMATS) if sizes.get(name, room + 1) <= room), None)


def _weights(sizes: dict[str, int], fitting: str | None, asked: str = "auto") -> Finding:
    available = format_bytes(available_memory())
    how = "as the checkpoint has them" if asked == "auto" else f"as {asked}"
    own = f"{format_bytes(sizes.get(asked, sizes['auto']))} {how}, {available} available"
    if fitting == asked:
        return _finding("weights", Level.OK, own)
    if fitting is not None:
        advice = f"Choose --weights {fitting}, which takes {format_bytes(sizes[fitting])}; or more memory."
        return _finding("weights", Level.WARNING, own, advice)
    least = min((size, name) for name, size in sizes.items())
    advice = (
        f"Even --weights {least[1]} takes {format_bytes(least[0])}. A machine needs that, an arena and "
        f"{format_bytes(_FOR_PROCESS)} more."
    )
    return _finding("weights", Level.PROBLEM, own, advice)


def _resolved(
    config: EngineConfig, spec: ModelSpec, summary: CheckpointSummary, weights: str
) -> tuple[ResolvedConfig, TiledLayout]:
    """What `milepost serve` would resolve; of a checkpoint without shards from its config alone."""
    from milepost.llm.kernel_choice import choose_kernels

    kernels, notes = choose_kernels(config, spec)
    chosen = msgspec.structs.replace(config, kernels=kernels, weights=weights)
    layout = named_layout(chosen.layout, spec, **chosen.layout_options())
    resolved = resolve(chosen, spec, layout, weight_bytes=summary.memory_by_weights[weights])
    return msgspec.structs.replace(resolved, notes=notes + resolved.notes), layout


def _arena(spec: ModelSpec, resolved: ResolvedConfig, layout: TiledLayout) -> Finding:
    lengths = sorted({min(_TYPICAL_TOKENS, resolved.max_model_len), resolved.max_model_len})
    held = ", ".join(
        f"{max_sequences(layout, resolved.num_pages, length - 1):,} of {length:,} tokens"
        for length in lengths
    )
    found = f"{format_bytes(resolved.memory_bytes)} for states and KV hold sequences: {held}"
    if resolved.max_model_len < spec.max_position:
        advice = (
            f"The model's own limit is {spec.max_position:,} tokens. More memory, or --kv-dtype bfloat16, "
            "holds longer ones."
        )
        return _finding("arena", Level.NOTE, found, advice)
    return _finding("arena", Level.OK, found)


def _decode(folder: Path, spec: ModelSpec, resolved: ResolvedConfig, limits: MachineLimits) -> Finding:
    from milepost.llm.bench import limits_cost
    from milepost.llm.stored_shape import stored_shape
    from milepost.sim.cost.step_work import StepWork

    cost = limits_cost(stored_shape(spec, folder, resolved.weights), limits, resolved)
    step = StepWork(tokens=1, rows=1, sampled=1, context=_CONTEXT + 1, pairs=_CONTEXT + 1)
    seconds = cost.seconds(step)
    found = f"a single reply can't exceed {1 / seconds:,.0f} tokens a second: weights are read from memory"
    return _finding("speed", Level.OK, found, "`milepost bench` measures what it does.")


def _command(folder: Path, spec: ModelSpec, resolved: ResolvedConfig) -> Finding:
    words = ["milepost", "serve"]
    if folder != shipped_model():
        words.append(str(folder))
    if resolved.weights != "auto":
        words += ["--weights", resolved.weights]
    words += ["--memory", f"{max(1, resolved.memory_bytes >> 20)}MiB"]
    if resolved.max_model_len < spec.max_position:
        words += ["--max-model-len", str(resolved.max_model_len)]
    return _finding("command", Level.OK, shlex.join(words))


def _command_with(config_file: Path, *, asked: str, weights: str) -> Finding:
    words = ["milepost", "serve", "--config", str(config_file)]
    if weights != asked:
        words += ["--weights", weights]
    return _finding("command", Level.OK, shlex.join(words))


def _told(error: Exception) -> tuple[str, str]:
    """An error's first sentence and what it advises."""
    first, stop, rest = str(error).partition(". ")
    return (first + stop.strip(), rest) if stop else (first, "")


def _finding(name: str, level: Level, found: str, advice: str = "") -> Finding:
    return Finding(topic=_TOPIC, name=name, level=level, found=found, advice=advice)

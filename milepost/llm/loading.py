"""From a checkpoint folder and options to a running engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from milepost.chat.encoding import ChatEncoding
from milepost.chat.families import chat_encoding
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tokenizer_folder import load_tokenizer
from milepost.config import EngineConfig, ResolvedConfig
from milepost.config_json import read_model_spec
from milepost.engine.engine import Engine
from milepost.engine.reports import EngineObserver
from milepost.grammar.compiler import GrammarCompiler
from milepost.kernels.native import set_num_threads
from milepost.kernels.ops import load_ops
from milepost.llm.cache_tiers import open_cache
from milepost.llm.kernel_choice import choose_kernels
from milepost.memory.layout import TiledLayout
from milepost.memory.named_layout import named_layout
from milepost.memory.pool import PagePool
from milepost.memory.sizing import resolve
from milepost.model_spec import ModelSpec
from milepost.models.loader import load_model, weight_bytes
from milepost.models.shards import Checkpoint
from milepost.models.weights import Progress
from milepost.runtime.dtypes import torch_dtype, weight_format
from milepost.runtime.model_runner import ModelRunner, StepModel
from milepost.runtime.sampler import Sampler
from milepost.runtime.taped_model import TapedModel
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler

__all__ = ["LoadedEngine", "load_engine", "load_runner", "resolve_engine"]


@dataclass(frozen=True, kw_only=True)
class LoadedEngine:
    """A running engine and what it was built from.

    Attributes:
        engine: the step loop; close it when done.
        tokenizer: the checkpoint's.
        encoding: the chat encoding of the model's family, or of the template that was given.
        grammars: compiles the grammars of requests; check one with it before its request is submitted.
        layout: how states and KV lie in pages.
        config: the engine's numbers.
    """

    engine: Engine
    tokenizer: Tokenizer
    encoding: ChatEncoding
    grammars: GrammarCompiler
    layout: TiledLayout
    config: ResolvedConfig


def load_engine(
    config: EngineConfig, *, progress: Progress | None = None, observer: EngineObserver | None = None
) -> LoadedEngine:
    """Load a checkpoint and build an engine that serves it.

    What is wrong with the options, the config or the tokenizer is found before any weight is read.

    Args:
        config: what the user asked for.
        progress: called with (bytes read, bytes to read) while weights load.
        observer: told of the engine's latencies.

    Raises:
        CheckpointError: the checkpoint can't be used.
        TokenizerError: its tokenizer can't be used.
        ConfigError: the options don't fit the model or the machine.
    """
    folder = Path(config.model)
    spec = read_model_spec(folder)
    tokenizer = load_tokenizer(folder, model_vocab_size=spec.vocab_size)
    encoding = chat_encoding(
        spec.family.value,
        tokenizer,
        folder,
        template=config.chat_template,
        reply_parser=config.reply_parser,
    )
    stops = tuple(dict.fromkeys(spec.stop_token_ids + encoding.stop_token_ids))
    grammars = GrammarCompiler(tokenizer, vocab_size=spec.vocab_size, stop_token_ids=stops)
    layout = named_layout(config.layout, spec, **config.layout_options())
    resolved = resolve_engine(config, spec, layout)
    pool = PagePool(resolved.num_pages)
    tiers = open_cache(resolved, folder, layout, pool)
    resolved = msgspec.structs.replace(resolved, notes=resolved.notes + tiers.notes)
    try:
        runner = load_runner(
            folder, layout, resolved, progress=progress, stop_token_ids=stops, grammars=grammars
        )
        scheduler = Scheduler(
            SchedulerConfig(
                max_model_len=resolved.max_model_len,
                token_budget=resolved.max_num_batched_tokens,
                max_num_seqs=resolved.max_num_seqs,
                stop_token_ids=stops,
                vocab_size=spec.vocab_size,
            ),
            layout,
            pool,
            tiers.cache,
        )
        engine = Engine(tiers.around(runner), scheduler, tokenizer, observer=observer)
    except BaseException:
        tiers.close()
        raise
    return LoadedEngine(
        engine=engine,
        tokenizer=tokenizer,
        encoding=encoding,
        grammars=grammars,
        layout=layout,
        config=resolved,
    )


def resolve_engine(config: EngineConfig, spec: ModelSpec, layout: TiledLayout) -> ResolvedConfig:
    """Choose the kernels, read off the headers what the weights will take, and resolve the rest.

    Args:
        config: what the user asked for.
        spec: of the model that it names.
        layout: built with the config's `layout_options`.

    Raises:
        CheckpointError: the checkpoint can't be opened.
        ConfigError: the options don't fit the model or the machine.
    """
    kernels, notes = choose_kernels(config, spec)
    config = msgspec.structs.replace(config, kernels=kernels)
    with closing(Checkpoint(Path(config.model))) as checkpoint:
        size = weight_bytes(
            spec,
            dtype=torch_dtype(config.resolved_dtype),
            ops=load_ops(kernels),
            weights=weight_format(config.weights),
            checkpoint=checkpoint,
        )
    resolved = resolve(config, spec, layout, weight_bytes=size)
    return msgspec.structs.replace(resolved, notes=notes + resolved.notes)


def load_runner(
    folder: Path,
    layout: TiledLayout,
    config: ResolvedConfig,
    *,
    progress: Progress | None = None,
    stop_token_ids: Sequence[int] = (),
    grammars: GrammarCompiler | None = None,
) -> ModelRunner:
    """Load a checkpoint's weights into an executor of steps.

    Args:
        folder: the checkpoint.
        layout: the one that `config` was resolved with.
        config: the engine's numbers.
        progress: called with (bytes read, bytes to read) while weights load.
        stop_token_ids: tokens that end replies.
        grammars: compiles the requests' grammars; without one no request may have any.

    Raises:
        CheckpointError: the checkpoint can't be used.
        ConfigError: the system refuses to map the arena.
    """
    ops = load_ops(config.kernels)
    if config.kernels == "cpu":
        set_num_threads(config.threads)
    else:
        torch.set_num_threads(config.threads)
    model: StepModel = load_model(
        folder,
        dtype=torch_dtype(config.dtype),
        ops=ops,
        weights=weight_format(config.weights),
        progress=progress,
    )
    sampler = Sampler(config.seed, stop_token_ids=stop_token_ids, grammars=grammars)
    if config.kernels != "cpu":  # the others have nothing that is done once, and a full step takes them long
        return ModelRunner.from_config(model, layout, config, sampler)
    runner = ModelRunner.from_config(TapedModel(model), layout, config, sampler)
    runner.warm_up()
    return runner

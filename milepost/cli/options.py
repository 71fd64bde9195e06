"""Options that commands share: the model, the engine's limits, how tokens are drawn.

Names and ranges are checked where they are used (`EngineConfig`, `SamplingParams`), so that the
command line, Python and HTTP give the same errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from milepost.cli.config_file import NO_FILE, ConfigFile
from milepost.cli.option_groups import with_options
from milepost.cli.shipped_model import SHIPPED_MODEL_NAME, shipped_model
from milepost.cli.terminal import print_notes, progress_bar
from milepost.cli.word_completion import models, one_of_words
from milepost.config import DTYPES, KERNELS, LAYOUTS, MEMORY_SHARE, WEIGHTS, EngineConfig
from milepost.errors import ConfigError
from milepost.types import SamplingParams

if TYPE_CHECKING:
    from milepost.llm import LLM

__all__ = [
    "engine_options",
    "examples",
    "model_argument",
    "open_llm",
    "runner_options",
    "sampling_options",
    "take_engine_config",
    "take_sampling",
]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MAX_TOKENS = 256

# A command line can be read by everyone on the machine, an environment cannot.
CACHE_KEY_VARIABLE = "MILEPOST_CACHE_KEY"


def _number_or_word(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> int | str | None:
    """Digits as a number; whether a word is known, `EngineConfig` checks."""
    return int(value) if value is not None and value.isdecimal() else value


def _or_default(text: str, option: str) -> str:
    """A help text that ends with the default that `EngineConfig` has for the option."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(EngineConfig)}
    return f"{text}  [default: {defaults[option]}]"


_ENGINE_OPTIONS = {
    "memory": click.option(
        "--memory",
        metavar="SIZE",
        help="Bytes of the arena (KV and states, not weights), such as 2GiB.  "
        f"[default: {MEMORY_SHARE:.0%} of the memory available, less if --max-num-seqs can't use it]",
    ),
    "dtype": click.option(
        "--dtype",
        metavar="|".join(DTYPES),
        shell_complete=one_of_words(DTYPES),
        help="Activations and convolution windows; auto is float32. Compiled kernels compute in that always.",
    ),
    "kv_dtype": click.option(
        "--kv-dtype",
        metavar="|".join(DTYPES),
        shell_complete=one_of_words(DTYPES),
        help="Cached KV; auto is --dtype.",
    ),
    "weights": click.option(
        "--weights",
        metavar="|".join(WEIGHTS),
        shell_complete=one_of_words(WEIGHTS),
        help=_or_default(
            "How weight matrices are stored; auto is as in the checkpoint, mxfp4 is for experts.", "weights"
        ),
    ),
    "layout": click.option(
        "--layout",
        metavar="|".join(LAYOUTS),
        shell_complete=one_of_words(LAYOUTS),
        help=_or_default("How states and KV share pages; aligned is for comparison.", "layout"),
    ),
    "block_size": click.option(
        "--block-size",
        type=int,
        metavar="TOKENS",
        help=_or_default("Tokens of a KV block; aligned grows it in such steps.", "block_size"),
    ),
    "max_model_len": click.option(
        "--max-model-len",
        type=int,
        metavar="TOKENS",
        help="Limit of prompt and reply together; the model's or the arena's by default.",
    ),
    "max_num_seqs": click.option(
        "--max-num-seqs",
        type=int,
        metavar="N",
        help=_or_default("Requests that run at the same time.", "max_num_seqs"),
    ),
    "max_num_batched_tokens": click.option(
        "--max-num-batched-tokens",
        type=int,
        metavar="TOKENS",
        help=_or_default("Token budget of one step.", "max_num_batched_tokens"),
    ),
    "threads": click.option("--threads", type=int, metavar="N", help="CPU threads; all by default."),
    "kernels": click.option(
        "--kernels",
        metavar="|".join(KERNELS),
        shell_complete=one_of_words(KERNELS),
        help=_or_default(
            "cpu is compiled, reference is slow and written to be read; auto is cpu where it is built.",
            "kernels",
        ),
    ),
    "prefix_cache": click.option(
        "--prefix-cache/--no-prefix-cache",
        default=None,
        help="Resume from what earlier requests left.  [default: on]",
    ),
    "match_unit": click.option(
        "--match-unit",
        callback=_number_or_word,
        metavar="TOKENS|block",
        help=_or_default("How finely prompts are compared: tokens between prefix keys.", "match_unit"),
    ),
    "snapshot_policy": click.option(
        "--snapshot-policy",
        metavar="NAMES",
        help=_or_default(
            "Where snapshots of the state stand: adaptive (or adaptive(spare=N)), none, or some of turns, "
            "branch, last, prompt-tail, every(N), budget(SIZE of one prompt's), joined by +.",
            "snapshot_policy",
        ),
    ),
    "eviction": click.option(
        "--eviction",
        metavar="lru|marconi|value",
        help=_or_default(
            "What goes first when pages are needed; takes parameters: marconi(alpha=0.5).", "eviction"
        ),
    ),
    "host_cache": click.option(
        "--host-cache",
        metavar="SIZE",
        help="Host memory beside the arena for evicted snapshots and their KV.",
    ),
    "disk_cache": click.option(
        "--disk-cache",
        metavar="PATH,SIZE",
        help="With --host-cache: the same on disk, which survives a restart; such as cache,20GiB.",
    ),
    "cache_key": click.option(
        "--cache-key",
        metavar="HEX",
        envvar=CACHE_KEY_VARIABLE,
        help="Secret of the prefix keys, 32 to 128 digits; others can read a command line, so better set "
        f"${CACHE_KEY_VARIABLE}.  "
        "[default: the disk cache's, else random]",
    ),
    "wait_for_leaders": click.option(
        "--wait-for-leaders/--no-wait-for-leaders",
        default=None,
        help="Wait for a prefix that another request computes right now.  [default: on]",
    ),
    "chat_template": click.option(
        "--chat-template",
        metavar="FILE",
        type=click.Path(),
        help="A Hugging Face chat template instead of the model's own form.",
    ),
    "reply_parser": click.option(
        "--reply-parser",
        metavar="FORM",
        help="How replies to the template's prompts mark their parts: plain, think-tags, hermes, or some "
        "joined by +.  [default: plain]",
    ),
}

_RUNNER_OPTIONS = (
    "memory",
    "dtype",
    "kv_dtype",
    "weights",
    "layout",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "threads",
    "kernels",
)

_SAMPLING_OPTIONS = {
    "temperature": click.option(
        "--temperature", type=float, default=0.0, show_default=True, help="0 takes the best token."
    ),
    "top_k": click.option("--top-k", type=int, metavar="N", help="Draw from the best N tokens."),
    "top_p": click.option("--top-p", type=float, help="Draw from the best tokens of this total probability."),
    "min_p": click.option("--min-p", type=float, help="Drop tokens below this share of the best one."),
    "repetition_penalty": click.option("--repetition-penalty", type=float, help="1 is off."),
    "presence_penalty": click.option("--presence-penalty", type=float, help="0 is off."),
    "frequency_penalty": click.option("--frequency-penalty", type=float, help="0 is off."),
    "seed": click.option("--seed", type=int, help="Makes the draws repeatable."),
    "max_tokens": click.option(
        "--max-tokens", type=int, default=DEFAULT_MAX_TOKENS, show_default=True, help="Limit of the reply."
    ),
    "stop": click.option(
        "--stop", multiple=True, metavar="TEXT", help="End the reply before this text; may be repeated."
    ),
    "ignore_eos": click.option("--ignore-eos", is_flag=True, help="Go on past the model's end token."),
}


def examples(*lines: str) -> str:
    """The end of a command's help, shown as it is written."""
    # Click keeps the line breaks of a paragraph that starts with a backspace.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def model_argument(command: F) -> F:
    """The optional MODEL; the command gets its folder."""

    def folder(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Path:
        return shipped_model() if value in (None, SHIPPED_MODEL_NAME) else Path(str(value))

    return click.argument("model", required=False, callback=folder, shell_complete=models)(command)


def engine_options(command: F) -> F:
    """The engine's options; the command hands its keyword arguments to `take_engine_config`."""
    return with_options(command, [*_ENGINE_OPTIONS.values()])


def runner_options(command: F) -> F:
    """Those of the engine's options that decide how long a step takes."""
    return with_options(command, [_ENGINE_OPTIONS[name] for name in _RUNNER_OPTIONS])


def sampling_options(command: F) -> F:
    """How tokens are drawn; the command hands its keyword arguments to `take_sampling`."""
    return with_options(command, [*_SAMPLING_OPTIONS.values()])


def take_engine_config(
    model: Path, options: dict[str, Any], file: ConfigFile = NO_FILE, **more: object
) -> EngineConfig:
    """Remove the engine's options from `options`; those not given are the file's, or keep their defaults.

    Raises:
        ConfigError: a value is wrong; one of the file's with its place.
    """
    given = {name: options.pop(name, None) for name in _ENGINE_OPTIONS} | more
    said = {"model": model} | {name: value for name, value in given.items() if value is not None}
    try:
        return EngineConfig.from_options({**file.engine, **said})
    except ConfigError as error:
        name = str(error).partition(" ")[0]
        if name in file.engine and name not in said:
            raise ConfigError(f"{file.where('engine', name)}: {error}") from None
        raise


def take_sampling(options: dict[str, Any], **more: object) -> SamplingParams:
    """Remove the sampling options from `options`; those not given keep their defaults.

    Raises:
        RequestError: a value is wrong.
    """
    given = {name: options.pop(name, None) for name in _SAMPLING_OPTIONS} | more
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


@contextmanager
def open_llm(config: EngineConfig) -> Iterator[LLM]:
    """The model, loaded behind a bar, closed at the end."""
    from milepost.llm import LLM  # loads torch, which takes seconds

    with progress_bar("Loading weights") as progress:
        llm = LLM(progress=progress, **msgspec.structs.asdict(config))
    with llm:
        print_notes(llm.config.notes)
        yield llm

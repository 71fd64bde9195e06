"""Options of commands that read a trace, and how they read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from milepost.chat.encoding import ChatOptions
from milepost.cli.option_groups import with_options
from milepost.cli.shipped_model import SHIPPED_MODEL_NAME, shipped_model
from milepost.cli.terminal import progress_bar
from milepost.sim.traces.options import AUTO, FORMS, TraceOptions

if TYPE_CHECKING:
    from milepost.sim.traces.chat_logs import EncodeChat
    from milepost.sim.traces.trace import Trace

__all__ = ["open_trace", "take_trace_options", "trace_options"]

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS = TraceOptions()

_OPTIONS = {
    "form": click.option(
        "--form",
        default=AUTO,
        show_default=True,
        metavar="|".join((AUTO, *FORMS)),
        help="The trace's form; auto tells it from the first rows.",
    ),
    "skip_bad": click.option(
        "--skip-bad", is_flag=True, help="Leave rows that can't be read out, and count them."
    ),
    "first": click.option("--first", type=int, metavar="N", help="Only the first N requests."),
    "time_scale": click.option(
        "--time-scale",
        type=float,
        default=_DEFAULTS.time_scale,
        show_default=True,
        metavar="FACTOR",
        help="Of all times: 2 is twice as slow.",
    ),
    "session_rate": click.option(
        "--session-rate",
        type=float,
        default=_DEFAULTS.session_rate,
        metavar="RATE",
        help="Sessions a second that start, at random, where only times within sessions are known.  "
        "[default: one a minute]",
    ),
    "seed": click.option(
        "--seed", type=int, default=_DEFAULTS.seed, show_default=True, help="Of the sessions' starts."
    ),
    "shared_prompt_tokens": click.option(
        "--shared-prompt",
        "shared_prompt_tokens",
        type=int,
        default=_DEFAULTS.shared_prompt_tokens,
        show_default=True,
        metavar="TOKENS",
        help="Put so many tokens, the same for all, in front of each prompt.",
    ),
    "tokenizer": click.option(
        "--tokenizer",
        metavar="FOLDER",
        help=f"Of the model as whose prompts a chat log is written; {SHIPPED_MODEL_NAME} is the shipped one.",
    ),
}


def trace_options(command: F) -> F:
    """The options of `TraceOptions`; the command hands its keyword arguments to `take_trace_options`."""
    return with_options(command, [*_OPTIONS.values()])


def take_trace_options(options: dict[str, Any]) -> TraceOptions:
    """Remove the options of a trace from `options`.

    Raises:
        ConfigError: a value is wrong.
    """
    return TraceOptions(**{name: options.pop(name) for name in _OPTIONS})


def open_trace(path: Path, options: TraceOptions) -> Trace:
    """Read a trace behind a bar.

    Raises:
        TraceError: it can't be read.
        ConfigError: options that don't fit it.
        TokenizerError: the tokenizer can't be used.
    """
    from milepost.sim.traces.reading import read_trace

    encode = None if options.tokenizer is None else _chat_encoder(options.tokenizer)
    with progress_bar(f"Reading {path.name}") as progress:
        return read_trace(path, options, progress, encode_chat=encode)


def _chat_encoder(name: str) -> EncodeChat:
    """Writes conversations as the model in the folder `name` reads them."""
    from milepost.chat.families import chat_encoding
    from milepost.chat.tokenizer_folder import load_tokenizer
    from milepost.config_json import read_model_spec

    folder = shipped_model() if name == SHIPPED_MODEL_NAME else Path(name)
    tokenizer = load_tokenizer(folder)
    encoding = chat_encoding(read_model_spec(folder).family.value, tokenizer)

    def encode(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        prompt = encoding.encode(messages, ChatOptions(tools=tools))
        return prompt.token_ids, prompt.message_ends

    return encode

"""``milepost chat``: a conversation at the terminal, or one user message a line from a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from milepost.chat.reply import Reply
from milepost.cli.options import (
    engine_options,
    examples,
    model_argument,
    open_llm,
    sampling_options,
    take_engine_config,
    take_sampling,
)
from milepost.cli.print_reply import print_reply
from milepost.cli.terminal import interrupts_to, notes, print_error
from milepost.errors import ExecutionError, RequestError
from milepost.types import FinishReason, RequestOutput, SamplingParams, Usage

if TYPE_CHECKING:
    from milepost.llm import LLM, ChatStream

__all__ = ["chat"]

HELP = "/reset starts over, /exit or Ctrl-D leaves, Ctrl-C ends a reply."


@click.command(
    epilog=examples(
        "milepost chat --stats",
        'milepost chat path/to/checkpoint --temperature 0.7 --system "Be brief."',
        "printf 'The code for jade is 31.\\nWhat is the code for jade?\\n' | milepost chat",
    )
)
@model_argument
@click.option("--system", metavar="TEXT", help="A system message to start from.")
@click.option("--thinking/--no-thinking", default=None, help="The model's default else.")
@click.option("--stats", is_flag=True, help="After each reply: how much of the prompt was cached.")
@sampling_options
@engine_options
def chat(
    *,
    model: Path,
    system: str | None,
    thinking: bool | None,
    stats: bool,
    **options: Any,  # noqa: ANN401  # the shared options, checked where they are taken
) -> None:
    """Talk with the model; it remembers the conversation.

    /reset starts over, /exit or Ctrl-D leaves, Ctrl-C ends a reply and not the program. From a pipe,
    every line is a user message.
    """
    sampling = take_sampling(options)
    config = take_engine_config(model, options)
    with open_llm(config) as llm:
        conversation = _Conversation(llm, sampling, system, thinking, stats=stats)
        if sys.stdin.isatty():
            _talk(conversation, llm.config.served_model_name)
        else:
            for line in _piped_lines():
                if not conversation.take(line):
                    break


def _talk(conversation: _Conversation, name: str) -> None:
    """The loop at a terminal: an error ends the turn, not the conversation."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # importing it is what gives `input` its line editing

    notes().print(f"Talking with {name}. {HELP}", markup=False)
    while True:
        try:
            # Where the replies go to a file, the prompt would be in it.
            line = input("> " if sys.stdout.isatty() else "")
        except EOFError:
            notes().print()
            return
        except KeyboardInterrupt:
            notes().print(f"\n{HELP}", markup=False)
            continue
        try:
            if not conversation.take(line):
                return
        except (RequestError, ExecutionError) as error:
            print_error(str(error))


def _piped_lines() -> Iterator[str]:
    try:
        for line in sys.stdin:
            yield line.rstrip("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"stdin must be UTF-8 text ({error}).") from None


class _Conversation:
    """The messages so far, and how the next one is answered."""

    def __init__(
        self,
        llm: LLM,
        sampling: SamplingParams,
        system: str | None,
        thinking: bool | None,
        *,
        stats: bool,
    ) -> None:
        self._llm = llm
        self._stats = stats
        self._sampling = sampling
        self._thinking = thinking
        self._start: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._start)
        self._reply: ChatStream | None = None  # the one that is being printed

    def take(self, line: str) -> bool:
        """Answer a line or obey it; returns whether to go on.

        Raises:
            RequestError: the conversation can't go on like this, such as one that is too long; the
                line is forgotten.
            ExecutionError: the reply failed; the line is forgotten.
        """
        # All of the turn, so that a Ctrl-C between the reply's end and the next prompt ends nothing.
        with interrupts_to(self._interrupt):
            return self._obey_or_answer(line)

    def _interrupt(self) -> None:
        if self._reply is not None:
            self._reply.abort()

    def _obey_or_answer(self, line: str) -> bool:
        command = line.strip()
        if command == "/exit":
            return False
        if command == "/reset":
            self._messages = list(self._start)
        elif command == "/help":
            notes().print(HELP, markup=False)
        elif command.startswith("/") and command[1:].isalpha():
            print_error(f"There is no command {command}. {HELP}")
        elif command:
            self._answer(line)
        return True

    def _answer(self, text: str) -> None:
        asked = [*self._messages, {"role": "user", "content": text}]
        reply = self._stream(asked)
        self._messages = [*asked, _as_message(reply)]

    def _stream(self, messages: list[dict[str, Any]]) -> Reply:
        outputs: list[RequestOutput] = []
        self._reply = self._llm.stream_chat(messages, self._sampling, thinking=self._thinking)
        try:
            reply = print_reply(self._reply, outputs.append)
        finally:
            self._reply = None
        reason = outputs[-1].finish_reason
        if reason is FinishReason.LENGTH:
            notes().print("(cut off by a length limit; see --max-tokens)", style="dim")
        elif reason is FinishReason.ABORT:
            notes().print("(interrupted)", style="dim")
        if self._stats:
            notes().print(_usage_line(outputs[-1].usage), style="dim")
        return reply


def _usage_line(usage: Usage) -> str:
    cached, computed = usage.cached_tokens, usage.prompt_tokens - usage.cached_tokens
    return f"(prompt: {cached:,} tokens cached, {computed:,} computed; reply: {usage.output_tokens:,})"


def _as_message(reply: Reply) -> dict[str, Any]:
    """A reply as the history has it; an interrupted one is as long as it got."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.tool_calls
    ]
    return {
        "role": "assistant",
        "content": reply.content,
        "reasoning_content": reply.reasoning,
        "tool_calls": calls or None,
    }

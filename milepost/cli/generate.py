"""``milepost generate``: continue prompts, or answer them as a chat."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec

from milepost.chat.reply import Reply, ReplyDelta
from milepost.chat.text_pieces import without_surrogates
from milepost.cli.figures import RunFigures
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
from milepost.cli.terminal import notes, write
from milepost.errors import RequestError
from milepost.types import RequestOutput, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from milepost.llm import LLM, Completion

__all__ = ["generate"]


@click.command(
    epilog=examples(
        'milepost generate --prompt "To be, or" --max-tokens 20',
        'milepost generate --chat --stats --prompt "What is 3 plus 4?"',
        "milepost generate path/to/checkpoint --prompt-file question.txt --temperature 0.7 --seed 1",
        "milepost generate --prompt A --prompt B --json | jq .text",
    )
)
@model_argument
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="May be given several times.")
@click.option("--prompt-file", type=click.File(encoding="utf-8"), help="A file with one prompt; - is stdin.")
@click.option("--chat/--raw", "as_chat", help="Answer in the model's chat form, or continue the bare text.")
@click.option("--system", metavar="TEXT", help="A system message, with --chat.")
@click.option("--thinking/--no-thinking", default=None, help="With --chat; the model's default else.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a prompt, one a line.")
@click.option("--logprobs", type=int, metavar="N", help="With --json: log-probabilities and N alternatives.")
@click.option("--stats", is_flag=True, help="A table of what happened, on stderr.")
@sampling_options
@engine_options
def generate(
    *,
    model: Path,
    prompts: tuple[str, ...],
    prompt_file: TextIO | None,
    as_chat: bool,
    system: str | None,
    thinking: bool | None,
    as_json: bool,
    logprobs: int | None,
    stats: bool,
    **options: Any,  # noqa: ANN401  # the shared options, checked where they are taken
) -> None:
    """Continue a prompt, or answer it with --chat.

    One prompt streams; several run together. Without --prompt or --prompt-file the prompt is
    read from stdin.
    """
    if logprobs is not None and not as_json:
        raise click.UsageError("--logprobs is only shown with --json. Add --json.")
    if not as_chat and (system is not None or thinking is not None):
        raise click.UsageError("--system and --thinking belong to the chat form. Add --chat.")
    job = _Job(
        prompts=_all_prompts(prompts, prompt_file),
        sampling=take_sampling(options, logprobs=logprobs),
        as_chat=as_chat,
        system=system,
        thinking=thinking,
    )
    config = take_engine_config(model, options)
    started = time.perf_counter()
    with open_llm(config) as llm:
        figures = RunFigures(llm, load_seconds=time.perf_counter() - started)
        if as_json or len(job.prompts) > 1:
            _print_all(llm, job, figures, as_json)
        else:
            print_reply(job.stream(llm, job.prompts[0]), figures.saw)
        if stats:
            notes().print(figures.table())


@dataclass
class _Job:
    """What to answer, and how."""

    prompts: list[str]
    sampling: SamplingParams
    as_chat: bool
    system: str | None
    thinking: bool | None

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """One prompt as a conversation."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": prompt}]

    def stream(self, llm: LLM, prompt: str) -> Iterator[tuple[ReplyDelta, RequestOutput]]:
        """What each step adds; raw text counts as content."""
        if self.as_chat:
            yield from llm.stream_chat(self.messages(prompt), self.sampling, thinking=self.thinking)
        else:
            for output in llm.stream(prompt, self.sampling):
                yield ReplyDelta(content=output.text), output


class _JsonResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of --json."""

    prompt: str
    text: str
    reasoning: str | None = None
    tool_calls: tuple[Any, ...] = ()
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: tuple[int, ...]
    logprobs: tuple[Any, ...] = field(default_factory=tuple)
    usage: Any


def _all_prompts(prompts: tuple[str, ...], prompt_file: TextIO | None) -> list[str]:
    found = list(prompts)
    if prompt_file is not None:
        found.append(_read(prompt_file))
    if not found:
        if sys.stdin.isatty():
            raise click.UsageError("There is no prompt. Give --prompt TEXT or --prompt-file FILE.")
        found.append(_read(sys.stdin))
    if not all(found):
        raise RequestError("The prompt is empty. Give at least one character.", param="prompt")
    return found


def _read(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise RequestError(f"{file.name} must be UTF-8 text ({error}). Convert it.", param="prompt") from None


def _print_all(llm: LLM, job: _Job, figures: RunFigures, as_json: bool) -> None:
    """Run all prompts together and write their results in order."""
    if job.as_chat:
        done = llm.chat_all(
            [job.messages(prompt) for prompt in job.prompts], job.sampling, thinking=job.thinking
        )
        pairs = [(chat.reply, chat.completion) for chat in done]
    else:
        completions = llm.generate(job.prompts, job.sampling)
        pairs = [(Reply(content=completion.text), completion) for completion in completions]
    for i, (prompt, (reply, completion)) in enumerate(zip(job.prompts, pairs, strict=True)):
        figures.saw_completion(completion)
        if as_json:
            # A prompt's bytes may be no UTF-8, which JSON can't hold.
            result = _json_result(without_surrogates(prompt), reply, completion)
            write(msgspec.json.encode(result).decode(), end="\n")
        else:
            write(f"==> prompt {i + 1} <==\n{reply.content}", end="\n")


def _json_result(prompt: str, reply: Reply, completion: Completion) -> _JsonResult:
    return _JsonResult(
        prompt=prompt,
        text=reply.content,
        reasoning=reply.reasoning,
        tool_calls=reply.tool_calls,
        finish_reason=completion.finish_reason.value,
        stop_reason=completion.stop_reason,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        usage=completion.usage,
    )

"""``milepost plan serve``: how fast a deployment answers, what a token costs, and which one is better."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from milepost.cli.option_groups import GroupedCommand, option_group, with_options
from milepost.cli.options import examples
from milepost.cli.plan.options import deployment_options, take_deployment
from milepost.cli.plan.outputs import finish, output_options, take_outputs
from milepost.cli.plan.quantities import seconds_of, tokens_of
from milepost.cli.trace_options import open_trace, take_trace_options, trace_options
from milepost.errors import ConfigError

if TYPE_CHECKING:
    from milepost.planner.deployment import Deployment
    from milepost.planner.serve.from_trace import TraceRequests
    from milepost.planner.serve.question import ServeQuestion
    from milepost.planner.serve.speculation import Speculation

__all__ = ["serve"]

F = TypeVar("F", bound=Callable[..., Any])

_requests = option_group("Requests")
_goal = option_group("Goal")
_drafts = option_group("Speculative decoding")

_INPUT, _OUTPUT = 8192, 1024

_OPTIONS = (
    _requests("--input", "input_tokens", metavar="TOKENS", help="Of a prompt: 8192, 128k.  [default: 8192]"),
    _requests("--output", "output_tokens", metavar="TOKENS", help="Of an answer: 1024, 1k.  [default: 1024]"),
    _requests("--hit-tokens", type=int, metavar="N", help="Of a prompt, what a cache has.  [default: 0]"),
    _requests("--hit-rate", type=float, metavar="SHARE", help="The same as a share of the prompt."),
    _requests(
        "--slots",
        type=float,
        metavar="N",
        help="States of a running request, snapshots among them.  [default: 1]",
    ),
    _requests(
        "--trace",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Recorded traffic: lengths, hits and slots that aren't given are simulated from it.",
    ),
    _goal(
        "--gpus", metavar="N|N-M", help="Search all divisions of so many devices, and into replicas of fewer."
    ),
    _goal(
        "--ttft",
        "--ttft-limit",
        "ttft",
        metavar="TIME",
        help="Limit of the mean time to the first token: 2, 2s or 500ms.",
    ),
    _goal(
        "--tpot", "--tpot-limit", "tpot", metavar="TIME", help="Limit of the mean time of each further token."
    ),
    _goal("--price", type=float, metavar="N", help="Of a device-hour; costs are in its currency."),
    _goal(
        "--batch",
        type=int,
        default=0,
        metavar="N",
        help="Sequences that decode together in a group.  [default: the most within memory and limits]",
    ),
    _goal(
        "--token-budget",
        type=int,
        default=0,
        metavar="N",
        help="Most tokens of a step.  [default: 8,192; a search tries several]",
    ),
    _drafts("--drafts", type=int, metavar="K", help="Tokens proposed a step and sequence."),
    _drafts(
        "--acceptance",
        metavar="N|P,P,..",
        help="Tokens that a step yields, 1 at least; or of each position the share of steps that accept it.",
    ),
    _drafts(
        "--draft-parameters",
        type=float,
        metavar="N",
        help="Of the draft model, 0 for drafts that cost nothing.  [default: 3.56e9 for kimi-k3, else 0]",
    ),
    _drafts(
        "--draft-layers",
        type=int,
        metavar="N",
        help="Of the draft model.  [default: 5 for kimi-k3, else 0]",
    ),
    _drafts(
        "--draft-passes",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="Of the draft model a step; K where it makes one token after the other.",
    ),
    _drafts(
        "--draft-states",
        default="replay",
        show_default=True,
        metavar="snapshots|replay|fused",
        help="How a state goes back to before rejected drafts.",
    ),
)


def _serve_options(command: F) -> F:
    return with_options(command, _OPTIONS)


@click.command(
    cls=GroupedCommand,
    shared_heading="Trace",
    epilog=examples(
        "milepost plan serve --model kimi-k3 --hardware gb300 --tp 8",
        "milepost plan serve --gpus 32 --hardware gb300 --tpot 50ms --ttft 2 --price 4",
        "milepost plan serve --tp 8 --drafts 7 --acceptance 3.85",
        "milepost plan serve --tp 8 --trace trace.jsonl.gz --first 2000 --time-scale 20",
        "milepost plan serve --tp 8 --explain decode.routed_experts.seconds",
    ),
)
@deployment_options
@_serve_options
@trace_options
@output_options
def serve(**options: Any) -> None:  # noqa: ANN401 - checked where they are taken
    """How fast a deployment answers and what a token costs; search for a better one.

    Without --gpus, one replica divided as --tp, --dp, --ep and --cp say, at the largest batch that memory
    and limits allow. With --gpus, every division of so many devices: the one of most tokens/s/GPU under the
    limits, and those that nothing beats in both speeds.
    """
    outputs = take_outputs(options)
    question = _question(options)

    from milepost.planner.serve.plan import plan_serve
    from milepost.planner.serve.report import serve_report

    plan = plan_serve(question)
    finish(plan, serve_report(plan), outputs)


def _question(options: dict[str, Any]) -> ServeQuestion:
    from milepost.planner.serve.question import ServeQuestion

    deployment = take_deployment(options)
    traced = _traced(options, deployment)
    given, answer = _tokens("--input", options["input_tokens"]), _tokens("--output", options["output_tokens"])
    prompt = _first(given, traced.input_tokens if traced else None, _INPUT)
    hits = _hits(prompt, options["hit_tokens"], options["hit_rate"])
    if hits is None:
        # Of another prompt's length the trace's hits say nothing.
        hits = traced.hit_tokens if traced and given is None else 0
    return ServeQuestion(
        deployment=deployment,
        input_tokens=prompt,
        output_tokens=_first(answer, traced.output_tokens if traced else None, _OUTPUT),
        hit_tokens=hits,
        batch=options["batch"],
        token_budget=options["token_budget"],
        ttft_limit_seconds=_limit("--ttft", options["ttft"]),
        tpot_limit_seconds=_limit("--tpot", options["tpot"]),
        price_per_hour=options["price"],
        slots=_first(options["slots"], traced.slots if traced else None, 1.0),
        slots_source=traced.source if traced and options["slots"] is None else "--slots",
        lengths_source=f"{traced.source}, or given" if traced else "",
        notes=traced.notes if traced else (),
        speculation=_speculation(options, deployment.model),
        gpus=_range(options["gpus"]),
    )


def _traced(options: dict[str, Any], deployment: Deployment) -> TraceRequests | None:
    """What a trace says; None without one."""
    how, path = take_trace_options(options), options["trace"]
    if path is None:
        return None
    from milepost.planner.serve.from_trace import requests_of_trace

    return requests_of_trace(open_trace(path, how), deployment, options["token_budget"])


N = TypeVar("N", int, float)


def _first(given: N | None, traced: N | None, default: N) -> N:
    """What is given, else what a trace says, else the default."""
    if given is not None:
        return given
    return default if traced is None else traced


def _hits(prompt: int, tokens: int | None, rate: float | None) -> int | None:
    if rate is None:
        return tokens
    if tokens is not None:
        raise click.UsageError("--hit-tokens and --hit-rate say the same. Give one of them.")
    if not 0.0 <= rate < 1.0:
        raise ConfigError(f"--hit-rate must be at least 0 and below 1. Given: {rate}.")
    return int(prompt * rate)


def _limit(option: str, text: str | None) -> float | None:
    return None if text is None else seconds_of(option, text)


def _tokens(option: str, text: str | None) -> int | None:
    return None if text is None else tokens_of(option, text)


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, dash, high = text.partition("-")
    try:
        return int(low), int(high if dash else low)
    except ValueError:
        raise ConfigError(f"--gpus must be a number or a range such as 8-64. Given: {text!r:.100}.") from None


def _speculation(options: dict[str, Any], model: str) -> Speculation | None:
    from milepost.planner.serve.speculation import Speculation, known_draft

    drafts, acceptance = options["drafts"], options["acceptance"]
    if drafts is None and acceptance is None:
        return None
    if acceptance is None:
        raise click.UsageError("--drafts needs --acceptance, measured on your traffic.")
    parameters, layers = known_draft(model)
    fields = {
        "draft_parameters": _first(options["draft_parameters"], None, parameters),
        "draft_layers": _first(options["draft_layers"], None, layers),
        "draft_passes": options["draft_passes"],
        "states": options["draft_states"],
    }
    numbers = _numbers(acceptance)
    if len(numbers) > 1 or numbers[0] < 1.0:
        if drafts is not None and drafts != len(numbers):
            raise ConfigError(f"--acceptance must have one share a draft: {drafts}. Given: {len(numbers)}.")
        return Speculation.of_positions(numbers, **fields)
    if drafts is None:
        raise click.UsageError("--acceptance as a length needs --drafts.")
    return Speculation(drafts=drafts, accepted_length=numbers[0], **fields)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(one) for one in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--acceptance must be a number of tokens, or shares such as 0.9,0.8. Given: {text!r:.100}."
        ) from None

"""Every number of a chosen plan in a worksheet, from config.json and data sheet to tokens/s/GPU and costs."""

from __future__ import annotations

from milepost.planner.device_memory import derive_free_memory
from milepost.planner.serve.derive_drafts import derive_drafts
from milepost.planner.serve.derive_parts import derive_fixed, derive_step
from milepost.planner.serve.derive_rates import derive_rates, derive_shape, derive_sizes
from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.request_memory import request_memory
from milepost.planner.serve.steady import Arrangement, ServePoint
from milepost.planner.worksheet import Worksheet
from milepost.sim.cost.step_work import StepWork

__all__ = ["derive_plan", "prefill_chunk"]

STEADY = "milepost.planner.serve.steady"
_STEP = "(1 - mixed_share) * decode.seconds + mixed_share * mixed.seconds"
_RESIDUAL = (
    "(ttft.mixed_time * max(ttft.service, mixed.seconds) + (1 - ttft.mixed_time) * decode.seconds) / 2"
)
_QUEUE = "ttft.busy ** 2 * ttft.service / (2 * (1 - ttft.busy))"
_OWN = (
    "(ttft.steps + ttft.busy * (ceil(ttft.steps) - ttft.steps)) * (mixed.seconds - decode.seconds)"
    " + ceil(ttft.steps) * decode.seconds"
)
_GPU_RATE = "batch * accepted / (step.seconds * tensor_parallel)"


def derive_plan(
    sheet: Worksheet, arrangement: Arrangement, question: ServeQuestion, point: ServePoint
) -> None:
    """Derive a point, and hold each formula against what the search computed.

    Args:
        sheet: an empty worksheet.
        arrangement: of the point.
        question: requests, limits, price.
        point: the chosen one.
    """
    shape, sizes = arrangement.shape, arrangement.sizes
    derive_sizes(sheet, sizes)
    derive_shape(sheet, shape)
    _requests(sheet, question, point)
    derive_free_memory(
        sheet,
        shape,
        arrangement.hardware,
        sizes,
        memory_share=question.deployment.memory_share,
        tokens_per_step=point.token_budget_tokens,
        logit_rows=point.batch * arrangement.verified,
    )
    derive_rates(sheet, arrangement.hardware, shape)
    derive_fixed(sheet, shape)
    derive_drafts(sheet, arrangement, question)
    _memory(sheet, arrangement, question)
    _steps(sheet, arrangement, question, point)
    _steady(sheet, point)
    if question.price_per_hour is not None:
        _costs(sheet, question.price_per_hour)


def _requests(sheet: Worksheet, question: ServeQuestion, point: ServePoint) -> None:
    traced = question.lengths_source
    sheet.given("input_tokens", question.input_tokens, "tokens", traced or "--input")
    sheet.given("output_tokens", question.output_tokens, "tokens", traced or "--output")
    sheet.given("hit_tokens", question.hit_tokens, "tokens", traced or "--hit-tokens or --hit-rate")
    sheet.derive("new_tokens", "input_tokens - hit_tokens", "tokens", meaning="of a prompt, computed")
    sheet.derive("length_tokens", "input_tokens + output_tokens", "tokens", meaning="of a finished sequence")
    sheet.given("slots", question.slots, "states", question.slots_source, "of each running request")
    source = "--batch" if question.batch else "the largest that memory and limits allow"
    sheet.given("batch", point.batch, "sequences", source, "that decode together in one group")
    sheet.given("tokens_per_step", point.token_budget_tokens, "tokens", "--token-budget, or the search")


def _memory(sheet: Worksheet, arrangement: Arrangement, question: ServeQuestion) -> None:
    needed = request_memory(arrangement, question)
    states = (
        ["(slots - 1) * slot_bytes", "running_state_bytes"] if arrangement.shape.recurrent_layers else ["0"]
    )
    sheet.derive("request.state_bytes", " + ".join(states), "bytes", meaning="states of a request")
    kv = "length_tokens * kv_bytes_per_token" if arrangement.shape.attention_layers else "0"
    if kv != "0" and question.speculation and question.speculation.draft_layers:
        kv += " * (1 + draft.layers / attention_layers)"
    sheet.derive(
        "request.kv_bytes", f"{kv} / context_parallel", "bytes", meaning="KV of a request at its whole length"
    )
    sheet.derive("request_bytes", "request.state_bytes + request.kv_bytes", "bytes", meaning="of one request")
    sheet.derive(
        "begun_prompts", "ceil(max(1, batch * accepted / output_tokens))", "", meaning="computed at a time"
    )
    sheet.derive("requests_bytes", "(batch + begun_prompts) * request_bytes", "bytes")
    sheet.derive("draft_weight_bytes", "draft.parameters * item_bytes / tensor_parallel", "bytes")
    sheet.derive(
        "left_bytes",
        "free_bytes - draft_weight_bytes - requests_bytes",
        "bytes",
        meaning="of a device, at this batch, for cached prefixes",
    )
    sheet.check("request.state_bytes", needed.state_bytes)
    sheet.check("request.kv_bytes", needed.kv_bytes)
    sheet.check("draft_weight_bytes", needed.draft_weight_bytes)


def _steps(sheet: Worksheet, arrangement: Arrangement, question: ServeQuestion, point: ServePoint) -> None:
    """A step of decode alone, one with a chunk of prompts, and a prompt on idle devices."""
    sheet.derive(
        "decode.length", "input_tokens + (output_tokens + 1) // 2", "tokens", meaning="half is written"
    )
    sheet.derive("decode.tokens", "batch * verified", "tokens")
    sheet.derive("decode.rows", "batch", "sequences")
    sheet.derive("decode.sampled", "decode.tokens", "tokens")
    sheet.derive("decode.context", "batch * decode.length", "tokens")
    sheet.derive("decode.pairs", "decode.tokens * decode.length", "", meaning="of query and key")
    _chunk(sheet, "begun", "batch * accepted / output_tokens")
    for what in StepWork.__struct_fields__[:5]:
        sheet.derive(f"mixed.{what}", f"decode.{what} + prompts.{what}", "")
    sheet.derive(
        "prefill.steps", "ceil(new_tokens / tokens_per_step)", "", meaning="of a prompt, idle devices"
    )
    sheet.derive("prefill.tokens", "ceil(new_tokens / prefill.steps)", "tokens", meaning="of each")
    sheet.derive("prefill.rows", "1", "sequences")
    sheet.derive("prefill.sampled", "1", "tokens")
    sheet.derive("prefill.context", "hit_tokens + (new_tokens + prefill.tokens) // 2", "tokens")
    sheet.derive(
        "prefill.pairs",
        "prefill.tokens * hit_tokens + prefill.tokens * (new_tokens + 1) // 2",
        "",
        meaning="mean",
    )
    works = {
        "decode": arrangement.decode_work(point.batch),
        "mixed": arrangement.mixed_work(point.batch, point.chunk_tokens),
        "prefill": arrangement.prefill_work(prefill_chunk(question, point)),
    }
    for step, work in works.items():
        for what in StepWork.__struct_fields__[:5]:
            sheet.check(f"{step}.{what}", getattr(work, what))
        derive_step(sheet, step, arrangement.shape, arrangement.sizes, arrangement.cost.breakdown(work))
    sheet.derive("decode.seconds", "decode.model_seconds + draft.seconds", "seconds", meaning="decode alone")
    sheet.derive("mixed.seconds", "mixed.model_seconds + draft.seconds", "seconds", meaning="with prompts")
    sheet.derive(
        "prefill.seconds",
        "prefill.steps * prefill.model_seconds",
        "seconds",
        meaning="a prompt, idle devices",
    )
    sheet.check("decode.seconds", point.decode_step_seconds)
    sheet.check("mixed.seconds", point.mixed_step_seconds)
    sheet.check("prefill.seconds", arrangement.prefill_seconds(point.token_budget_tokens))


def prefill_chunk(question: ServeQuestion, point: ServePoint) -> int:
    """Tokens of each step of a prompt on idle devices."""
    steps = -(-question.new_tokens // point.token_budget_tokens)
    return -(-question.new_tokens // steps)


def _chunk(sheet: Worksheet, name: str, formula: str) -> None:
    sheet.derive(name, formula, "requests/step", meaning="that end and begin in a step", source=STEADY)
    sheet.derive("room", "tokens_per_step - decode.tokens", "tokens", meaning="for prompts in a step")
    sheet.derive("chunk", "min(room, ceil(new_tokens * max(1, begun)))", "tokens", source=STEADY)
    sheet.derive("prompts.tokens", "chunk", "tokens")
    sheet.derive("prompts.rows", "max(1, ceil(chunk / new_tokens))", "sequences")
    sheet.derive("prompts.sampled", "prompts.rows", "tokens")
    sheet.derive(
        "prompts.context",
        "hit_tokens + (new_tokens + chunk) // 2 if prompts.rows == 1 else prompts.rows * hit_tokens + chunk",
        "tokens",
    )
    sheet.derive("prompts.pairs", "chunk * hit_tokens + chunk * (new_tokens + 1) // 2", "", meaning="mean")


def _steady(sheet: Worksheet, point: ServePoint) -> None:
    """The formulas of `milepost.planner.serve.steady`, in its order."""
    rows = (
        ("mixed_share", "min(1, begun * new_tokens / chunk)", "", "of the steps, with prompts"),
        ("prefill_load", "begun * new_tokens / room", "", "of the room for prompts, used"),
        ("step.seconds", _STEP, "seconds", "mean step"),
        ("tpot", "step.seconds / accepted", "seconds", "time per output token"),
        ("ttft.service", "new_tokens / room * mixed.seconds", "seconds", "a prompt takes of its group"),
        ("ttft.mixed_time", "mixed_share * mixed.seconds / step.seconds", "", "of the time, mixed steps"),
        (
            "ttft.busy",
            "prefill_load * mixed.seconds / step.seconds",
            "",
            "of the time, prompts fill the room",
        ),
        ("ttft.residual", _RESIDUAL, "seconds", "half of what runs when a prompt comes"),
        ("ttft.queue", _QUEUE, "seconds", "for the prompts before it: M/D/1"),
        ("ttft.steps", "max(1, new_tokens / chunk)", "", "of one's own prompt"),
        ("ttft.own", _OWN, "seconds", "one's own prompt; its last step is shared"),
        ("ttft", "ttft.residual + ttft.queue + ttft.own", "seconds", "mean time to the first token"),
        ("tokens_per_second_per_user", "1 / tpot", "tokens/s", "of one sequence"),
        ("tokens_per_second_per_gpu", _GPU_RATE, "tokens/s", "output"),
        ("requests_per_second", "data_parallel * begun / step.seconds", "requests/s", "of the replica"),
        (
            "input_tokens_per_second_per_gpu",
            "requests_per_second * input_tokens / gpus",
            "tokens/s",
            "prompts, hits included",
        ),
    )
    for name, formula, unit, meaning in rows:
        sheet.derive(name, formula, unit, meaning=meaning, source=STEADY)
    for name, value in (
        ("chunk", point.chunk_tokens),
        ("mixed_share", point.mixed_share),
        ("prefill_load", point.prefill_load),
        ("tpot", point.tpot_seconds),
        ("ttft", point.ttft_seconds),
        ("tokens_per_second_per_user", point.tokens_per_second_per_user),
        ("tokens_per_second_per_gpu", point.tokens_per_second_per_gpu),
        ("requests_per_second", point.requests_per_second),
    ):
        sheet.check(name, value)


def _costs(sheet: Worksheet, price: float) -> None:
    """A replica's price, divided by the time that prompts add to steps and by the rest."""
    sheet.given("price_per_hour", price, "a device-hour", "--price")
    rows = (
        (
            "prefill_time_share",
            "mixed_share * (mixed.seconds - decode.seconds) / step.seconds",
            "",
            "of the time, what prompts add",
        ),
        ("cost_per_request", "price_per_hour * gpus / 3600 / requests_per_second", "", "both of it"),
        (
            "cost_per_million_input_tokens",
            "1000000 * cost_per_request * prefill_time_share / input_tokens",
            "",
            "hits included",
        ),
        (
            "cost_per_million_output_tokens",
            "1000000 * cost_per_request * (1 - prefill_time_share) / output_tokens",
            "",
            "",
        ),
        (
            "cost_per_million_tokens",
            "1000000 * cost_per_request / length_tokens",
            "",
            "input and output together",
        ),
    )
    for name, formula, unit, meaning in rows:
        sheet.derive(name, formula, unit, meaning=meaning)

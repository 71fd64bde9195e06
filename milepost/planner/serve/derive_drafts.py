"""Drafts in a worksheet: tokens won, bytes of a state with them, what the draft model takes."""

from __future__ import annotations

from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.speculation import Speculation
from milepost.planner.serve.steady import DRAFT_KERNELS, Arrangement
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import RecurrentKind

__all__ = ["derive_drafts"]

SPECULATION = "milepost.planner.serve.speculation"


def derive_drafts(sheet: Worksheet, arrangement: Arrangement, question: ServeQuestion) -> None:
    """``verified``, ``accepted``, a state's ``slot_bytes`` and ``running_state_bytes``, ``draft.seconds``.

    Without drafts they are 1, 1, the state twice, and 0. Needs the batch, ranks and rates.
    """
    spec = question.speculation
    sheet.given("draft.tokens", spec.drafts if spec else 0, "tokens", "--drafts", "proposed a step and row")
    sheet.derive("verified", "1 + draft.tokens", "tokens", meaning="of a row, computed in a step")
    accepted = spec.accepted_length if spec else 1.0
    sheet.given("accepted", accepted, "tokens", "--acceptance", "that a step yields a row, in the mean")
    sheet.given("draft.parameters", spec.draft_parameters if spec else 0, "", "--draft-parameters")
    if arrangement.shape.recurrent_layers:
        _states(sheet, arrangement, spec)
    if spec is None:
        sheet.derive("draft.seconds", "0", "seconds")
        return
    sheet.given("draft.layers", spec.draft_layers, "", "--draft-layers")
    extra = "batch * draft.state_bytes / rate.memory" if arrangement.shape.recurrent_layers else "0"
    sheet.derive("draft.state_seconds", extra, "seconds", meaning="states read and written for drafts")
    _model(sheet, spec)
    sheet.derive("draft.seconds", "draft.state_seconds + draft.model_seconds", "seconds")


def _states(sheet: Worksheet, arrangement: Arrangement, spec: Speculation | None) -> None:
    shape = arrangement.shape
    sheet.derive(
        "slot_bytes",
        "recurrent_layers * (recurrent.heads * recurrent.rows * recurrent.row_dim / tensor_parallel"
        " * state_itemsize + recurrent.conv_channels"
        " * (recurrent.conv_window + draft.tokens if recurrent.conv_window > 0 else 0) * item_bytes)",
        "bytes",
        meaning="one state, its window with room for drafts",
        source=SPECULATION,
    )
    if spec is None:
        sheet.derive("running_state_bytes", "slot_bytes", "bytes", meaning="of a running sequence")
    elif spec.states == "snapshots":
        sheet.derive("running_state_bytes", "verified * slot_bytes", "bytes", meaning="a state a token")
        sheet.derive("draft.state_bytes", "draft.tokens * slot_bytes", "bytes", meaning="written besides one")
    else:
        kda = shape.recurrent is not None and shape.recurrent.kind is RecurrentKind.KDA
        decay = "recurrent.row_dim" if kda else "1"
        sheet.derive(
            "draft.replay_token_bytes",
            f"recurrent_layers * (recurrent.heads * (recurrent.rows + {decay})"
            " + recurrent.key_heads * recurrent.row_dim) / tensor_parallel * item_bytes",
            "bytes",
            meaning="value, key and decay of a token, kept for a replay",
            source=SPECULATION,
        )
        sheet.derive("running_state_bytes", "slot_bytes + verified * draft.replay_token_bytes", "bytes")
        again = "slot_bytes + " if spec.states == "replay" else ""
        sheet.derive(
            "draft.state_bytes",
            f"{again}2 * verified * draft.replay_token_bytes",
            "bytes",
            meaning="read and written besides the state once",
        )
    sheet.check("slot_bytes", arrangement.states.slot_bytes)
    sheet.check("running_state_bytes", arrangement.states.running_bytes)
    if spec is not None:
        sheet.check("draft.state_bytes", arrangement.states.step_extra_bytes)


def _model(sheet: Worksheet, spec: Speculation) -> None:
    if not spec.draft_parameters:
        sheet.derive("draft.model_seconds", "0", "seconds", meaning="drafts that cost nothing")
        return
    sheet.given("draft.passes", spec.draft_passes, "", "--draft-passes")
    sheet.given("draft.kernels", DRAFT_KERNELS, "", "assumed of a fused engine, one layer")
    sheet.derive(
        "draft.multiplied", "draft.parameters + vocab_size * hidden_size", "", meaning="with the model's head"
    )
    sheet.derive("draft.bytes", "draft.passes * draft.multiplied * item_bytes / tensor_parallel", "bytes")
    sheet.derive("draft.flops", "2 * draft.multiplied * batch * draft.tokens / tensor_parallel", "FLOPs")
    sheet.derive(
        "draft.model_seconds",
        "max(draft.bytes / rate.memory, draft.flops / rate.compute) + draft.passes"
        " * ((2 * draft.layers * link.heads.latency if tensor_parallel > 1 else 0)"
        " + draft.kernels * draft.layers * hardware.kernel_seconds)",
        "seconds",
    )

"""Bytes, times and KV throughput by length, of the model and of others."""

from __future__ import annotations

from milepost.errors import ConfigError
from milepost.planner.disagg.instances import Instance, arrangements
from milepost.planner.disagg.plan import ModelExport, RequestTransfer
from milepost.planner.disagg.published import EXPORTS
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.rates import RequestSizes, sizes_of
from milepost.planner.disagg.sheets import note_parts, number_key
from milepost.planner.disagg.sides import Sides
from milepost.planner.disagg.streaming import transfer_exposed
from milepost.planner.worksheet import Worksheet
from milepost.shapes.names import SHAPES, find_shape
from milepost.sim.cost.hardware import Hardware

__all__ = ["EXPORT_TOKENS", "LENGTHS", "note_sent", "other_models", "transfers"]

LENGTHS = (8 * 1024, 32 * 1024, 128 * 1024, 256 * 1024)
EXPORT_TOKENS = 32 * 1024
"""Where models are compared, as in arXiv:2604.15039."""


def transfers(
    sheet: Worksheet, sides: Sides, instance: Instance, ask: DisaggQuestion
) -> tuple[RequestTransfer, ...]:
    """A row for each of `LENGTHS`, cold and alone on one prefill instance."""
    return tuple(_transfer(sheet, sides, instance, ask, tokens) for tokens in LENGTHS)


def _transfer(
    sheet: Worksheet, sides: Sides, instance: Instance, ask: DisaggQuestion, tokens: int
) -> RequestTransfer:
    name = f"request_{tokens}"
    sheet.given(f"{name}.prompt_tokens", tokens, "tokens", "a length that is shown")
    sent = sheet.derive(
        f"{name}.sent_bytes",
        f"state_bytes + {name}.prompt_tokens * kv_bytes_per_token",
        "bytes",
        meaning="state and KV of one request",
    )
    whole = sheet.derive(
        f"{name}.all_attention_bytes", f"{name}.prompt_tokens * all_attention.kv_bytes_per_token", "bytes"
    )
    sheet.derive(f"{name}.saving", f"{name}.all_attention_bytes / {name}.sent_bytes", "times")
    seconds = sheet.derive(
        f"{name}.transfer_seconds", f"{name}.sent_bytes / network_bytes_per_second", "seconds"
    )
    chunks = instance.chunks(tokens, 0)
    note_parts(sheet, f"{name}.prefill", instance.prefill_parts(tokens, 0), "alone on one prefill instance")
    sheet.check(f"{name}.prefill_seconds", sum(chunk.seconds for chunk in chunks))
    rate = sheet.derive(
        f"{name}.kv_bytes_per_second",
        f"prefill.groups * {name}.sent_bytes / {name}.prefill_seconds",
        "bytes/s",
        meaning="that a prefill instance exports",
        source="arXiv:2604.15039, equation 1",
    )
    exposed = transfer_exposed(
        chunks, sides.sizes.state_bytes, 0.0, sides.sizes.layers, ask.network_bytes_per_second
    )
    how = "pieces over one link as they are ready"
    for way in ("whole", "chunk_wise", "layer_wise"):
        sheet.given(f"{name}.exposed_{way}_seconds", getattr(exposed, way), "seconds", how)
    return RequestTransfer(
        prompt_tokens=tokens,
        state_bytes=sides.sizes.state_bytes,
        sent_bytes=round(sent),
        all_attention_bytes=round(whole),
        transfer_seconds=seconds,
        prefill_seconds=sheet[f"{name}.prefill_seconds"],
        kv_bytes_per_second=rate,
        exposed_whole_seconds=exposed.whole,
        exposed_chunk_wise_seconds=exposed.chunk_wise,
        exposed_layer_wise_seconds=exposed.layer_wise,
        fits_model=tokens <= sides.shape.max_position,
    )


def other_models(sheet: Worksheet, sides: Sides, ask: DisaggQuestion) -> tuple[ModelExport, ...]:
    """What other models export at `EXPORT_TOKENS` on the prefill side's hardware, in their best arrangement.

    Raises:
        ConfigError: an unknown model, or one that this hardware can't hold.
        CheckpointError: a config that can't be read.
    """
    if ask.against is not None:
        names = list(dict.fromkeys(ask.against))
        return tuple(_other(sheet, sides.prefill_hardware, ask, name) for name in names)
    known = [export.shape for export in EXPORTS if export.shape in SHAPES and export.shape != sides.model]
    return tuple(one for name in known if (one := _if_it_fits(sheet, sides.prefill_hardware, ask, name)))


def _if_it_fits(sheet: Worksheet, hardware: Hardware, ask: DisaggQuestion, name: str) -> ModelExport | None:
    try:
        return _other(sheet, hardware, ask, name)
    except ConfigError:  # nobody asked for this one
        return None


def _other(sheet: Worksheet, hardware: Hardware, ask: DisaggQuestion, name: str) -> ModelExport:
    deployment = ask.deployment
    known, shape = find_shape(name)
    kv, state = deployment.kv_itemsize, deployment.state_itemsize
    sizes = sizes_of(shape, kv, state)
    instances = [
        Instance(shape, hardware, ranks, memory_share=deployment.memory_share, chunk_tokens=ask.chunk_tokens)
        for ranks in arrangements(shape, hardware, 0, 0, kv_itemsize=kv, state_itemsize=state)
    ]
    best = max(instances, key=lambda one: one.groups / one.prefill_seconds(EXPORT_TOKENS, 0) / one.devices)
    seconds = best.prefill_seconds(EXPORT_TOKENS, 0)
    key = f"other.{number_key(known)}"
    if f"{key}.sent_bytes" in sheet:  # of another file with the same name
        key = f"{key}_{len(sheet.derivations)}"
    sent = note_sent(sheet, key, sizes, EXPORT_TOKENS)
    sheet.given(f"{key}.prefill_seconds", seconds, "seconds", "roofline, docs/cost-model.md", best.name)
    sheet.given(f"{key}.groups", best.groups, "groups", "arrangement of most prompts a device")
    rate = sheet.derive(
        f"{key}.kv_bytes_per_second", f"{key}.groups * {key}.sent_bytes / {key}.prefill_seconds", "bytes/s"
    )
    return ModelExport(
        model=known,
        prompt_tokens=EXPORT_TOKENS,
        tensor_parallel=best.sizes.tensor_parallel,
        devices=best.devices,
        sent_bytes=round(sent),
        prefill_seconds=seconds,
        kv_bytes_per_second=rate,
    )


def note_sent(sheet: Worksheet, key: str, sizes: RequestSizes, tokens: int) -> float:
    """Bytes of a request of some model, derived as ``KEY.sent_bytes``."""
    if f"{key}.state_bytes" not in sheet:
        sheet.given(f"{key}.state_bytes", sizes.state_bytes, "bytes", "config.json")
        sheet.given(f"{key}.kv_bytes_per_token", sizes.kv_bytes_per_token, "bytes", "config.json")
    sheet.given(f"{key}.prompt_tokens", tokens, "tokens", "where models are compared")
    return sheet.derive(
        f"{key}.sent_bytes", f"{key}.state_bytes + {key}.prompt_tokens * {key}.kv_bytes_per_token", "bytes"
    )

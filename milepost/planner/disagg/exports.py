"""Published KV throughputs beside ours: by the roofline alone, and with the engine's overhead fitted.

Short prompts of every model take about a third of a second in the published engine, whatever the model: that
is no work of its devices, so no roofline has it. One number, `overhead_seconds`, is fitted to the rows of 1k
tokens, the mean of what they take longer than the roofline says; it is checked on the other rows.
"""

from __future__ import annotations

from typing import NamedTuple

from milepost.errors import ConfigError
from milepost.planner.disagg.instances import Instance
from milepost.planner.disagg.plan import PublishedExport
from milepost.planner.disagg.published import EXPORTS, PublishedKv
from milepost.planner.disagg.rates import RequestSizes, sizes_of
from milepost.planner.disagg.sheets import number_key
from milepost.planner.disagg.transfers import note_sent
from milepost.planner.worksheet import Worksheet
from milepost.shapes.names import SHAPES, find_shape
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.part_work import RankSizes

__all__ = ["FITTED_TOKENS", "checked_error", "published_exports"]

FITTED_TOKENS = 1024
"""Rows of this length are fitted, the others check."""


class _Row(NamedTuple):
    export: PublishedKv
    tokens: int
    published: float  # bytes a second
    sizes: RequestSizes
    seconds: float  # of prefill, by the roofline

    @property
    def published_seconds(self) -> float:
        """Of prefill, by the published throughput and our bytes."""
        return self.sizes.sent(self.tokens) / self.published


def published_exports(sheet: Worksheet) -> tuple[PublishedExport, ...]:
    """KV throughputs of 8 H200 beside ours at TP8, for the models whose shape is known."""
    rows = _rows()
    fitted = [row for row in rows if row.tokens == FITTED_TOKENS]
    if not fitted:
        return ()
    overhead = sum(row.published_seconds - row.seconds for row in fitted) / len(fitted)
    sheet.given(
        "published.overhead_seconds",
        overhead,
        "seconds",
        f"fitted to the rows of {FITTED_TOKENS:,} tokens: mean of published less roofline",
        "of the published engine, a prompt",
    )
    return tuple(_beside(sheet, row) for row in rows)


def checked_error(exports: tuple[PublishedExport, ...]) -> float | None:
    """Mean of |predicted / published - 1| with the overhead, over the rows that it was not fitted to."""
    checked = [one for one in exports if one.prompt_tokens != FITTED_TOKENS]
    if not checked:
        return None
    return sum(abs(one.with_overhead_ratio - 1.0) for one in checked) / len(checked)


def _rows() -> list[_Row]:
    hardware, found = find_hardware("h200"), []
    for export in EXPORTS:
        if export.shape not in SHAPES:
            continue
        _, shape = find_shape(export.shape)
        ranks = RankSizes(tensor_parallel=8)
        try:
            instance = Instance(shape, hardware, ranks, memory_share=1.0, chunk_tokens=8192)
        except ConfigError:  # heads that 8 ranks don't divide
            continue
        sizes = sizes_of(shape, 2, 4)
        found += [
            _Row(export, tokens, published, sizes, instance.prefill_seconds(tokens, 0))
            for tokens, published in export.bytes_per_second.items()
        ]
    return found


def _beside(sheet: Worksheet, row: _Row) -> PublishedExport:
    key = f"published.{number_key(row.export.model)}_{row.tokens}"
    sent = note_sent(sheet, key, row.sizes, row.tokens)
    sheet.given(f"{key}.bytes_per_second", row.published, "bytes/s", "arXiv:2604.15039, table 3")
    sheet.given(f"{key}.prefill_seconds", row.seconds, "seconds", "roofline of 8 H200 at TP8")
    predicted = sheet.derive(
        f"{key}.predicted_bytes_per_second", f"{key}.sent_bytes / {key}.prefill_seconds", "bytes/s"
    )
    ratio = sheet.derive(
        f"{key}.ratio", f"{key}.predicted_bytes_per_second / {key}.bytes_per_second", "times"
    )
    with_overhead = sheet.derive(
        f"{key}.with_overhead_ratio",
        f"{key}.sent_bytes / ({key}.prefill_seconds + published.overhead_seconds) / {key}.bytes_per_second",
        "times",
    )
    return PublishedExport(
        model=row.export.model,
        shape=row.export.shape,
        prompt_tokens=row.tokens,
        published_bytes_per_second=row.published,
        predicted_bytes_per_second=predicted,
        ratio=ratio,
        with_overhead_ratio=with_overhead,
        published_prefill_seconds=sent / row.published,
        predicted_prefill_seconds=row.seconds,
    )

"""``milepost inspect``: what a checkpoint holds and how its states and KV lie in pages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.table import Table

from milepost.byte_counts import format_bytes, parse_bytes
from milepost.cli.options import examples, model_argument
from milepost.cli.terminal import figures_table, results
from milepost.config import DTYPE_ITEMSIZE
from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.memory.capacity import max_sequences
from milepost.memory.layout import DEFAULT_BLOCK_SIZE, PagedLayout, paged_layout

if TYPE_CHECKING:
    from milepost.model_spec import ModelSpec
    from milepost.models.summary import CheckpointSummary, LayerSummary

__all__ = ["inspect_checkpoint"]

SEQUENCE_LENGTHS = (1_024, 8_192, 65_536, 1_048_576)


@click.command(
    "inspect",
    epilog=examples(
        "milepost inspect",
        "milepost inspect path/to/Kimi-K3 --tp 8 --memory 40GiB",
        "milepost inspect path/to/checkpoint --json | jq .parameters.total",
    ),
)
@model_argument
@click.option("--tp", type=int, default=1, show_default=True, help="Ranks that share the heads.")
@click.option(
    "--block-size",
    type=int,
    default=DEFAULT_BLOCK_SIZE,
    show_default=True,
    metavar="TOKENS",
    help="Of a KV block, which is a page.",
)
@click.option("--kv-dtype", default="bfloat16", show_default=True, metavar="|".join(DTYPE_ITEMSIZE))
@click.option(
    "--dtype",
    default="bfloat16",
    show_default=True,
    metavar="|".join(DTYPE_ITEMSIZE),
    help="Of the convolution windows.",
)
@click.option("--memory", metavar="SIZE", help="Also say what an arena of this size holds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def inspect_checkpoint(
    *, model: Path, tp: int, block_size: int, kv_dtype: str, dtype: str, memory: str | None, as_json: bool
) -> None:
    """Show layers, parameters, bytes and page layout of a checkpoint.

    Only config.json and the headers of the shards are read; no weight is loaded.
    """
    from milepost.models.summary import summarize  # loads torch, which takes seconds

    sizes = {"kv_itemsize": _itemsize("kv-dtype", kv_dtype), "conv_itemsize": _itemsize("dtype", dtype)}
    arena = None if memory is None else parse_bytes(memory)
    summary = summarize(model)
    layout = paged_layout(summary.spec, block_size=block_size, tensor_parallel=tp, **sizes)
    if as_json:
        click.echo(msgspec.json.encode(_as_data(summary, layout, arena)))
        return
    console = results()
    for table in _tables(model, summary, layout, tp, arena):
        console.print(table)


def _itemsize(option: str, name: str) -> int:
    if name not in DTYPE_ITEMSIZE:
        raise ConfigError(one_of(f"--{option}", name, DTYPE_ITEMSIZE))
    return DTYPE_ITEMSIZE[name]


def _tables(
    model: Path, summary: CheckpointSummary, layout: PagedLayout, tp: int, arena: int | None
) -> Iterator[Table]:
    yield figures_table(str(model), _checkpoint_figures(summary))
    yield _layer_table(summary)
    yield _part_table(summary)
    yield figures_table(f"Pages of one rank, tensor parallel {tp}", _page_figures(layout))
    if arena is not None:
        yield figures_table(f"An arena of {format_bytes(arena)}", _arena_figures(summary.spec, layout, arena))


def _checkpoint_figures(summary: CheckpointSummary) -> dict[str, str]:
    spec, parameters = summary.spec, summary.parameters
    figures = {
        "family": spec.family.value,
        "layers": f"{len(spec.layers)}: {len(spec.kda_layers)} KDA, {len(spec.mla_layers)} MLA",
        "hidden size": f"{spec.hidden_size:,}",
        "vocabulary": f"{spec.vocab_size:,}",
        "context": f"{spec.max_position:,} tokens",
        "experts": f"{spec.moe.num_experts}, {spec.moe.top_k} a token",
        "parameters": f"{parameters.total:,}",
        "activated a token": f"{parameters.activated:,}",
        "tensors": f"{parameters.num_tensors:,} in {summary.num_shards} shards",
        "bytes": f"{summary.num_bytes:,} ({format_bytes(summary.num_bytes)})",
    }
    figures |= {f"  in {dtype}": f"{size:,}" for dtype, size in summary.bytes_by_dtype.items()}
    if summary.skipped_tensors:
        figures["not used (vision)"] = f"{summary.skipped_tensors:,} tensors, {summary.skipped_bytes:,} bytes"
    return figures


def _layer_table(summary: CheckpointSummary) -> Table:
    table = Table(title="Layers, counted from 0", title_justify="left")
    table.add_column("layers")
    table.add_column("mixer")
    table.add_column("feed-forward")
    table.add_column("parameters each", justify="right")
    table.add_column("activated each", justify="right")
    for run in _equal_runs(summary.parameters.layers):
        first, last = run[0], run[-1]
        span = str(first.index) if first is last else f"{first.index}-{last.index}"
        figures = (f"{first.parameters:,}", f"{first.activated:,}")
        table.add_row(span, first.mixer, first.feed_forward, *figures)
    return table


def _equal_runs(layers: tuple[LayerSummary, ...]) -> Iterator[list[LayerSummary]]:
    """Neighbours that are alike, together."""

    def kind(layer: LayerSummary) -> tuple[str, str, int]:
        return layer.mixer, layer.feed_forward, layer.parameters

    for _, run in groupby(layers, kind):
        yield list(run)


def _part_table(summary: CheckpointSummary) -> Table:
    table = Table(title="Parameters by part", title_justify="left")
    table.add_column("part")
    table.add_column("parameters", justify="right")
    table.add_column("share", justify="right")
    for part, parameters in summary.parameters.by_part.items():
        table.add_row(part, f"{parameters:,}", f"{parameters / summary.parameters.total:.1%}")
    return table


def _page_figures(layout: PagedLayout) -> dict[str, str]:
    held = layout.pages_per_state * layout.page_bytes
    return {
        "page = KV block": f"{layout.page_bytes:,} B, {layout.block_size} tokens",
        "KV a token": f"{layout.kv_bytes_per_token:,} B in {layout.num_mla_layers} MLA layers",
        "tile": f"{layout.tile_bytes:,} B, {layout.tiles_per_page} a page",
        "state": f"{layout.state_bytes:,} B in {layout.num_kda_layers} KDA layers",
        "pages of a state": f"{layout.pages_per_state:,} ({held:,} B)",
        "padding of a state": f"{layout.state_padding_bytes:,} B ({layout.state_padding_bytes / held:.1%})",
    }


def _arena_figures(spec: ModelSpec, layout: PagedLayout, arena: int) -> dict[str, str]:
    num_pages = arena // layout.page_bytes
    figures = {"pages": f"{max(0, num_pages - 1):,} and the dummy page"}
    for tokens in sorted({min(tokens, spec.max_position) for tokens in SEQUENCE_LENGTHS}):
        figures[f"sequences of {tokens:,} tokens"] = f"{max_sequences(layout, num_pages, tokens):,}"
    return figures


def _as_data(summary: CheckpointSummary, layout: PagedLayout, arena: int | None) -> dict[str, Any]:
    pages = {
        name: getattr(layout, name)
        for name in (
            *("page_bytes", "block_size", "pages_per_block", "kv_bytes_per_token", "tile_bytes"),
            *("tiles_per_page", "state_bytes", "pages_per_state", "state_padding_bytes"),
        )
    }
    if arena is not None:
        pages["arena_pages"] = arena // layout.page_bytes
    return {
        "spec": summary.spec,
        "parameters": summary.parameters,
        "num_shards": summary.num_shards,
        "bytes": summary.num_bytes,
        "bytes_by_dtype": summary.bytes_by_dtype,
        "skipped_tensors": summary.skipped_tensors,
        "skipped_bytes": summary.skipped_bytes,
        "pages": pages,
    }

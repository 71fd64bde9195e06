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
from milepost.config import DTYPE_ITEMSIZE, LAYOUTS
from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.memory.aligned import AlignedLayout
from milepost.memory.capacity import max_sequences
from milepost.memory.layout import DEFAULT_BLOCK_SIZE, TiledLayout
from milepost.memory.named_layout import named_layout

if TYPE_CHECKING:
    from milepost.model_spec import ModelSpec
    from milepost.models.summary import CheckpointSummary, LayerSummary

__all__ = ["inspect_checkpoint"]

# Pages can be laid out for a dtype that the engine does not compute in.
KV_ITEMSIZE = {"float8": 1, **DTYPE_ITEMSIZE}
SEQUENCE_LENGTHS = (1_024, 8_192, 65_536, 1_048_576)


@click.command(
    "inspect",
    epilog=examples(
        "milepost inspect",
        "milepost inspect path/to/Kimi-K3 --tp 8 --memory 40GiB  # config.json is enough",
        "milepost inspect path/to/Kimi-K3 --tp 8 --kv-dtype float8 --layout aligned --block-size 128",
        "milepost inspect path/to/checkpoint --json | jq .parameters.total",
    ),
)
@model_argument
@click.option("--tp", type=int, default=1, show_default=True, help="Ranks that share the heads.")
@click.option("--layout", "layout_name", default=LAYOUTS[0], show_default=True, metavar="|".join(LAYOUTS))
@click.option(
    "--block-size",
    type=int,
    default=DEFAULT_BLOCK_SIZE,
    show_default=True,
    metavar="TOKENS",
    help="Of a KV block, which is a page; the aligned layout grows it in such steps.",
)
@click.option("--kv-dtype", default="bfloat16", show_default=True, metavar="|".join(KV_ITEMSIZE))
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
    *,
    model: Path,
    tp: int,
    layout_name: str,
    block_size: int,
    kv_dtype: str,
    dtype: str,
    memory: str | None,
    as_json: bool,
) -> None:
    """Show what a checkpoint holds, and its pages.

    Layers, parameters, bytes, and how states and KV lie in pages. Only config.json and the headers of the
    shards are read, and config.json alone where there are no shards. Pages are laid out in bfloat16 unless
    you say otherwise; the engine's default on CPUs is --dtype float32 --kv-dtype float32.
    """
    from milepost.models.summary import summarize  # loads torch, which takes seconds

    if layout_name not in LAYOUTS:
        raise ConfigError(one_of("--layout", layout_name, LAYOUTS))
    sizes = {
        "kv_itemsize": _itemsize("kv-dtype", kv_dtype, KV_ITEMSIZE),
        "conv_itemsize": _itemsize("dtype", dtype, DTYPE_ITEMSIZE),
    }
    arena = None if memory is None else parse_bytes(memory)
    if tp < 1:
        raise ConfigError(f"--tp must be at least 1. Given: {tp}.")
    summary = summarize(model)
    if summary.spec.kda.num_heads % tp:
        raise ConfigError(f"--tp must divide the {summary.spec.kda.num_heads} KDA heads. Given: {tp}.")
    layout = named_layout(layout_name, summary.spec, block_size=block_size, tensor_parallel=tp, **sizes)
    if as_json:
        click.echo(msgspec.json.encode(_as_data(summary, layout_name, layout, arena)))
        return
    console = results()
    for table in _tables(model, summary, layout, tp, arena):
        console.print(table)


def _itemsize(option: str, name: str, known: dict[str, int]) -> int:
    if name not in known:
        raise ConfigError(one_of(f"--{option}", name, known))
    return known[name]


def _tables(
    model: Path, summary: CheckpointSummary, layout: TiledLayout, tp: int, arena: int | None
) -> Iterator[Table]:
    # A title is folded at its table's width, which a path in it does not survive; a cell widens the table.
    yield figures_table(model.resolve().name, {"folder": str(model)} | _checkpoint_figures(summary))
    yield _layer_table(summary)
    yield _part_table(summary)
    yield figures_table(f"Pages of one rank, tensor parallel {tp}", _page_figures(layout))
    if isinstance(layout, AlignedLayout):
        steps = {f"step {number}": line for number, line in enumerate(layout.steps.lines(), 1)}
        yield figures_table("How the aligned layout grows the block", steps)
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
    }
    for weights, size in summary.memory_by_weights.items():
        figures[f"in memory, --weights {weights}"] = format_bytes(size)
    if not summary.num_shards:
        return figures | {"tensors": f"{parameters.num_tensors:,} by config.json; no shard here"}
    figures["tensors"] = f"{parameters.num_tensors:,} in {summary.num_shards} shards"
    figures["bytes"] = f"{summary.num_bytes:,} ({format_bytes(summary.num_bytes)})"
    figures |= {f"  in {dtype}": f"{size:,}" for dtype, size in summary.bytes_by_dtype.items()}
    if summary.skipped_tensors:
        figures["not used (vision)"] = f"{summary.skipped_tensors:,} tensors, {summary.skipped_bytes:,} bytes"
    return figures


def _layer_table(summary: CheckpointSummary) -> Table:
    table = Table(title="Layers, counted from 0", title_justify="left")
    table.add_column("number", justify="right")
    table.add_column("mixer")
    table.add_column("feed-forward")
    table.add_column("parameters each", justify="right")
    table.add_column("activated each", justify="right")
    table.add_column("which")
    for layers in _by_kind(summary.parameters.layers):
        first = layers[0]
        figures = (f"{first.parameters:,}", f"{first.activated:,}")
        which = _spans([layer.index for layer in layers])
        table.add_row(str(len(layers)), first.mixer, first.feed_forward, *figures, which)
    return table


def _by_kind(layers: tuple[LayerSummary, ...]) -> list[list[LayerSummary]]:
    """Layers that are alike, together; kinds in the order of their first layers."""
    kinds: dict[tuple[str, str, int], list[LayerSummary]] = {}
    for layer in layers:
        kinds.setdefault((layer.mixer, layer.feed_forward, layer.parameters), []).append(layer)
    return [*kinds.values()]


def _spans(indices: list[int]) -> str:
    """Ascending numbers with neighbours as one span: ``0, 2-4``."""
    runs = [
        [index for _, index in run] for _, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _part_table(summary: CheckpointSummary) -> Table:
    table = Table(title="Parameters by part", title_justify="left")
    table.add_column("part")
    table.add_column("parameters", justify="right")
    table.add_column("share", justify="right")
    for part, parameters in summary.parameters.by_part.items():
        table.add_row(part, f"{parameters:,}", f"{parameters / summary.parameters.total:.1%}")
    return table


def _page_figures(layout: TiledLayout) -> dict[str, str]:
    held = layout.pages_per_state * layout.page_bytes
    return {
        "page = KV block": f"{layout.page_bytes:,} B, {layout.block_size} tokens",
        "KV a token": f"{layout.kv_bytes_per_token:,} B in {layout.num_attention_layers} MLA layers",
        "tile": f"{layout.tile_bytes:,} B, {layout.tiles_per_page} a page",
        "state": f"{layout.state_bytes:,} B in {layout.num_recurrent_layers} KDA layers",
        "pages of a state": f"{layout.pages_per_state:,} ({held:,} B)",
        "padding of a state": f"{layout.state_padding_bytes:,} B ({layout.state_padding_bytes / held:.1%})",
    }


def _arena_figures(spec: ModelSpec, layout: TiledLayout, arena: int) -> dict[str, str]:
    num_pages = arena // layout.page_bytes
    figures = {"pages": f"{max(0, num_pages - 1):,} and the dummy page"}
    for tokens in sorted({min(tokens, spec.max_position) for tokens in SEQUENCE_LENGTHS}):
        figures[f"sequences of {tokens:,} tokens"] = f"{max_sequences(layout, num_pages, tokens):,}"
    return figures


def _as_data(
    summary: CheckpointSummary, layout_name: str, layout: TiledLayout, arena: int | None
) -> dict[str, Any]:
    pages: dict[str, Any] = {"layout": layout_name} | {
        name: getattr(layout, name)
        for name in (
            *("page_bytes", "block_size", "pages_per_block", "kv_bytes_per_token", "tile_bytes"),
            *("tiles_per_page", "state_bytes", "pages_per_state", "state_padding_bytes"),
        )
    }
    if isinstance(layout, AlignedLayout):
        pages["steps"] = layout.steps
    if arena is not None:
        pages["arena_pages"] = arena // layout.page_bytes
    return {
        "spec": summary.spec,
        "parameters": summary.parameters,
        "num_shards": summary.num_shards,
        "bytes": summary.num_bytes,
        "bytes_by_dtype": summary.bytes_by_dtype,
        "bytes_loaded": summary.memory_by_weights,
        "skipped_tensors": summary.skipped_tensors,
        "skipped_bytes": summary.skipped_bytes,
        "pages": pages,
    }

"""``milepost trace``: what a recorded trace holds, and traces in other forms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.table import Table

from milepost.cli.options import examples
from milepost.cli.terminal import figures_table, print_notes, print_table, write
from milepost.cli.trace_options import open_trace, take_trace_options, trace_options
from milepost.errors import ConfigError

if TYPE_CHECKING:
    from milepost.sim.traces.stats import Spread, TraceStats

__all__ = ["convert", "stats", "trace"]

_FEW = 10
"""Below this a mean is told to a tenth: 2.5 requests of a session are not 2."""


@click.group(
    epilog=examples(
        "milepost trace stats conversation_trace.jsonl.gz",
        "milepost trace convert chat-log.jsonl prompts.jsonl.zst --to token-ids --tokenizer milepost-toy-k3",
    )
)
def trace() -> None:
    """Look at recorded traffic, or convert it.

    Forms: Mooncake's, sessions of coding agents, Qwen-Bailian's, token ids, chat logs, and Azure's tables
    of lengths. docs/traces.md says what is known of each.
    """


@trace.command(
    epilog=examples(
        "milepost trace stats conversation_trace.jsonl.gz",
        "milepost trace stats sessions/ --session-rate 0.1 --seed 1  # a folder with a file a session",
        "milepost trace stats chat-log.jsonl --tokenizer path/to/Kimi-K3 --skip-bad",
        "milepost trace stats trace.jsonl --json | jq .prefix_bound",
    )
)
@click.argument("file", type=click.Path(path_type=Path))
@trace_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def stats(*, file: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - taken below
    """Show what a trace holds.

    Requests, sessions, lengths, and the prefix bound: the share of input tokens that a cache would hit
    that never forgets anything and needs no recurrent states. No prefix cache can hit more.
    """
    from milepost.sim.traces.stats import stats_of

    found = stats_of(open_trace(file, take_trace_options(options)))
    if as_json:
        write(msgspec.json.encode(found).decode(), end="\n")
        return
    for table in _tables(found):
        print_table(table)
    print_notes(found.notes)


@trace.command(
    epilog=examples(
        "milepost trace convert qwen_traceA_blksz_16.jsonl chained.jsonl.gz --to mooncake",
        "milepost trace convert chat-log.jsonl prompts.jsonl.zst --to token-ids --tokenizer milepost-toy-k3",
        "milepost trace convert conversation_trace.jsonl slow.jsonl --to mooncake --time-scale 2 --first 100",
    )
)
@click.argument("file", metavar="IN", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--to", "target", required=True, metavar="mooncake|token-ids", help="The form to write.")
@trace_options
def convert(*, file: Path, out: Path, target: str, **options: Any) -> None:  # noqa: ANN401 - taken below
    """Write the trace IN as OUT in another form.

    OUT is packed with gzip if its name ends in .gz, with zstd if in .zst. Forms that can't say what
    IN says are refused. Times are written as --time-scale, and sessions as --session-rate and --seed
    make them.
    """
    from milepost.sim.traces.writing import write_trace

    if out.exists() and any(out.samefile(source) for source in (file, *_within(file)) if source.exists()):
        raise ConfigError(f"OUT would overwrite IN, {file}. Name another file.")
    found = open_trace(file, take_trace_options(options))
    print_notes([*found.notes, *write_trace(found, out, target)])


def _within(path: Path) -> tuple[Path, ...]:
    return tuple(path.iterdir()) if path.is_dir() else ()


# --- at the terminal --------------------------------------------------------------------------------


def _tables(found: TraceStats) -> Iterator[Table]:
    yield figures_table(found.trace, _figures(found))
    yield _spreads(found)


def _figures(found: TraceStats) -> dict[str, str]:
    rate = found.requests_per_second
    figures = {
        "form": found.form,
        "tokens are told apart": "one by one"
        if found.block_size == 1
        else f"by blocks of {found.block_size}",
        "requests": f"{found.requests:,}",
        "sessions": "not known" if found.sessions is None else f"{found.sessions:,}",
        "seconds": f"{found.seconds:,.1f}",
        "requests a second": "all at once" if rate is None else f"{rate:,.3f}",
        "input tokens": f"{found.input_tokens:,}",
        "output tokens": f"{found.output_tokens:,}",
    }
    if found.prefix_bound is None or found.new_beginnings is None:
        figures["tokens are told apart"] = "not at all: lengths only"
        figures["prefix bound"] = "not known"
    else:
        figures["prefix bound"] = f"{found.prefix_bound:.2%}"
        figures["with a new beginning"] = f"{found.new_beginnings:.2%} of requests"
    if found.skipped:
        figures["bad rows left out"] = f"{found.skipped:,}"
    return figures


def _spreads(found: TraceStats) -> Table:
    table = Table(title="How they are spread", title_justify="left")
    table.add_column()
    for name in ("mean", "half below", "90 % below", "99 % below", "most"):
        table.add_column(name, justify="right")
    rows: Sequence[tuple[str, Spread | None]] = (
        ("input tokens of a request", found.input),
        ("output tokens of a request", found.output),
        ("overlap with an earlier one, tokens", found.overlap),
        ("requests of a session", found.turns),
    )
    for name, spread in rows:
        if spread is not None:
            figures = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
            mean = f"{spread.mean:,.1f}" if spread.mean < _FEW else f"{spread.mean:,.0f}"
            table.add_row(name, mean, *(f"{figure:,.0f}" for figure in figures[1:]))
    return table

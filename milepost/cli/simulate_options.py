"""The options of ``milepost simulate``, by group, and the plain data that they become."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from milepost.cli.option_groups import option_group, with_options
from milepost.cli.output_files import STDOUT, check_output_files
from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.memory.named_layout import SIMULATED_LAYOUTS
from milepost.sim.runs import TOKEN_BUDGET, RunSpec
from milepost.sim.sweep.grid import GridOptions

__all__ = [
    "TRACE_HEADING",
    "Outputs",
    "simulate_options",
    "take_base_spec",
    "take_grid_options",
    "take_outputs",
]

F = TypeVar("F", bound=Callable[..., Any])

KV_ITEMSIZE = {"bf16": 2, "fp8": 1}
STATE_ITEMSIZE = {"fp32": 4, "bf16": 2}

TRACE_HEADING = "The trace"
_compare = option_group("What is compared; lists with commas, and options may be repeated")
_engine = option_group("Model and engine")
_time = option_group("Time")
_trace = option_group(TRACE_HEADING)
_results = option_group("Results")
_run = option_group("How it runs")
_DEFAULTS = RunSpec()

_OPTIONS = (
    _compare(
        "--budget",
        "budgets",
        multiple=True,
        metavar="SIZES",
        help="Bytes that running requests and the cache share on one rank, such as 200GB (10^9 bytes), "
        "200GiB or unlimited.  [default: two that suit the model]",
    ),
    _compare(
        "--policy",
        "policies",
        multiple=True,
        metavar="NAMES",
        help="Where snapshots stand: adaptive, none, clairvoyant (knows the future), or some of turns, "
        "branch, last, prompt-tail, every(N), budget(SIZE), joined by +.  "
        "[default: adaptive, beside presets]",
    ),
    _compare(
        "--eviction",
        "evictions",
        multiple=True,
        metavar="NAMES",
        help="What goes first: value, lru, marconi(alpha=N), clairvoyant.  [default: value]",
    ),
    _compare(
        "--layout",
        "layouts",
        multiple=True,
        metavar="NAMES",
        help=f"How states and KV lie in pages: {', '.join(SIMULATED_LAYOUTS)}.  [default: paged]",
    ),
    _compare(
        "--preset",
        "presets",
        multiple=True,
        metavar="NAMES",
        help="Models of other engines in place of policy, eviction and layout; see --list-presets.",
    ),
    _compare(
        "--match-unit",
        "match_units",
        multiple=True,
        metavar="TOKENS",
        help="Tokens between prefix keys.  [default: the trace's block, or 16 with token ids]",
    ),
    _compare(
        "--block-size",
        "block_sizes",
        multiple=True,
        metavar="TOKENS",
        help="Tokens of a KV block.  [default: the trace's block, or 64 with token ids]",
    ),
    _compare("--list-presets", is_flag=True, help="Say what each preset models and leaves out, and end."),
    _engine(
        "--model",
        default=_DEFAULTS.model,
        show_default=True,
        metavar="NAME|PATH",
        help="kimi-k3, kimi-linear, milepost-toy-k3, or a config.json or its folder.",
    ),
    _engine(
        "--tp",
        "tensor_parallel",
        type=int,
        default=1,
        show_default=True,
        help="Ranks that share the heads; sizes and budgets are those of one.",
    ),
    _engine(
        "--kv-dtype", default="bf16", show_default=True, metavar="|".join(KV_ITEMSIZE), help="Cached KV."
    ),
    _engine(
        "--state-dtype",
        default="fp32",
        show_default=True,
        metavar="|".join(STATE_ITEMSIZE),
        help="Recurrent states, live and cached.",
    ),
    _engine(
        "--token-budget",
        type=int,
        default=TOKEN_BUDGET,
        show_default=True,
        metavar="TOKENS",
        help="Most tokens of a step.",
    ),
    _engine(
        "--max-num-seqs",
        type=int,
        default=_DEFAULTS.max_num_seqs,
        show_default=True,
        metavar="N",
        help="Most requests that run at once.",
    ),
    _time(
        "--queueing",
        is_flag=True,
        help="Let requests wait for each other and share steps. Without, each is served alone in the moment "
        "in which it arrives, and times are those of an idle engine.",
    ),
    _time(
        "--hardware",
        default="",
        metavar="NAME|PATH",
        help="What times are of: a name, a description or a calibration.  [default: one for the model]",
    ),
    _time(
        "--ttft-limit",
        type=float,
        default=_DEFAULTS.ttft_limit,
        show_default=True,
        metavar="SECONDS",
        help="Goodput counts requests whose first token comes within this.",
    ),
    _time(
        "--tpot-limit",
        type=float,
        default=_DEFAULTS.tpot_limit,
        show_default=True,
        metavar="SECONDS",
        help="And each later one within this, in the mean.",
    ),
    _trace(
        "--warm-up",
        type=float,
        default=_DEFAULTS.warm_up,
        show_default=True,
        metavar="SHARE",
        help="Share of the requests, the first, that fill the cache and are not counted.",
    ),
    _results(
        "--json",
        metavar="FILE",
        is_flag=False,
        flag_value=STDOUT,
        help="A list of objects, one a point; without FILE on stdout, in place of the table.",
    ),
    _results("--csv", type=click.Path(path_type=Path), metavar="FILE", help="One line a point."),
    _results("--parquet", type=click.Path(path_type=Path), metavar="FILE", help="The same; needs polars."),
    _results(
        "--html",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="One page with plots, which needs no network; needs plotly.",
    ),
    _results("--recommend", is_flag=True, help="Also name the best point of each budget, and nearest flags."),
    _results(
        "--present",
        metavar="SETTINGS",
        help="What runs today, over which gains are counted: policy=turns+branch,eviction=lru or "
        "preset=vllm,match_unit=16.",
    ),
    _results(
        "--per-request",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A JSON object a line for each request of each point.",
    ),
    _run("--jobs", type=int, default=0, metavar="N", help="Processes.  [default: the usable cores]"),
    _run(
        "--ray",
        metavar="ADDRESS",
        is_flag=False,
        flag_value="",
        help="Spread the points over a Ray cluster, or without ADDRESS over one that is started here.",
    ),
)


def simulate_options(command: F) -> F:
    """All options; the command hands its keyword arguments to the functions below."""
    return with_options(command, _OPTIONS)


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """Where results go, beside the terminal.

    Attributes:
        json: a file, "-" for stdout, None for nowhere.
        csv: a file or None, as are the others.
    """

    json: str | None = None
    csv: Path | None = None
    parquet: Path | None = None
    html: Path | None = None
    per_request: Path | None = None

    @property
    def on_stdout(self) -> bool:
        """Whether JSON is on stdout, in place of the table."""
        return self.json == STDOUT

    @property
    def files(self) -> dict[str, Path]:
        """Options and the files that they name."""
        given = {
            "--json": None if self.json is None or self.on_stdout else Path(self.json),
            "--csv": self.csv,
            "--parquet": self.parquet,
            "--html": self.html,
            "--per-request": self.per_request,
        }
        return {option: path for option, path in given.items() if path is not None}


def take_outputs(options: dict[str, Any], trace: Path) -> Outputs:
    """Remove what `Outputs` holds from `options`; whether files can be written is known before the work.

    Raises:
        ConfigError: two results in one file, the trace's own file, or a folder.
    """
    outputs = Outputs(**{name: options.pop(name) for name in Outputs.__struct_fields__})
    check_output_files(outputs.files, {"TRACE": trace})
    return outputs


def take_grid_options(options: dict[str, Any]) -> GridOptions:
    """Remove the lists from `options`."""
    return GridOptions(**{name: options.pop(name) for name in GridOptions.__struct_fields__})


def take_base_spec(options: dict[str, Any]) -> RunSpec:
    """Remove what all points share from `options`.

    Raises:
        ConfigError: a value is out of range.
    """
    spec = RunSpec(
        kv_itemsize=_itemsize("--kv-dtype", options.pop("kv_dtype"), KV_ITEMSIZE),
        state_itemsize=_itemsize("--state-dtype", options.pop("state_dtype"), STATE_ITEMSIZE),
        **{name: options.pop(name) for name in _SHARED},
    )
    for name in ("tensor_parallel", "token_budget", "max_num_seqs"):
        if getattr(spec, name) < 1:
            raise ConfigError(f"{_SHARED[name]} must be at least 1. Given: {getattr(spec, name)}.")
    if not 0 <= spec.warm_up < 1:
        raise ConfigError(f"--warm-up must be a share from 0 to below 1. Given: {spec.warm_up}.")
    for name in ("ttft_limit", "tpot_limit"):
        if not 0 < getattr(spec, name) < math.inf:
            raise ConfigError(f"{_SHARED[name]} must be above 0 seconds. Given: {getattr(spec, name)}.")
    return spec


_SHARED = {
    "model": "--model",
    "tensor_parallel": "--tp",
    "token_budget": "--token-budget",
    "max_num_seqs": "--max-num-seqs",
    "queueing": "--queueing",
    "hardware": "--hardware",
    "warm_up": "--warm-up",
    "ttft_limit": "--ttft-limit",
    "tpot_limit": "--tpot-limit",
}


def _itemsize(option: str, name: str, known: Mapping[str, int]) -> int:
    if name not in known:
        raise ConfigError(one_of(option, name, known))
    return known[name]

"""The plots of one run: the cache over time, and where its snapshots stood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milepost.sim.reports.labels import bytes_text, seconds_text
from milepost.sim.reports.looks import KV_COLOUR, STATE_COLOUR
from milepost.sim.runs import RunResult

__all__ = ["facts", "run_plots"]

_USED_COLOUR = "#12936e"
_UNITS = ((2 * 86_400.0, 86_400.0, "days"), (7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"))


def run_plots(result: RunResult) -> dict[str, dict[str, Any]]:
    """Both, in the form that `milepost.sim.reports.plots` describes."""
    return {"time": _over_time(result), "depth": _by_depth(result)}


def facts(result: RunResult) -> list[tuple[str, str]]:
    """What a reader asks first, as pairs of a name and a value."""
    pairs = [
        ("hit rate", f"{result.hit_rate:.2%}"),
        ("snapshots a request", f"{result.snapshots_per_request:.2f}"),
        ("snapshots used", _share(result.snapshots_used, result.snapshots_written)),
        ("states, mean", bytes_text(result.state_bytes_mean)),
        ("KV, mean", bytes_text(result.kv_bytes_mean)),
    ]
    if result.ttft is not None:
        pairs.append(("TTFT p50 / p90", f"{seconds_text(result.ttft.p50)} / {seconds_text(result.ttft.p90)}"))
    if result.tpot is not None:
        pairs.append(("TPOT p50", seconds_text(result.tpot.p50)))
    if result.goodput is not None:
        pairs.append(("goodput", f"{result.goodput:.3g} / s"))
    if result.refused:
        pairs.append(("refused", f"{result.refused:,}"))
    if result.preemptions:
        pairs.append(("preemptions", f"{result.preemptions:,}"))
    return pairs


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / whole:.0%})" if whole else "none written"


def _over_time(result: RunResult) -> dict[str, Any]:
    samples = result.samples
    if not samples:
        return {"empty": "This run kept no samples."}
    span = samples[-1].seconds
    scale, unit = next(((scale, unit) for least, scale, unit in _UNITS if span >= least), (1.0, "seconds"))
    x = [round(sample.seconds / scale, 4) for sample in samples]
    data = [
        _area("states", STATE_COLOUR, x, [sample.state_bytes for sample in samples]),
        _area("KV", KV_COLOUR, x, [sample.kv_bytes for sample in samples]),
    ]
    layout: dict[str, Any] = {
        "hovermode": "x unified",
        "xaxis": {"title": {"text": f"simulated {unit}"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "cached (GB)"}, "rangemode": "tozero", "tickformat": ",~r"},
    }
    if result.budget_bytes is not None:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "budget",
                "x": [x[0], x[-1]],
                "y": [result.budget_bytes / 1e9] * 2,
                "line": {"dash": "dash", "width": 1.5},
                "hovertemplate": "%{y:,.5~r} GB",
                "meta": "limit",
            }
        )
    return {"views": [{"name": "bytes", "data": data, "layout": layout}]}


def _area(name: str, colour: str, x: Sequence[float], counts: Sequence[int]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": [float(f"{count / 1e9:.4g}") for count in counts],
        "stackgroup": "cached",
        "line": {"color": colour, "width": 1},
        "fillcolor": f"{colour}99",
        "hovertemplate": "%{y:,.4~r} GB",
    }


def _by_depth(result: RunResult) -> dict[str, Any]:
    end = max((i + 1 for i, count in enumerate(result.written_by_depth) if count), default=0)
    if not end:
        return {"empty": "This run wrote no snapshots."}
    names = [_tokens(edge) for edge in result.depth_edges[:end]]
    starts = ["0", *names]
    bins = [f"{start} to {name} tokens" for start, name in zip(starts, names, strict=False)]
    data = []
    pairs = (("written", STATE_COLOUR, result.written_by_depth), ("used", _USED_COLOUR, result.used_by_depth))
    for name, colour, counts in pairs:
        data.append(
            {
                "type": "bar",
                "name": name,
                "x": [*range(end)],
                "y": list(counts[:end]),
                "text": [f"{where}<br><b>{n:,}</b> {name}" for where, n in zip(bins, counts, strict=False)],
                "textposition": "none",
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"color": colour, "opacity": 0.45 if name == "written" else 1},
            }
        )
    every = max(1, -(-end // 8))
    layout = {
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": {
            "title": {"text": "depth of the snapshot, tokens up to"},
            "tickvals": [*range(end)][::-every][::-1],
            "ticktext": names[::-every][::-1],
            "showgrid": False,
        },
        "yaxis": {"title": {"text": "snapshots"}, "rangemode": "tozero", "tickformat": ",~r"},
    }
    return {"views": [{"name": "depth", "data": data, "layout": layout}]}


def _tokens(count: int) -> str:
    return f"{count / 1024:g}k" if count >= 1024 else str(count)

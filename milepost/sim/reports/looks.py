"""One look for each policy, the same in every plot: a colour for what decides, a dash for its variants.

The colours have a contrast of at least 3.5 to 1 with both of the page's backgrounds, light and dark; dashes
and symbols tell apart what colours alone don't.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from milepost.prefix.reports import Loss
from milepost.sim.reports.labels import Names, policy_text
from milepost.sim.runs import RunResult

__all__ = [
    "CAUSE_COLOURS",
    "COLOURS",
    "DASHES",
    "HIT_COLOUR",
    "KV_COLOUR",
    "STATE_COLOUR",
    "SYMBOLS",
    "Look",
    "looks_of",
]

COLOURS = (
    "#2f7ed8",
    "#c8640a",
    "#12936e",
    "#b8509f",
    "#8a7a12",
    "#d1495b",
    "#7a6fe0",
    "#0e93a8",
    "#8b6a4f",
    "#64808e",
)
DASHES = ("solid", "dash", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down")

STATE_COLOUR = "#2f7ed8"
KV_COLOUR = "#c8640a"
HIT_COLOUR = "#12936e"

CAUSE_COLOURS = {
    Loss.UNSEEN.value: "#8794a1",
    Loss.EVICTED_STATE.value: "#2f7ed8",
    Loss.EVICTED_KV.value: "#c8640a",
    Loss.NO_SNAPSHOT.value: "#b8509f",
    Loss.BELOW_UNIT.value: "#8a7a12",
    Loss.NOT_PUBLISHED.value: "#7a6fe0",
    Loss.NOT_LOADED.value: "#0e93a8",
    Loss.NO_MEMORY.value: "#d1495b",
    Loss.SALT.value: "#8b6a4f",
    Loss.CAP.value: "#4d5b67",
}


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """How a series is drawn, in plotly's words."""

    colour: str
    dash: str
    symbol: str


def looks_of(results: Sequence[RunResult], names: Names) -> dict[str, Look]:
    """A look for each series' name, over all workloads; presets, models of other engines, are dotted."""
    policies: dict[str, list[str]] = {}
    presets = set()
    for result in results:
        series = policies.setdefault(policy_text(result), [])
        name = names.series(result)
        if name not in series:
            series.append(name)
        if result.preset:
            presets.add(name)
    if len(policies) == 1:  # then it is the variants that compare
        (variants,) = policies.values()
        policies = {name: [name] for name in variants}
    looks = {}
    for place, series in enumerate(policies.values()):
        turn, colour = divmod(place, len(COLOURS))
        for variant, name in enumerate(series):
            symbol = SYMBOLS[(turn + variant) % len(SYMBOLS)]
            looks[name] = Look(
                colour=COLOURS[colour],
                dash="dot" if name in presets else DASHES[(turn + variant) % len(DASHES)],
                symbol=f"{symbol}-open" if name in presets else symbol,
            )
    return looks

"""How results are called: what tells them apart goes into a name, what they share is said once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from milepost.prefix.reports import Loss
from milepost.sim.runs import RunResult

__all__ = [
    "CAUSES",
    "FIELDS",
    "Names",
    "baselines",
    "budget_text",
    "bytes_text",
    "cause_text",
    "count_text",
    "is_own",
    "policy_text",
    "seconds_text",
]

CAUSES = {
    Loss.UNSEEN.value: "never seen",
    Loss.EVICTED_STATE.value: "state evicted",
    Loss.EVICTED_KV.value: "KV evicted",
    Loss.NO_SNAPSHOT.value: "no snapshot there",
    Loss.BELOW_UNIT.value: "below a match unit",
    Loss.SALT.value: "other salt",
    Loss.NOT_PUBLISHED.value: "being computed",
    Loss.NOT_LOADED.value: "not loaded",
    Loss.NO_MEMORY.value: "no memory",
    Loss.CAP.value: "last token",
}
"""Why tokens were computed, in words. `milepost.prefix.reports.Loss` says more."""

_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def budget_text(count: int | None) -> str:
    """A budget: "1,600 GB", "unlimited"."""
    return "unlimited" if count is None else bytes_text(count)


def bytes_text(count: float) -> str:
    """Decimal bytes in a unit that leaves three figures: "512 MB", "1.25 GB"."""
    for unit, size in _UNITS:
        if count >= size:
            number = count / size
            digits = 0 if number >= 100 or number == int(number) else 1 if number >= 10 else 2
            return f"{number:,.{digits}f} {unit}"
    return f"{count:.0f} B"


def seconds_text(seconds: float | None) -> str:
    """A latency: "12.3 s", "450 ms", "0.85 ms"; "-" for None."""
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:,.2f} s" if seconds < 100 else f"{seconds:,.0f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def count_text(count: float) -> str:
    """A large count for a headline: "144.8 M", "12,031"."""
    for unit, size in (("G", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f}"


def cause_text(cause: str) -> str:
    """A loss in words."""
    return CAUSES.get(cause, cause.replace("_", " "))


def policy_text(result: RunResult) -> str:
    """What decides: the preset where there is one, else the snapshot policy."""
    return f"{result.preset} (preset)" if result.preset else result.policy


def is_own(result: RunResult) -> bool:
    """Whether Milepost can run it: no model of another engine, and no bound that knows the future."""
    return not result.preset and not f"{result.policy}+{result.eviction}".count("clairvoyant")


FIELDS: dict[str, Callable[[RunResult], str]] = {
    "trace": lambda result: result.trace,
    "model": lambda result: result.model,
    "hardware": lambda result: result.hardware or "none",
    "serving": lambda result: "queueing" if result.queueing else "each request alone",
    "budget": lambda result: budget_text(result.budget_bytes),
    "policy": policy_text,
    "eviction": lambda result: result.eviction,
    "layout": lambda result: result.layout,
    "match unit": lambda result: f"{result.match_unit:,}",
    "block": lambda result: f"{result.block_size:,}",
}
"""What a run was asked, by the name of its column, as text."""

_WORKLOAD = ("trace", "model", "hardware", "serving")
_VARIANT = ("eviction", "layout", "match unit", "block")


class Names:
    """Names for `results`, as short as they can be without two that read the same.

    Attributes:
        varying: names of the fields that differ between results, in order.
        constant: the others, with their value.
    """

    def __init__(self, results: Sequence[RunResult]) -> None:
        self.varying: list[str] = []
        self.constant: dict[str, str] = {}
        for name, text in FIELDS.items():
            values = {text(result) for result in results}
            if len(values) > 1:
                self.varying.append(name)
            elif values:
                self.constant[name] = values.pop()
        # What a preset brings with it belongs to its name: it does not make the other rows' names longer.
        own = [result for result in results if not result.preset]
        self._variant = _differing([own])
        presets: dict[str, list[RunResult]] = {}
        for result in results:
            presets.setdefault(result.preset, []).append(result)
        presets.pop("", None)
        self._preset_variant = _differing([*presets.values()])

    def workload(self, result: RunResult) -> str:
        """What was run on what: results of different workloads are not to be compared."""
        parts = [FIELDS[name](result) for name in _WORKLOAD if name in self.varying]
        return " · ".join(parts) or result.trace

    def series(self, result: RunResult) -> str:
        """A result's name but for its budget and workload."""
        names = self._preset_variant if result.preset else self._variant
        return " · ".join([policy_text(result), *(self._variant_text(name, result) for name in names)])

    def run(self, result: RunResult) -> str:
        """A result's name but for its workload."""
        return f"{self.series(result)} · {budget_text(result.budget_bytes)}"

    def _variant_text(self, name: str, result: RunResult) -> str:
        text = FIELDS[name](result)
        return f"{name} {text}" if name in {"match unit", "block"} else text


def _differing(groups: Sequence[Sequence[RunResult]]) -> list[str]:
    """Fields of a variant in which results of one group differ."""
    return [name for name in _VARIANT if any(len({FIELDS[name](r) for r in group}) > 1 for group in groups)]


def baselines(results: Sequence[RunResult], present: RunResult | None = None) -> list[RunResult]:
    """For each result what its gain is counted over.

    That is `present`, or else the workload's first result: at the result's own budget where it was run at
    that budget too, so that a gain is not the budget's.
    """
    firsts: dict[tuple[str, str], RunResult] = {}
    at_budget: dict[tuple[object, ...], RunResult] = {}
    for result in results:
        firsts.setdefault((result.trace, result.model), result)
        at_budget.setdefault((_setting(result), result.budget_bytes), result)
    chosen = []
    for result in results:
        base = firsts[result.trace, result.model]
        if present is not None and (present.trace, present.model) == (result.trace, result.model):
            base = present
        chosen.append(at_budget.get((_setting(base), result.budget_bytes), base))
    return chosen


def _setting(result: RunResult) -> tuple[object, ...]:
    fields = ("trace", "model", "policy", "eviction", "layout", "preset", "match_unit", "block_size")
    return tuple(getattr(result, name) for name in fields)

"""Which of the simulated settings to run with a given budget, what it gains, and how to ask for it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

import msgspec

from milepost.config import LAYOUTS
from milepost.errors import ConfigError
from milepost.prefix.eviction import parse_eviction
from milepost.prefix.policies import parse_policy
from milepost.sim.peer_flags import PeerFlags, peer_flags
from milepost.sim.reports.labels import Names, budget_text, count_text, policy_text, seconds_text
from milepost.sim.runs import RunResult

__all__ = ["Gain", "Recommendation", "recommend"]

Measure = Literal["hit_rate", "goodput"]

_CLOSE_POINTS = 0.5
_CLOSE_SHARE = 0.01
# Less than these is not said: it would read as 1.00 times, or as 0 ms.
_SEEN = 1.005
_LEAST_SECONDS = 0.0005


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What the best setting gains over another one; above 0 is better, but for the times.

    Attributes:
        over: the other one's name.
        points: of hit rate.
        tokens_saved: input tokens that it computes fewer.
        computed_ratio: tokens that the other one computes, over those that it does; None if it computes none.
        ttft_p50_change: seconds, below 0 if it is faster; None without a model of time.
        ttft_p90_change: the same.
        goodput_ratio: its requests a second within the limits over the other one's; None without both.
    """

    over: str
    points: float
    tokens_saved: int
    computed_ratio: float | None
    ttft_p50_change: float | None
    ttft_p90_change: float | None
    goodput_ratio: float | None


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        best: the result of the setting that is recommended.
        name: what it is called among its rivals.
        measure: by which it is the best, "hit_rate" or "goodput".
        budget_bytes: the budget; None for no limit.
        rivals: how many settings it was chosen from, itself included.
        gain: over the present setting; None if none was given.
        lead: over the runner-up; None if there was none.
        close: whether the lead is so small that either would do.
        flags: arguments of `milepost serve`.
        peers: nearest flags of other engines.
        notes: sentences that a reader must know.
    """

    best: RunResult
    name: str
    measure: Measure
    budget_bytes: int | None
    rivals: int
    gain: Gain | None
    lead: Gain | None
    close: bool
    flags: tuple[str, ...]
    peers: tuple[PeerFlags, ...]
    notes: tuple[str, ...]

    def text(self) -> str:
        """For a terminal: paragraphs of short lines."""
        best = self.best
        lines = [
            f"For {budget_text(self.budget_bytes)}: {self.name}",
            f"  hit rate {best.hit_rate:.2%} of {count_text(best.input_tokens)} input tokens{_times(best)}",
            f"  {_chosen_from(self.rivals)} by {self.measure.replace('_', ' ')}",
        ]
        if self.gain is not None and self.gain.over == self.name and not self.gain.tokens_saved:
            lines.append("  which is the present setting")
        elif self.gain is not None:
            how = _worth(self.gain, self.measure)
            lines.append(f"  over {self.gain.over} (present): {_gain_text(self.gain)}{how}")
        if self.lead is not None:
            how = ": too close to call, either will do" if self.close else ""
            lines.append(f"  over {self.lead.over} (runner-up): {_gain_text(self.lead)}{how}")
        lines += ["", "Milepost:", f"  milepost serve {' '.join(self.flags)}"]
        for peer in self.peers:
            lines += ["", f"Nearest in {peer.engine}:", f"  {' '.join(peer.flags)}"]
            lines += [f"  - {limit}" for limit in peer.limits]
        if self.notes:
            lines += ["", *(f"Note: {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"


def recommend(
    results: Sequence[RunResult],
    present: RunResult | None,
    budget_bytes: int | None,
    *,
    measure: Measure = "hit_rate",
) -> Recommendation:
    """The best of `results` for a budget.

    Args:
        results: of one trace and model. Those at other budgets, presets, and what only the simulator can run
            (the clairvoyant bound, the layout ``lcm``) are no candidates.
        present: what runs today, a preset perhaps, to be compared with; None if that is not known.
        budget_bytes: of the arena; None for no limit.
        measure: "hit_rate", or "goodput": requests a second within the limits of the runs; equals are told
            apart by hit rate, then by fewer snapshots.

    Raises:
        ConfigError: nothing can be chosen; the message says why.
    """
    candidates = _candidates(results, budget_bytes)
    _check(candidates, present, measure)
    ranked = sorted(candidates, key=lambda result: _rank(result, measure), reverse=True)
    best, *others = ranked
    names = Names([*candidates, *([present] if present else [])])
    lead = _gain(best, others[0], names.series(others[0])) if others else None
    return Recommendation(
        best=best,
        name=names.series(best),
        measure=measure,
        budget_bytes=budget_bytes,
        rivals=len(ranked),
        gain=None if present is None else _gain(best, present, names.series(present)),
        lead=lead,
        close=lead is not None and _is_close(lead, measure),
        flags=_flags(best),
        peers=peer_flags(best),
        notes=(*_about_goodput(ranked, measure), *_notes(best, present, budget_bytes, len(ranked))),
    )


# -- choosing ---------------------------------------------------------------------------------------


def _candidates(results: Sequence[RunResult], budget_bytes: int | None) -> list[RunResult]:
    """Results that can be recommended.

    Raises:
        ConfigError: there are none; the message counts the reasons.
    """
    refused: dict[str, int] = {}
    candidates = []
    for result in results:
        reason = _reason_against(result, budget_bytes)
        if reason:
            refused[reason] = refused.get(reason, 0) + 1
        else:
            candidates.append(result)
    if not candidates:
        reasons = "; ".join(f"{count} {reason}" for reason, count in refused.items()) or "no results at all"
        raise ConfigError(
            f"Nothing can be recommended for a budget of {budget_text(budget_bytes)}. "
            f"Of {len(results)} results: {reasons}. Simulate Milepost's own policies at this budget."
        )
    return candidates


def _reason_against(result: RunResult, budget_bytes: int | None) -> str:
    if result.budget_bytes != budget_bytes:
        return "at another budget"
    if result.preset:
        return "of a preset, a model of another engine"
    if not result.requests:
        return "without a served request"
    if result.layout not in LAYOUTS:
        return f"with a layout that only the simulator knows (the engine runs {' and '.join(LAYOUTS)})"
    try:
        parse_policy(result.policy, state_bytes=1, budget_bytes=1)
        parse_eviction(result.eviction)
    except ConfigError:
        return "with a policy that only the simulator knows"
    return ""


def _check(candidates: Sequence[RunResult], present: RunResult | None, measure: Measure) -> None:
    """Whether figures can be compared.

    Raises:
        ConfigError: they can't; the message says why.
    """
    compared = [*candidates, *([present] if present else [])]
    workloads = sorted({(result.trace, result.model) for result in compared})
    if len(workloads) > 1:
        listed = ", ".join(f"{trace} with {model}" for trace, model in workloads)
        raise ConfigError(
            f"Only results of one trace and model can be compared. Given: {listed}. Recommend for each alone."
        )
    if len({(r.hardware, r.queueing, r.requests + r.refused) for r in candidates}) > 1:
        raise ConfigError(
            "Only results of the same hardware, queueing and requests can be compared. Given: several. "
            "Recommend for each alone."
        )
    if measure == "goodput" and any(result.goodput is None for result in candidates):
        raise ConfigError(
            "Goodput needs times, and some results have none. Give a hardware, or choose by hit rate."
        )


def _rank(result: RunResult, measure: Measure) -> tuple[float, ...]:
    served = result.requests / (result.requests + result.refused)
    first = result.goodput or 0.0 if measure == "goodput" else result.hit_rate
    # A setting that turns requests away is no better for what it hits with the others.
    return served, first, result.hit_rate, -result.snapshots_per_request


def _gain(best: RunResult, other: RunResult, name: str) -> Gain:
    computed, others = (result.input_tokens - result.hit_tokens for result in (best, other))
    times = None if best.ttft is None or other.ttft is None else (best.ttft, other.ttft)
    return Gain(
        over=name,
        points=100 * (best.hit_rate - other.hit_rate),
        tokens_saved=others - computed,
        computed_ratio=others / computed if computed else None,
        ttft_p50_change=times[0].p50 - times[1].p50 if times else None,
        ttft_p90_change=times[0].p90 - times[1].p90 if times else None,
        goodput_ratio=best.goodput / other.goodput if best.goodput is not None and other.goodput else None,
    )


def _is_close(lead: Gain, measure: Measure) -> bool:
    if measure == "goodput":
        return lead.goodput_ratio is not None and lead.goodput_ratio < 1 + _CLOSE_SHARE
    return lead.points < _CLOSE_POINTS


def _worth(gain: Gain, measure: Measure) -> str:
    """What a reader is to make of a gain over the present setting that is none."""
    if not _is_close(gain, measure):
        return ""
    if measure == "hit_rate" and gain.points <= -_CLOSE_POINTS:
        return ": the present setting is better, keep it"
    return ": too close to call, no reason to change"


# -- saying -----------------------------------------------------------------------------------------


def _flags(result: RunResult) -> tuple[str, ...]:
    """Arguments of `milepost serve`, each as a shell takes it."""
    flags = [
        f"--snapshot-policy {shlex.quote(result.policy)}",
        f"--eviction {shlex.quote(result.eviction)}",
        f"--layout {result.layout}",
    ]
    if result.match_unit > result.trace_block:
        flags.append(f"--match-unit {result.match_unit}")
    if result.block_size != result.trace_block:
        flags.append(f"--block-size {result.block_size}")
    if result.budget_bytes is not None:
        flags.append(f"--memory {result.budget_bytes}")
    return tuple(flags)


def _notes(
    best: RunResult, present: RunResult | None, budget_bytes: int | None, rivals: int
) -> tuple[str, ...]:
    notes = []
    if present is not None and present.budget_bytes != budget_bytes:
        notes.append(
            f"The present setting was run at {budget_text(present.budget_bytes)}: "
            "a part of the gain is the budget's."
        )
    if present is not None and present.preset:
        notes.append(f"The present setting is a model of another engine, {policy_text(present)}.")
    if rivals == 1:
        notes.append("There was one setting to choose from: give more to --policy or --eviction.")
    if best.trace_block > 1 and best.match_unit <= best.trace_block:
        notes.append(
            f"The trace knows tokens by {best.trace_block:,}: the match unit is left at its default, which "
            "is finer and can only hit more."
        )
    if best.refused:
        notes.append(f"{best.refused:,} requests could never fit in this budget and were refused.")
    return (*notes, *best.notes)


def _about_goodput(ranked: Sequence[RunResult], measure: Measure) -> list[str]:
    """Whether goodput told nothing apart."""
    if measure != "goodput" or any(result.goodput for result in ranked):
        return []
    return [
        (
            "No request met the limits under any setting, so goodput chose nothing, and hit rate did: give "
            "less load (--time-scale), other --hardware or wider limits."
        )
    ]


def _chosen_from(rivals: int) -> str:
    return "the only setting of Milepost" if rivals == 1 else f"the best of {rivals} settings of Milepost"


def _times(result: RunResult) -> str:
    if result.ttft is None:
        return ""
    return f", TTFT p50 {seconds_text(result.ttft.p50)}, p90 {seconds_text(result.ttft.p90)}"


def _gain_text(gain: Gain) -> str:
    words = [f"{gain.points:+.2f} points"]
    if gain.tokens_saved:
        how = "saved" if gain.tokens_saved > 0 else "lost"
        words.append(f"{count_text(abs(gain.tokens_saved))} tokens {how}")
    if gain.computed_ratio is not None and gain.computed_ratio >= _SEEN:
        words.append(f"{gain.computed_ratio:.2f} times fewer computed")
    if gain.ttft_p90_change is not None and abs(gain.ttft_p90_change) >= _LEAST_SECONDS:
        faster = "faster" if gain.ttft_p90_change <= 0 else "slower"
        words.append(f"TTFT p90 {seconds_text(abs(gain.ttft_p90_change))} {faster}")
    if gain.goodput_ratio is not None and abs(gain.goodput_ratio - 1) >= _SEEN - 1:
        words.append(f"goodput x{gain.goodput_ratio:.2f}")
    return ", ".join(words)

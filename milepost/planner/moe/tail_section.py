"""The three tails by tokens, what each moves and computes, and which is the quickest where."""

from __future__ import annotations

from milepost.planner.moe.plan import MoePlan
from milepost.planner.moe.published import tail_check
from milepost.planner.moe.tails import TAILS, TailTimes
from milepost.planner.moe.wording import columns, size
from milepost.planner.report import Plot, Section, Series, Table

__all__ = ["tail_section"]

USUAL_RANKS = 8
_WORK_ROWS = 4


def tail_section(plan: MoePlan) -> Section:
    """For the plan's tensor parallel degree, or 8 where nothing is divided."""
    group = plan.tensor_parallel if plan.tensor_parallel > 1 else USUAL_RANKS
    chosen = [tail for tail in plan.tails if tail.ranks == group]
    tables = [_times(chosen, group), _work(chosen, group), _winners(plan)]
    check = tail_check(plan)
    return Section(
        title="Tails under tensor parallelism",
        lead="; ".join(f"{name}: {what}" for name, what in TAILS.items()) + ".",
        tables=tuple(tables) if check is None else (*tables, check),
        plots=(_plot(chosen, group),) if chosen else (),
    )


def _times(chosen: list[TailTimes], group: int) -> Table:
    rows = tuple(
        (
            f"{tail.tokens:,}",
            *(f"{one.seconds * 1e6:,.2f}" for one in tail.tails),
            tail.best,
            tail.best_without_multicast,
        )
        for tail in chosen
    )
    words = ("quickest", "without multicast")
    return Table(
        title=f"Microseconds at TP{group}",
        columns=columns("tokens", *TAILS, *words, words=words),
        rows=rows,
        note="vLLM's scattered form runs on SM100 alone, at TP 8 or 16 and up to 128 tokens: it needs stores "
        "that reach all ranks at once.",
    )


def _work(chosen: list[TailTimes], group: int) -> Table:
    rows = tuple(
        (
            f"{tail.tokens:,}",
            one.name,
            size(one.network_bytes),
            f"{one.flops / 1e9:,.3g}",
            size(one.memory_bytes),
        )
        for tail in chosen[:: max(1, len(chosen) // _WORK_ROWS)]
        for one in tail.tails
    )
    return Table(
        title=f"Work of a rank at TP{group}",
        columns=columns("tokens", "tail", "received", "GFLOP", "memory", words=("tail",)),
        rows=rows,
    )


def _winners(plan: MoePlan) -> Table:
    rows = tuple(
        (
            f"{one.ranks}",
            "yes" if one.multicast else "no",
            f"{one.first_tokens:,} to {one.last_tokens:,}",
            one.best,
        )
        for one in plan.tail_ranges
    )
    return Table(
        title="When each is the quickest",
        columns=columns("TP", "multicast", "tokens", "tail", words=("multicast", "tail")),
        rows=rows,
    )


def _plot(chosen: list[TailTimes], group: int) -> Plot:
    return Plot(
        title=f"The three tails at TP{group}",
        x_name="tokens of a step",
        y_name="microseconds",
        log_x=True,
        log_y=True,
        series=tuple(
            Series(
                name=name,
                x=tuple(float(tail.tokens) for tail in chosen),
                y=tuple(next(one.seconds for one in tail.tails if one.name == name) * 1e6 for tail in chosen),
            )
            for name in TAILS
        ),
    )

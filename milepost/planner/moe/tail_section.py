"""The three tails by tokens, what each moves and computes, and which is the quickest where."""

from __future__ import annotations

from milepost.planner.figures import bytes_text
from milepost.planner.moe.plan import MoePlan
from milepost.planner.moe.published import tail_check
from milepost.planner.moe.tails import TAILS, TailTimes
from milepost.planner.report import Plot, Section, Series, Table, columns

__all__ = ["tail_section"]

USUAL_RANKS = 8
_WORK_ROWS = 4


def tail_section(plan: MoePlan) -> Section:
    """For the plan's tensor parallel degree, or 8 where nothing is divided."""
    group = plan.tensor_parallel if plan.tensor_parallel > 1 else USUAL_RANKS
    chosen = [tail for tail in plan.tails if tail.ranks == group]
    tables = [_times(chosen, group, plan), _work(chosen, group), _by_ranks(plan), _winners(plan)]
    check = tail_check(plan)
    return Section(
        title="Tails under tensor parallelism",
        lead="; ".join(f"{name}: {what}" for name, what in TAILS.items()) + ".",
        tables=tuple(tables) if check is None else (*tables, check),
        plots=(_plot(chosen, group),) if chosen else (),
    )


def _times(chosen: list[TailTimes], group: int, plan: MoePlan) -> Table:
    rows = tuple(
        (f"{tail.tokens:,}", *(f"{one.seconds * 1e6:,.2f}" for one in tail.tails), _winner(tail, plan))
        for tail in chosen
    )
    able = "can" if plan.multicast else "is not known to"
    return Table(
        title=f"Microseconds at TP{group}",
        columns=columns("tokens", *TAILS, "quickest", words=("quickest",)),
        rows=rows,
        note=f"scattered needs stores that reach all ranks at once, which {plan.hardware} {able} do; see "
        "--multicast. vLLM has it for SM100, TP 8 or 16, up to 128 tokens.",
    )


def _winner(tail: TailTimes, plan: MoePlan) -> str:
    return tail.winner(multicast=plan.multicast)


def _by_ranks(plan: MoePlan) -> Table:
    ranks = list(dict.fromkeys(tail.ranks for tail in plan.tails))
    known = {(tail.tokens, tail.ranks): tail for tail in plan.tails}
    rows = []
    for tokens in dict.fromkeys(tail.tokens for tail in plan.tails):
        cells = []
        for count in ranks:
            name = _winner(known[tokens, count], plan)
            seconds = next(one.seconds for one in known[tokens, count].tails if one.name == name)
            cells.append(f"{seconds * 1e6:,.2f} {name}")
        rows.append((f"{tokens:,}", *cells))
    return Table(
        title="The quickest, in microseconds, by tokens and ranks",
        columns=columns("tokens", *(f"TP{count}" for count in ranks)),
        rows=tuple(rows),
    )


def _work(chosen: list[TailTimes], group: int) -> Table:
    rows = tuple(
        (
            f"{tail.tokens:,}",
            one.name,
            bytes_text(one.network_bytes),
            f"{one.flops / 1e9:,.3g}",
            bytes_text(one.memory_bytes),
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

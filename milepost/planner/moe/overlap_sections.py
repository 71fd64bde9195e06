"""How communication and computing overlap, and the waves in which experts run."""

from __future__ import annotations

from milepost.planner.moe.degree import PHASES
from milepost.planner.moe.plan import MoePlan
from milepost.planner.moe.published import PUBLISHED_GAINS
from milepost.planner.moe.wording import PHASE_NAMES
from milepost.planner.report import Section, Table, columns

__all__ = ["overlap_section", "waves_section"]


def overlap_section(plan: MoePlan) -> Section:
    """Communication over computing of every degree, and what either kind of overlap gains."""
    rows = []
    for degree in plan.degrees:
        for phase in PHASES:
            layer = degree.at(phase)
            rows.append(
                (
                    str(degree.ranks),
                    PHASE_NAMES[phase],
                    layer.experts_bound,
                    f"{layer.exchange_ratio:.2f}",
                    "yes" if layer.exchange_ratio <= 1 else "no",
                    f"{layer.serial_seconds / layer.halves_seconds:.2f}x",
                    f"{layer.serial_seconds / layer.waved_seconds:.2f}x",
                    f"{2 * layer.waves.waves / (layer.waves.waves + 1):.2f}x",
                )
            )
    names = ("EP", "step", "experts bound by", "r", "hidden", "halves", "waves", "waves at r = 1")
    table = Table(
        columns=columns(*names, words=("step", "experts bound by", "hidden")),
        rows=tuple(rows),
        note="r: exchange over experts; in order takes 1 + r, waves max(1, r) + min(1, r) / waves. "
        f"halves: Comet's overlap, dispatch with one product and combine with the other. {PUBLISHED_GAINS}",
    )
    return Section(title="Overlap", lead="Gains over one after the other.", tables=(table,))


def waves_section(plan: MoePlan) -> Section:
    """Experts of a wave by degree and tokens."""
    tokens = list(dict.fromkeys(point.rank_tokens for point in plan.waves))
    shapes = {(point.ranks, point.rank_tokens): point.shape for point in plan.waves}
    rows = tuple(
        (
            str(degree.ranks),
            str(degree.experts_per_rank),
            *(
                f"{shapes[degree.ranks, count].experts_per_wave} ({shapes[degree.ranks, count].waves})"
                for count in tokens
            ),
        )
        for degree in plan.degrees
    )
    table = Table(
        columns=columns("EP", "experts a rank", *(f"{count:,}" for count in tokens)),
        rows=rows,
        note="Experts of a wave, and waves of a layer, by tokens of a rank.",
    )
    return Section(title="Waves", tables=(table,))

"""What ``milepost bench`` shows: speeds beside their limits, and each step's parts as tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

from milepost.byte_counts import format_bytes
from milepost.llm.bench import Speed
from milepost.llm.step_profile import PartProfile, StepProfile
from milepost.planner.report import Drawing, Report, Section, Table, columns

__all__ = ["BenchResult", "bench_report"]

_BAR_CHARACTERS = 48
_BAR_PIXELS, _ROW_PIXELS, _LABEL_PIXELS = 460, 22, 230


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run of ``milepost bench`` found.

    Attributes:
        model: the folder's name.
        machine: processor and threads.
        kernels: backend and target, such as "cpu (avx512)".
        weights: how weight matrices are stored.
        weight_bytes: of all weights.
        read_bytes_per_second: of memory, measured.
        flops_per_second: float32 multiply-adds, measured.
        speeds: of each workload.
        profiles: of each of their steps; empty unless asked for.
        notes: what a reader must know.
    """

    model: str
    machine: str
    kernels: str
    weights: str
    weight_bytes: int
    read_bytes_per_second: float
    flops_per_second: float
    speeds: tuple[Speed, ...]
    profiles: tuple[StepProfile, ...] = ()
    notes: tuple[str, ...] = ()


def bench_report(found: BenchResult) -> Report:
    """The tables and pictures of a run."""
    headline = (
        ("kernels", found.kernels),
        ("weights", f"{found.weights}, {format_bytes(found.weight_bytes)}"),
        ("memory is read at", f"{found.read_bytes_per_second / 1e9:.1f} GB/s"),
        ("float32 multiply-adds at", f"{found.flops_per_second / 1e9:.0f} GFLOP/s"),
    )
    return Report(
        title=f"{found.model} on {found.machine}",
        headline=headline,
        sections=(_speeds(found.speeds), *map(_profile, found.profiles)),
        notes=found.notes,
        derivations=(),
        brand="bench",
    )


def _speeds(speeds: Sequence[Speed]) -> Section:
    rows = tuple(
        (
            speed.what,
            f"{speed.seconds * 1e3:.2f}",
            f"{speed.tokens_per_second:,.0f}",
            f"{speed.limit_seconds * 1e3:.2f}",
            f"{speed.limit_seconds / speed.seconds:.0%}",
        )
        for speed in speeds
    )
    heads = columns("workload", "ms", "tokens/s", "limit ms", "of the limit", words={"workload"})
    return Section(title="Speed", tables=(Table(columns=heads, rows=rows),))


def _profile(profile: StepProfile) -> Section:
    heads = columns(
        *("part", "calls", "ms", "share", "limit ms", "of the limit", "bound by", "GB/s", "GFLOP/s"),
        *("kernels, ms",),
        words={"part", "bound by", "kernels, ms"},
    )
    table = Table(columns=heads, rows=tuple(_part_row(part, profile) for part in profile.parts))
    total = f"{profile.seconds * 1e3:.2f} ms, limit {profile.limit_seconds * 1e3:.2f} ms"
    return Section(
        title=f"{profile.what}: {total}",
        tables=(table,),
        drawings=(_drawing(profile),),
    )


def _part_row(part: PartProfile, profile: StepProfile) -> tuple[str, ...]:
    share = f"{part.seconds / profile.seconds:.0%}"
    measured = (part.name, f"{part.calls:,}" if part.calls else "-", f"{part.seconds * 1e3:.3f}", share)
    kernels = ", ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in part.kernels[:3])
    if not part.bound or not part.seconds:
        return (*measured, "-", "-", "-", "-", "-", kernels)
    return (
        *measured,
        f"{part.limit_seconds * 1e3:.3f}",
        f"{part.limit_seconds / part.seconds:.0%}",
        part.bound,
        f"{part.bytes / part.seconds / 1e9:.1f}",
        f"{part.flops / part.seconds / 1e9:.1f}",
        kernels,
    )


def _drawing(profile: StepProfile) -> Drawing:
    """A bar a part: dark up to its limit, light for what it takes beyond."""
    longest = max(max(part.seconds, part.limit_seconds) for part in profile.parts) or 1.0
    width = max(len(part.name) for part in profile.parts)
    lines = [
        f"{part.name:<{width}}  {_text_bar(part, longest):<{_BAR_CHARACTERS}}  {part.seconds * 1e3:.3f} ms"
        for part in profile.parts
    ]
    title = "Each part's time: the part that its limit explains (█), and what is lost to it (░)"
    return Drawing(title=title, text="\n".join(lines), svg=_svg(profile.parts, longest))


def _text_bar(part: PartProfile, longest: float) -> str:
    whole = round(part.seconds / longest * _BAR_CHARACTERS)
    needed = min(whole, round(part.limit_seconds / longest * _BAR_CHARACTERS))
    return "█" * needed + "░" * (whole - needed)


def _svg(parts: Sequence[PartProfile], longest: float) -> str:
    height, width = _ROW_PIXELS * len(parts), _LABEL_PIXELS + _BAR_PIXELS + 90
    rows = "".join(_svg_row(place, part, longest) for place, part in enumerate(parts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">{rows}</svg>'
    )


def _svg_row(place: int, part: PartProfile, longest: float) -> str:
    top = place * _ROW_PIXELS
    whole = part.seconds / longest * _BAR_PIXELS
    needed = min(whole, part.limit_seconds / longest * _BAR_PIXELS)
    baseline = top + 15
    return (
        f'<text x="{_LABEL_PIXELS - 8}" y="{baseline}" text-anchor="end" fill="currentColor">'
        f"{escape(part.name)}</text>"
        f'<rect x="{_LABEL_PIXELS}" y="{top + 4}" width="{whole:.1f}" height="14" fill="#b8c4d6"/>'
        f'<rect x="{_LABEL_PIXELS}" y="{top + 4}" width="{needed:.1f}" height="14" fill="#2f5d9b"/>'
        f'<text x="{_LABEL_PIXELS + whole + 6:.1f}" y="{baseline}" fill="currentColor">'
        f"{part.seconds * 1e3:.3f} ms</text>"
    )

"""A plan and its report with one of everything, as plain and as hostile as names can be."""

from __future__ import annotations

import msgspec

from milepost.planner.report import Column, Drawing, Plot, Report, Section, Series, Table
from milepost.planner.worksheet import Derivation, Worksheet

__all__ = ["EVIL", "StatesPlan", "make_plan", "make_report", "sheet"]

EVIL = "<script>document.title='bad'</script>"
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 40" width="200" height="40">'
    '<rect x="2" y="2" width="80" height="30" fill="none" stroke="var(--accent)"/>'
    '<text x="10" y="22" fill="currentColor">a page</text></svg>'
)


class StatesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a planner would answer."""

    states_that_fit: int
    free_bytes: int
    step_seconds: float
    derivations: tuple[Derivation, ...]
    notes: tuple[str, ...]


def sheet(name: str = "") -> Worksheet:
    """Seven numbers, one of which is used twice."""
    sheet = Worksheet()
    sheet.given("state_bytes", 449_372_160, "bytes", "kimi-k3's config.json")
    sheet.given("free_bytes", 200 * 10**9, "bytes", name or "--memory")
    sheet.given("decode.step_seconds", 0.0123456789, "seconds", "the roofline", "of one step")
    sheet.derive("states_that_fit", "free_bytes // state_bytes", "states", meaning="in what is left")
    sheet.derive("used_bytes", "states_that_fit * state_bytes", "bytes")
    sheet.derive("left_bytes", "free_bytes - used_bytes", "bytes", source="arithmetic")
    sheet.derive("decode.tokens", "1 / decode.step_seconds if states_that_fit >= 1 else 0", "tokens/s")
    return sheet


def make_plan(name: str = "", **changes: object) -> StatesPlan:
    """The plan; `name` is a source and a note."""
    found = sheet(name)
    plan = StatesPlan(
        states_that_fit=int(found["states_that_fit"]),
        free_bytes=int(found["free_bytes"]),
        step_seconds=float(found["decode.step_seconds"]),
        derivations=found.derivations,
        notes=(f"Assumed: {name or 'nothing else in memory'}.", "Draft heads are not counted."),
    )
    return msgspec.structs.replace(plan, **changes)


def make_report(name: str = "Kimi K3", *, plots: bool = True) -> Report:
    """The report; `name` is in every text."""
    plan = make_plan(name)
    table = Table(
        title=f"Layouts of {name}",
        columns=(Column("layout", numeric=False), Column("states"), Column(f"bytes {name}")),
        rows=(("paged", "1,445", "200 GB"), (name, "2", "3 kB"), ("aligned", "310", "1.5 GB")),
        note=f"Of one rank of {name}.",
        best=1,
    )
    empty = Table(columns=(Column("nothing"),), rows=())
    return Report(
        title=f"Memory of {name}",
        headline=(("states that fit", "445"), (name, f"{name} value"), ("a page", "1.77 MB")),
        sections=(
            Section(
                title=f"What fits of {name}",
                lead="A lead. " * 20,
                tables=(table, empty),
                drawings=(Drawing(title=f"A state of {name} over pages", text="+--+\n|ab|\n+--+", svg=SVG),),
            ),
            Section(title="Over the context", plots=_plots(name) if plots else ()),
        ),
        notes=plan.notes,
        derivations=plan.derivations,
    )


def _plots(name: str) -> tuple[Plot, ...]:
    contexts = (1024.0, 8192.0, 131072.0)
    lines = (
        Series(name="KDA", x=contexts, y=(3.0, 2.0, 1.0)),
        Series(name=name, x=contexts, y=(5.0, float("nan"), 0.5), labels=("a", name, "c")),
    )
    bars = (Series(name="weights", x=("8", name, "x" * 60), y=(1, 2, 3)), Series(name=name, x=("8",), y=(4,)))
    nothing = Series(name="none", x=(1.0,), y=(float("inf"),))
    return (
        Plot(
            title="Batch", x_name="context, tokens", y_name="requests", series=lines, log_x=True, log_y=True
        ),
        Plot(title=f"Bytes {name}", x_name="rank", y_name="bytes", series=bars, kind="bars"),
        Plot(title="Points", x_name="x", y_name=name, series=lines[:1], kind="points"),
        Plot(title="Categories", x_name="x", y_name="y", series=(Series(name="s", x=("a", "b"), y=(1, 2)),)),
        Plot(title="Empty", x_name="x", y_name="y", series=(nothing,)),
    )

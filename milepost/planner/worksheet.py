"""Numbers that can be asked where they come from: each is given with a source or derived by a formula.

A worksheet computes a derived number **from the text of its formula**, so what a reader is shown is what was
computed. Where a plan's number comes out of other code (a layout, the roofline), `Worksheet.check` holds the
formula's value against it.

    sheet = Worksheet()
    sheet.given("state_bytes", 449_372_160, "bytes", "kimi-k3's config.json")
    sheet.given("free_bytes", 200 * 10**9, "bytes", "--memory")
    sheet.derive("states_that_fit", "free_bytes // state_bytes", "states")
    print(explain(sheet.derivations, "states_that_fit"))
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import SupportsIndex

import msgspec

from milepost.error_text import nearest
from milepost.errors import ConfigError, InvariantError
from milepost.planner.formulas import Number, evaluate, names_in

__all__ = ["Derivation", "Worksheet", "explain", "listed", "number_text", "value_text"]

_TOLERANCE = 1e-9
_UNITS = ("_seconds", "_bytes", "_tokens", "_ratio", "_share")


class Derivation(msgspec.Struct, frozen=True, kw_only=True):
    """One number and where it comes from.

    Attributes:
        name: of the number, dotted where it belongs to a part ("decode.experts.seconds").
        value: in `unit`.
        unit: such as "bytes", "tokens", "seconds", "tokens/s", "" for a count or a ratio.
        formula: over the names of other numbers; "" for one that is given.
        inputs: the names in the formula.
        source: of a given number: a file, an option, a data sheet; of a formula: where it is published.
        meaning: in words; "" where the name says it.
    """

    name: str
    value: Number
    unit: str
    formula: str = ""
    inputs: tuple[str, ...] = ()
    source: str = ""
    meaning: str = ""


class Worksheet:
    """Builds derivations in order: a formula may name only what stands before it."""

    def __init__(self) -> None:
        self._entries: dict[str, Derivation] = {}

    def __getitem__(self, name: str) -> Number:
        return self._entries[name].value

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    @property
    def derivations(self) -> tuple[Derivation, ...]:
        """All numbers so far, in order."""
        return tuple(self._entries.values())

    def given(self, name: str, value: Number, unit: str, source: str, meaning: str = "") -> Number:
        """Note a number that comes from outside: a config, an option, a data sheet."""
        return self._add(Derivation(name=name, value=value, unit=unit, source=source, meaning=meaning))

    def derive(self, name: str, formula: str, unit: str, *, meaning: str = "", source: str = "") -> Number:
        """Compute a number from a formula.

        Args:
            name: of the number.
            formula: arithmetic of Python over names of this sheet, with ``min max ceil floor sqrt log2 abs``
                and ``a if b else c``; ``ceil(a / b)`` and ``floor(a / b)`` of whole numbers are exact.
            unit: of the number.
            meaning: in words.
            source: where the formula is from.
        """
        inputs = names_in(formula)
        missing = [one for one in inputs if one not in self._entries]
        if missing:
            raise InvariantError(f"The formula of {name} names what is not known: {', '.join(missing)}.")
        value = evaluate(formula, {one: self._entries[one].value for one in inputs})
        return self._add(
            Derivation(
                name=name,
                value=value,
                unit=unit,
                formula=formula,
                inputs=inputs,
                source=source,
                meaning=meaning,
            )
        )

    def check(self, name: str, value: Number) -> None:
        """Hold a number against what other code has computed.

        Raises:
            InvariantError: they differ by more than rounding.
        """
        mine = self._entries[name].value
        if not math.isclose(mine, value, rel_tol=_TOLERANCE, abs_tol=1e-300):
            raise InvariantError(
                f"{name} is {mine!r} by {self._entries[name].formula!r} but {value!r} in the plan."
            )

    def _add(self, entry: Derivation) -> Number:
        if entry.name in self._entries:
            raise InvariantError(f"{entry.name} is derived twice.")
        if not entry.name or any(map(str.isspace, entry.name)):
            raise InvariantError(f"A number's name must be one word. Given: {entry.name!r}.")
        entry = msgspec.structs.replace(entry, value=_plain(entry))
        self._entries[entry.name] = entry
        return entry.value


def _plain(entry: Derivation) -> Number:
    """A number that JSON can hold, of numpy's too; whether a comparison holds is 1 or 0."""
    value: object = entry.value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    raise InvariantError(f"{entry.name} must be a number. Given: {value!r:.100}.")


def explain(derivations: Sequence[Derivation], name: str) -> str:
    """A number with its formula and, below it as a tree, every number that it is made of.

    Each line has a name, its value with the unit, and its formula or, of a given number, its source.

    Raises:
        ConfigError: no such number; the message has the nearest name.
    """
    known = {entry.name: entry for entry in derivations}
    name = _without_unit(name, known)
    if name not in known:
        raise ConfigError(
            f"--explain takes the name of a number of this plan. Given: {name!r:.100}.{nearest(name, known)} "
            "Use --explain list for all names."
        )
    return "\n".join(_tree(known, name))


def _without_unit(name: str, known: Mapping[str, Derivation]) -> str:
    """A plan's field, whose name ends in its unit, as the number's name: "ttft_seconds" is "ttft"."""
    for unit in _UNITS:
        if name not in known and name.removesuffix(unit) in known:
            return name.removesuffix(unit)
    return name


def _tree(known: Mapping[str, Derivation], name: str) -> Iterator[str]:
    """Lines of the tree, each number's inputs once; columns are those of the inputs of one number.

    Columns of the whole tree would stand too far to the right to be read.
    """
    told: set[str] = set()
    # Inputs of one number: its branch, the names that are still to be told, and their columns.
    waiting = [("", [name], _widths([known[name]]))]
    while waiting:
        branch, names, widths = waiting[-1]
        if not names:
            waiting.pop()
            continue
        entry = known[names.pop(0)]
        again = entry.name in told and bool(entry.inputs)
        told.add(entry.name)
        root = len(waiting) == 1
        turn = "" if root else "├─ " if names else "└─ "
        yield branch + turn + _line(entry.name, entry, "(above)" if again else _about(entry), widths)
        if entry.inputs and not again:
            below = branch if root else branch + ("│  " if names else "   ")
            waiting.append((below, [*entry.inputs], _widths([known[one] for one in entry.inputs])))


def _about(entry: Derivation) -> str:
    """A formula with what it means and where it is published; of a given number its source."""
    more = [entry.meaning, entry.source] if entry.formula else [entry.meaning]
    told = "; ".join(part for part in more if part)
    start = f"= {entry.formula}" if entry.formula else f"from {entry.source}"
    return f"{start}  ({told})" if told else start


def listed(derivations: Sequence[Derivation]) -> str:
    """Every number, a line each: its name, its value with the unit, what it means."""
    widths = _widths(derivations)
    return "\n".join(_line(entry.name, entry, entry.meaning, widths) for entry in derivations)


def _widths(entries: Sequence[Derivation]) -> tuple[int, int, int]:
    """Of the columns of names, values and units."""
    return (
        max((len(entry.name) for entry in entries), default=0),
        max((len(number_text(entry.value)) for entry in entries), default=0),
        max((len(entry.unit) for entry in entries), default=0),
    )


def _line(name: str, entry: Derivation, about: str, widths: tuple[int, int, int]) -> str:
    names, values, units = widths
    line = f"{name:<{names}}  {number_text(entry.value):>{values}} {entry.unit:<{units}}  {about}"
    return line.rstrip()


def value_text(entry: Derivation) -> str:
    """A number with its unit for a reader."""
    return f"{number_text(entry.value)} {entry.unit}".rstrip()


def number_text(value: Number) -> str:
    """A number for a reader: whole ones with all digits, others with six figures."""
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size < 1e15 and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.6g}" if size < 1e6 else f"{value:,.1f}" if size < 1e15 else f"{value:.6g}"

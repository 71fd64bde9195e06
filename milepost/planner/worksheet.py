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

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from milepost.error_text import nearest
from milepost.errors import ConfigError, InvariantError

__all__ = ["Derivation", "Worksheet", "evaluate", "explain", "listed", "number_text", "value_text"]

Number = int | float

_TOLERANCE = 1e-9


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
        inputs, _ = _parsed(formula)
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
        self._entries[entry.name] = entry
        return entry.value


def explain(derivations: Sequence[Derivation], name: str) -> str:
    """A number with its formula and, below it as a tree, every number that it is made of.

    Each line has a name, its value with the unit, and its formula or, of a given number, its source.

    Raises:
        ConfigError: no such number; the message has the nearest name.
    """
    known = {entry.name: entry for entry in derivations}
    if name not in known:
        raise ConfigError(
            f"--explain takes the name of a number of this plan. Given: {name!r:.100}.{nearest(name, known)} "
            "Use --explain list for all names."
        )
    return _lines(list(_tree(known, name)))


def _tree(known: Mapping[str, Derivation], name: str) -> Iterator[tuple[str, Derivation, str]]:
    """Lines of (name behind its branch, number, what is to be said of it), each number's inputs once."""
    told: set[str] = set()
    waiting = [(name, "", "")]  # a name, the branch before it, the branch before its inputs
    while waiting:
        one, branch, below = waiting.pop()
        entry = known[one]
        again = one in told and bool(entry.inputs)
        yield f"{branch}{one}", entry, "(above)" if again else _about(entry)
        told.add(one)
        if not again:
            last = len(entry.inputs) - 1
            waiting += [
                (other, f"{below}└─ ", f"{below}   ")
                if place == last
                else (other, f"{below}├─ ", f"{below}│  ")
                for place, other in reversed([*enumerate(entry.inputs)])
            ]


def _about(entry: Derivation) -> str:
    """A formula with what it means and where it is published; of a given number its source."""
    more = [entry.meaning, entry.source] if entry.formula else [entry.meaning]
    told = "; ".join(part for part in more if part)
    start = f"= {entry.formula}" if entry.formula else f"from {entry.source}"
    return f"{start}  ({told})" if told else start


def listed(derivations: Sequence[Derivation]) -> str:
    """Every number, a line each: its name, its value with the unit, what it means."""
    rows = [(entry.name, entry, entry.meaning) for entry in derivations]
    return _lines(rows) if rows else ""


def _lines(rows: Sequence[tuple[str, Derivation, str]]) -> str:
    """Columns of names, values, units and the rest."""
    names = max(len(name) for name, _, _ in rows)
    values = max(len(number_text(entry.value)) for _, entry, _ in rows)
    units = max(len(entry.unit) for _, entry, _ in rows)
    return "\n".join(
        f"{name:<{names}}  {number_text(entry.value):>{values}} {entry.unit:<{units}}  {about}".rstrip()
        for name, entry, about in rows
    )


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


# -- formulas -----------------------------------------------------------------------------------------

_BINARY: dict[type[ast.AST], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.AST], Callable[[Number, Number], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}
_CALLS: dict[str, Callable[..., Number]] = {
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "floor": math.floor,
    "sqrt": math.sqrt,
    "log2": math.log2,
    "abs": abs,
}


def evaluate(formula: str, values: Mapping[str, Number]) -> Number:
    """The value of a formula; see `Worksheet.derive` for what it may hold."""
    _, tree = _parsed(formula)
    return _value(tree, values)


@lru_cache(maxsize=4096)
def _parsed(formula: str) -> tuple[tuple[str, ...], ast.expr]:
    tree = ast.parse(formula, mode="eval").body
    names: dict[str, None] = {}
    _collect(tree, names)
    return tuple(names), tree


def _collect(node: ast.AST, names: dict[str, None]) -> None:
    if isinstance(node, ast.Name | ast.Attribute):
        names[_dotted(node)] = None
    elif isinstance(node, ast.Call):
        for argument in node.args:
            _collect(argument, names)
    else:
        for child in ast.iter_child_nodes(node):
            _collect(child, names)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise InvariantError(f"A formula holds {ast.dump(node)}, which is no name.")


def _value(node: ast.expr, values: Mapping[str, Number]) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name() | ast.Attribute():
            return values[_dotted(node)]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.IfExp(test=test, body=body, orelse=other):
            return _value(body if _value(test, values) else other, values)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _CALLS:
            return _call(name, args, values)
    raise InvariantError(f"A formula holds {ast.dump(node)}, which is not arithmetic.")


def _call(name: str, args: Sequence[ast.expr], values: Mapping[str, Number]) -> Number:
    # A quotient of whole numbers is rounded exactly, not by way of a float.
    match name, args:
        case (("ceil" | "floor"), [ast.BinOp(left=left, op=ast.Div(), right=right)]):
            above, below = _value(left, values), _value(right, values)
            if isinstance(above, int) and isinstance(below, int):
                return -(-above // below) if name == "ceil" else above // below
            return _CALLS[name](above / below)
    return _CALLS[name](*(_value(argument, values) for argument in args))

"""Formulas: arithmetic in the text of which a reader sees what was computed, and nothing else.

They are Python's expressions of numbers and dotted names, with ``+ - * / // % **``, one comparison,
``a if b else c``, and the functions of `FUNCTIONS`. Anything else is an error, as is what takes too long.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from milepost.errors import InvariantError

__all__ = ["FUNCTIONS", "Number", "evaluate", "names_in"]

Number = int | float

FUNCTIONS: dict[str, Callable[..., Number]] = {
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "floor": math.floor,
    "sqrt": math.sqrt,
    "log2": math.log2,
    "abs": abs,
}
"""What a formula may call."""
_MOST_BITS = 4096
"""Of a whole power: more would be no size of anything, and could take for ever."""


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _MOST_BITS:
        raise OverflowError(f"{base} ** {exponent} is too large")
    value: Number | complex = base**exponent
    if isinstance(value, complex):
        raise ValueError(f"{base} ** {exponent} is no real number")
    return value


_BINARY: dict[type[ast.AST], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_COMPARE: dict[type[ast.AST], Callable[[Number, Number], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}


def evaluate(formula: str, values: Mapping[str, Number]) -> Number:
    """The value of a formula; ``ceil(a / b)`` and ``floor(a / b)`` of whole numbers are exact.

    Raises:
        InvariantError: it isn't arithmetic, names what has no value, or has no value itself.
    """
    _, tree = _parsed(formula)
    try:
        return _value(tree, values)
    except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
        raise InvariantError(f"The formula {formula!r:.200} has no value: {error}.") from error


def names_in(formula: str) -> tuple[str, ...]:
    """The dotted names in a formula, each once, in the order in which they stand.

    Raises:
        InvariantError: it isn't an expression.
    """
    return _parsed(formula)[0]


@lru_cache(maxsize=4096)
def _parsed(formula: str) -> tuple[tuple[str, ...], ast.expr]:
    try:
        tree = ast.parse(formula.strip(), mode="eval").body
        names: dict[str, None] = {}
        _collect(tree, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvariantError(f"The formula {formula!r:.200} is no expression: {error}.") from error
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
    raise InvariantError(f"A formula holds {_shown(node)}, which is no name.")


def _value(node: ast.expr, values: Mapping[str, Number]) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name() | ast.Attribute():
            return _named(_dotted(node), values)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.IfExp(test=test, body=body, orelse=other):
            return _value(body if _value(test, values) else other, values)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return _call(name, args, values)
    raise InvariantError(f"A formula holds {_shown(node)}, which is not arithmetic.")


def _named(name: str, values: Mapping[str, Number]) -> Number:
    if name not in values:
        raise InvariantError(f"A formula names {name}, which has no value.")
    return values[name]


def _call(name: str, args: Sequence[ast.expr], values: Mapping[str, Number]) -> Number:
    # A quotient of whole numbers is rounded exactly, not by way of a float.
    match name, args:
        case (("ceil" | "floor"), [ast.BinOp(left=left, op=ast.Div(), right=right)]):
            above, below = _value(left, values), _value(right, values)
            if isinstance(above, int) and isinstance(below, int):
                return -(-above // below) if name == "ceil" else above // below
            return FUNCTIONS[name](above / below)
    return FUNCTIONS[name](*(_value(argument, values) for argument in args))


def _shown(node: ast.AST) -> str:
    return repr(ast.unparse(node))[:200]

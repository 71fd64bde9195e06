"""Formulas: Python's arithmetic and nothing else of Python."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from milepost.errors import InvariantError
from milepost.planner.formulas import FUNCTIONS, Number, evaluate, names_in

HUGE = 10**40 + 7


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("1 + 2 * 3", 7),
        ("-a ** 2", -9),
        ("7 // 2 + 7 % 4 + 8 / 4", 8.0),
        ("min(a, 2, 5) + max(1, b.c)", 12),
        ("a if b.c > 9 else 0", 3),
        ("a if b.c < 9 else 0", 0),
        ("1 if a == 3 else 2", 1),
        ("1 if a <= 2 else 2", 2),
        ("1 if a >= 3 else 1 / 0", 1),
        ("sqrt(a * 3) + log2(8) + abs(-1)", 7.0),
        ("b.c * b.c.d", 50),
        ("\n  a\n", 3),
    ],
)
def test_what_a_formula_may_hold(formula: str, value: Number) -> None:
    assert evaluate(formula, {"a": 3, "b.c": 10, "b.c.d": 5}) == value


@pytest.mark.parametrize("name", ["ceil", "floor"])
@given(above=st.integers(-(10**40), 10**40), below=st.integers(-(10**20), 10**20).filter(bool))
def test_a_rounded_quotient_of_whole_numbers_is_exact(name: str, above: int, below: int) -> None:
    exact = getattr(math, name)(Fraction(above, below))
    assert evaluate(f"{name}(a / b)", {"a": above, "b": below}) == exact


def test_a_float_s_quotient_would_be_wrong() -> None:
    """Shows that the test above can fail."""
    assert evaluate("ceil(a / 10)", {"a": HUGE}) == HUGE // 10 + 1
    assert math.ceil(HUGE / 10) != HUGE // 10 + 1


def test_rounding_of_what_is_not_whole() -> None:
    assert evaluate("ceil(a / 2) + floor(b)", {"a": 2.5, "b": 3.9}) == 5
    assert evaluate("ceil(2 * a)", {"a": 1.25}) == 3


@pytest.mark.parametrize(
    "formula",
    [
        "open('x')",
        "__import__('os')",
        "a.__class__()",
        "(a + 1).real",
        "f(1).b",
        "'text'",
        "b'text'",
        "None",
        "True",
        "1j",
        "...",
        "[1, 2]",
        "(1, 2)",
        "{1: 2}",
        "[x for x in a]",
        "sum(x for x in a)",
        "(b := 1)",
        "lambda: 1",
        "a[0]",
        "a[0].b",
        "f'{a}'",
        "a and 1",
        "not a",
        "+a",
        "~a",
        "a << 70",
        "a @ a",
        "1 < a < 3",
        "a is 1",
        "max(1, 2, key=a)",
        "max(1, *a)",
        "min.x(1)",
        "await a",
    ],
)
def test_what_is_not_arithmetic_is_refused(formula: str) -> None:
    with pytest.raises(InvariantError, match="formula"):
        evaluate(formula, {"a": 1, "b": 2, "x": 3})


@pytest.mark.parametrize("formula", ["", "1 +", "a b", "a = 1", "import os", "1\n2", "\0", "(" * 500])
def test_what_is_no_expression_is_refused(formula: str) -> None:
    for read in (names_in, lambda text: evaluate(text, {})):
        with pytest.raises(InvariantError, match="is no expression"):
            read(formula)


@pytest.mark.parametrize(
    "formula",
    [
        "1 / a",
        "1 // a",
        "1 % a",
        "ceil(1 / a)",
        "log2(a)",
        "sqrt(a - 1)",
        "(a - 8) ** 0.5",
        "min()",
        "max(1)",
        "sqrt(1, 2)",
        "floor(1e308 * 10)",
        "2 ** 4000 + 0.5",
        "10 ** 600 / 1",
    ],
)
def test_what_has_no_value_is_refused_with_its_formula(formula: str) -> None:
    with pytest.raises(InvariantError, match="has no value"):
        evaluate(formula, {"a": 0})


@pytest.mark.parametrize("formula", ["9 ** 9 ** 9 ** 9", "a ** a", "(2 ** 4000) ** 4000", "2 ** 2 ** 40"])
def test_huge_powers_are_refused_at_once(formula: str) -> None:
    started = time.process_time()
    with pytest.raises(InvariantError, match="too large"):
        evaluate(formula, {"a": 10**12})
    assert time.process_time() - started < 1


def test_powers_of_the_usual_size_are_exact() -> None:
    assert evaluate("10 ** 12 + 2 ** 70 + 2 ** -1", {}) == 10**12 + 2**70 + 0.5
    assert evaluate("(-2) ** 3", {}) == -8


def test_a_very_long_sum_is_a_sum_or_an_error() -> None:
    assert evaluate(" + ".join(["a"] * 200), {"a": 2}) == 400
    with pytest.raises(InvariantError):
        evaluate(" + ".join(["a"] * 100_000), {"a": 2})


def test_names_come_once_and_in_order() -> None:
    formula = "max(b.x, a) * min(b, a) + (c if d.e.f > 1 else 2)"
    assert set(names_in(formula)) == {"b.x", "a", "b", "c", "d.e.f"}
    assert len(names_in(formula)) == 5
    assert names_in("b + a * b") == ("b", "a")
    assert names_in("ceil(3 / 2)") == ()


def test_a_name_without_a_value_is_refused() -> None:
    with pytest.raises(InvariantError, match=r"names b\.c"):
        evaluate("a + b.c", {"a": 1, "b": 2, "c": 3})


# -- against Python itself --------------------------------------------------------------------------

VALUES = {"a": 3, "b": -7, "c": 0.25, "d": 10**30, "e": 0}
LEAVES = st.one_of(
    st.sampled_from(sorted(VALUES)),
    st.integers(0, 10**25).map(str),
    st.floats(0, 1e10, allow_nan=False).map(repr),
)


def _joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(parts, st.sampled_from(["+", "-", "*", "/", "//", "%"]), parts)
    compare = st.sampled_from(["<", "<=", ">", ">=", "=="])
    return st.one_of(
        binary.map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        parts.map(lambda part: f"-{part}"),
        st.tuples(parts, st.integers(0, 3)).map(lambda t: f"({t[0]} ** {t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), parts, parts).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        st.tuples(st.sampled_from(["abs", "floor"]), parts).map(lambda t: f"{t[0]}(1 * {t[1]})"),
        st.tuples(parts, parts, compare, parts, parts).map(
            lambda t: f"({t[0]} if {t[1]} {t[2]} {t[3]} else {t[4]})"
        ),
    )


@settings(max_examples=300, deadline=None)
@given(formula=st.recursive(LEAVES, _joined, max_leaves=12))
def test_a_formula_s_value_is_python_s(formula: str) -> None:
    try:
        expected = eval(formula, {"__builtins__": {}}, {**VALUES, **FUNCTIONS})  # noqa: S307 - our own text
    except (ArithmeticError, ValueError):
        with pytest.raises(InvariantError, match="has no value"):
            evaluate(formula, VALUES)
        return
    assume(not isinstance(expected, complex))
    value = evaluate(formula, VALUES)
    assert type(value) is type(expected)
    assert value == expected or (math.isnan(value) and math.isnan(expected))

"""A worksheet: what is shown is what was computed, and every number can be asked where it is from."""

from __future__ import annotations

import math
import re

import msgspec
import numpy as np
import pytest

from milepost.errors import ConfigError, InvariantError
from milepost.planner.worksheet import Derivation, Worksheet, explain, listed, number_text, value_text
from tests.planner.render.reports import sheet


def test_a_derived_number_is_its_formula_s() -> None:
    filled = sheet()
    assert filled["states_that_fit"] == 445
    assert filled["decode.tokens"] == 1 / 0.0123456789
    assert "used_bytes" in filled
    assert "used" not in filled
    entry = next(entry for entry in filled.derivations if entry.name == "used_bytes")
    assert entry == Derivation(
        name="used_bytes",
        value=445 * 449_372_160,
        unit="bytes",
        formula="states_that_fit * state_bytes",
        inputs=("states_that_fit", "state_bytes"),
    )


def test_numbers_come_in_the_order_in_which_they_were_noted() -> None:
    names = [entry.name for entry in sheet().derivations]
    assert names[:3] == ["state_bytes", "free_bytes", "decode.step_seconds"]
    known: set[str] = set()
    for entry in sheet().derivations:
        assert set(entry.inputs) <= known
        known.add(entry.name)


def test_a_formula_may_name_only_what_stands_before_it() -> None:
    empty = Worksheet()
    with pytest.raises(InvariantError, match=r"The formula of x names what is not known: a, b\.c"):
        empty.derive("x", "a + b.c", "bytes")
    with pytest.raises(InvariantError, match="not known: x"):
        empty.derive("x", "x + 1", "bytes")
    assert empty.derivations == ()


def test_a_number_is_noted_once() -> None:
    filled = sheet()
    with pytest.raises(InvariantError, match="free_bytes is derived twice"):
        filled.given("free_bytes", 1, "bytes", "somewhere")
    with pytest.raises(InvariantError, match="left_bytes is derived twice"):
        filled.derive("left_bytes", "free_bytes", "bytes")
    assert filled["free_bytes"] == 200 * 10**9


@pytest.mark.parametrize("name", ["", " ", "two words", "line\nend"])
def test_a_name_is_one_word(name: str) -> None:
    with pytest.raises(InvariantError, match="one word"):
        Worksheet().given(name, 1, "bytes", "here")


def test_check_holds_a_number_against_other_code_s() -> None:
    filled = sheet()
    filled.check("states_that_fit", 445)
    filled.check("decode.tokens", 81.00000073710001)
    with pytest.raises(
        InvariantError, match=r"states_that_fit is 445 by 'free_bytes // state_bytes' but 446"
    ):
        filled.check("states_that_fit", 446)
    with pytest.raises(InvariantError, match=r"decode\.tokens is"):
        filled.check("decode.tokens", 81.000001)
    with pytest.raises(InvariantError, match="nan"):
        filled.check("decode.tokens", math.nan)


def test_numbers_become_plain_ones() -> None:
    plain = Worksheet()
    assert type(plain.given("i", np.int64(5), "", "numpy")) is int  # type: ignore[arg-type]
    assert type(plain.given("f", np.float64(0.5), "", "numpy")) is float
    assert plain.derive("holds", "i > f", "") == 1
    assert type(plain["holds"]) is int
    assert msgspec.json.decode(msgspec.json.encode(plain.derivations), type=tuple[Derivation, ...])
    for value in ("5", None, 1j, np.float32(1)):
        with pytest.raises(InvariantError, match="x must be a number"):
            plain.given("x", value, "", "somewhere")  # type: ignore[arg-type]


# -- explanations ------------------------------------------------------------------------------------


def test_an_explanation_is_a_tree_whose_columns_are_those_of_one_number_s_inputs() -> None:
    assert explain(sheet().derivations, "left_bytes").splitlines() == [
        "left_bytes  29,388,800 bytes  = free_bytes - used_bytes  (arithmetic)",
        "├─ free_bytes  200,000,000,000 bytes  from --memory",
        "└─ used_bytes  199,970,611,200 bytes  = states_that_fit * state_bytes",
        "   ├─ states_that_fit          445 states  = free_bytes // state_bytes  (in what is left)",
        "   │  ├─ free_bytes   200,000,000,000 bytes  from --memory",
        "   │  └─ state_bytes      449,372,160 bytes  from kimi-k3's config.json",
        "   └─ state_bytes      449,372,160 bytes   from kimi-k3's config.json",
    ]


def test_a_shared_number_s_inputs_are_told_once() -> None:
    shared = Worksheet()
    shared.given("a", 1, "bytes", "here", "the first")
    shared.derive("b", "a + 1", "bytes")
    shared.derive("c", "b * b + a", "bytes")
    shared.derive("d", "c - b", "bytes")
    assert explain(shared.derivations, "d").splitlines() == [
        "d  3 bytes  = c - b",
        "├─ c  5 bytes  = b * b + a",
        "│  ├─ b  2 bytes  = a + 1",
        "│  │  └─ a  1 bytes  from here  (the first)",
        "│  └─ a  1 bytes  from here  (the first)",
        "└─ b  2 bytes  (above)",
    ]


def test_a_given_number_is_one_line() -> None:
    assert explain(sheet().derivations, "free_bytes") == "free_bytes  200,000,000,000 bytes  from --memory"


def test_an_unknown_name_is_one_line_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        explain(sheet().derivations, "state_that_fits")
    message = str(caught.value)
    assert "\n" not in message
    assert "Did you mean 'states_that_fit'?" in message
    assert "--explain list" in message


def test_a_plan_s_field_with_its_unit_names_the_number() -> None:
    made = Worksheet()
    made.given("ttft", 1.5, "seconds", "a test")
    made.given("state_bytes", 8, "bytes", "a test")
    assert explain(made.derivations, "ttft_seconds") == explain(made.derivations, "ttft")
    assert explain(made.derivations, "state_bytes").startswith("state_bytes")
    with pytest.raises(ConfigError, match="'state_seconds'"):
        explain(made.derivations, "state_seconds")


def test_every_number_of_a_long_chain_is_told() -> None:
    chain = Worksheet()
    chain.given("n0", 1, "", "here")
    for place in range(1, 1200):
        chain.derive(f"n{place}", f"n{place - 1} + 1", "")
    lines = explain(chain.derivations, "n1199").splitlines()
    assert len(lines) == 1200
    assert lines[-1].endswith("from here")


def test_the_list_has_every_number_with_its_unit() -> None:
    filled = sheet()
    lines = listed(filled.derivations).splitlines()
    assert [line.split()[0] for line in lines] == [entry.name for entry in filled.derivations]
    assert re.fullmatch(r"states_that_fit +445 states +in what is left", lines[3])
    assert listed(()) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-1234567, "-1,234,567"),
        (10**30, f"{10**30:,}"),
        (0.0, "0"),
        (81.0, "81"),
        (0.0123456789, "0.0123457"),
        (1.5e-9, "1.5e-09"),
        (1234.5678, "1,234.57"),
        (2_000_000_000.5, "2,000,000,000.5"),
        (1.5e18, "1.5e+18"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_for_a_reader(value: float, text: str) -> None:
    assert number_text(value) == text


def test_a_value_has_its_unit() -> None:
    assert value_text(Derivation(name="a", value=1234, unit="tokens")) == "1,234 tokens"
    assert value_text(Derivation(name="a", value=0.5, unit="")) == "0.5"

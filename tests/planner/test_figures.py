"""Figures for a reader: three digits that say something, in the unit that suits."""

from __future__ import annotations

import pytest

from milepost.planner.figures import bytes_text, scaled_text, seconds_text, tokens_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1234.5, "1,234.50 s"),
        (1.0, "1.00 s"),
        (0.9996, "1.00 s"),
        (0.9994, "999 ms"),
        (0.0135, "13.5 ms"),
        (0.0009996, "1 ms"),
        (5.2e-6, "5.2 us"),
        (0.0, "0 us"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (9_999, "9,999 B"),
        (172_032, "172.03 kB"),
        (449_372_160, "449.37 MB"),
        (1.5e12, "1.50 TB"),
        (-4e10, "-40.00 GB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, ""), (12.0, "12 FLOP"), (999_800.0, "1 MFLOP"), (2.5e15, "2.5 PFLOP")]
)
def test_scaled(value: float, text: str) -> None:
    assert scaled_text(value, "FLOP") == text


@pytest.mark.parametrize(("count", "text"), [(8192, "8k"), (1 << 20, "1M"), (1000, "1000"), (3 << 20, "3M")])
def test_tokens(count: int, text: str) -> None:
    assert tokens_text(count) == text

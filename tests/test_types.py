"""Sampling parameters of the wrong kind are refused when they are built, not in the middle of a step."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.errors import RequestError
from milepost.types import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", None),
        ("temperature", True),
        ("top_k", 1.5),
        ("top_k", None),
        ("top_p", "1"),
        ("min_p", [0]),
        ("repetition_penalty", "1"),
        ("presence_penalty", None),
        ("frequency_penalty", {}),
        ("seed", 1.5),
        ("seed", "x"),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("logprobs", True),
        ("logprobs", 2.5),
        ("ignore_eos", 5),
        ("stop", "abc"),
        ("stop", 5),
        ("stop", (5,)),
        ("stop_token_ids", ("a",)),
        ("stop_token_ids", 5),
        ("stop_token_ids", (True,)),
    ],
)
def test_a_wrong_kind_is_refused_by_name(name: str, value: object) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(RequestError, match=f"^{name} must be .*Given: ") as caught:
        SamplingParams(**wrong)
    assert caught.value.param == name


def test_integers_are_numbers_too() -> None:
    params = SamplingParams(temperature=1, top_p=1, repetition_penalty=2)
    assert (params.temperature, params.top_p, params.repetition_penalty) == (1, 1, 2)

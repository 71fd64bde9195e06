"""Limits: what a request's sampling parameters may name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from milepost.errors import RequestError
from milepost.memory.pool import PagePool
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.limits import Limits
from milepost.types import Request, SamplingParams
from tests.scheduler.harness import SmallLayout


def limits(vocab_size: int | None) -> Limits:
    return Limits(SchedulerConfig(max_model_len=9, vocab_size=vocab_size), SmallLayout(), PagePool(9))


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("logit_bias", SamplingParams(logit_bias={0: 1.0, 7: 2.0})),
        ("stop_token_ids", SamplingParams(stop_token_ids=(6, 7))),
    ],
)
def test_tokens_outside_the_vocabulary_are_refused_by_the_fields_name(
    name: str, sampling: SamplingParams
) -> None:
    asked = Request(request_id="a", prompt_token_ids=(1,), sampling=sampling)
    with pytest.raises(
        RequestError, match=rf"{name} must hold token ids between 0 and 6\. Given: 7"
    ) as error:
        limits(7).validate(asked)
    assert error.value.param == name
    limits(8).validate(asked)
    limits(None).validate(asked)


class Counting(tuple[int, ...]):  # noqa: SLOT001 - it needs a place for its count
    """A prompt that counts how often it is read from its first token on."""

    reads = 0

    def __iter__(self) -> Iterator[int]:
        self.reads += 1
        return super().__iter__()


def test_a_prompt_is_read_once_however_many_choices_share_it() -> None:
    prompt, wrong, known = Counting((1, 2)), Counting((1, 7)), limits(7)
    for number in range(5):
        known.validate(Request(request_id=f"{number}", prompt_token_ids=prompt))
        if not number:
            once = prompt.reads
    assert prompt.reads == once > 0
    for _ in range(2):
        with pytest.raises(RequestError):
            known.validate(Request(request_id="w", prompt_token_ids=wrong))

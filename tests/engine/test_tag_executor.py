"""The oracle must bite: each fault that it is there to find, put in by hand."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from milepost.errors import ExecutionError, InvariantError
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.testing.tag_executor import TagExecutor, expected_output, tag_of
from milepost.types import Batch, NewRequest, Row, SamplingParams
from tests.scheduler.harness import SmallLayout

LAYOUT = SmallLayout(block_size=2, pages_per_state=2)
PROMPT = (0, 1, 1, 0, 1)


def row(start: int, *tokens: int, **changes: object) -> Row:
    plain = Row(
        request_id="a",
        start=start,
        token_ids=tokens,
        block_table=[3, 4, 5],
        state_table=[1, 2],
        samples=start + len(tokens) >= len(PROMPT),
        num_output_tokens=max(0, start + len(tokens) - len(PROMPT)),
    )
    return msgspec.structs.replace(plain, **changes)


def batch(
    *rows: Row, new: tuple[str, ...] = (), released: tuple[str, ...] = (), scrubs: tuple[int, ...] = ()
) -> Batch:
    requests = tuple(
        NewRequest(request_id=name, prompt_token_ids=PROMPT, sampling=SamplingParams()) for name in new
    )
    return Batch(step=0, rows=rows, new_requests=requests, released=released, scrubs=scrubs)


def started() -> TagExecutor:
    """Request "a" with its first three tokens computed."""
    executor = TagExecutor(LAYOUT, 12)
    executor.run(batch(row(0, 0, 1, 1), new=("a",)))
    return executor


def test_it_draws_what_the_oracle_says() -> None:
    executor = started()
    drawn: list[int] = []
    drawn += executor.run(batch(row(3, 0, 1))).rows[0].token_ids
    drawn += executor.run(batch(row(5, drawn[0]))).rows[0].token_ids
    assert drawn == expected_output(PROMPT, 2, 2)


def test_outputs_depend_on_every_token_of_the_prefix() -> None:
    outputs = {
        tuple(expected_output((*PROMPT[:i], 1 - PROMPT[i], *PROMPT[i + 1 :]), 40, 2)) for i in range(5)
    }
    assert len(outputs | {tuple(expected_output(PROMPT, 40, 2))}) == 6
    assert tag_of((0,)) != tag_of((0, 0))


def wrong_row(**changes: object) -> Callable[[TagExecutor], object]:
    return lambda executor: executor.run(batch(row(3, 0, 1, **changes)))


def other(**changes: object) -> Row:
    return row(0, 0, 1, request_id="b", **{"block_table": [8], "state_table": [9, 10], **changes})


FAULTS: dict[str, tuple[Callable[[TagExecutor], object], str]] = {
    "wrong tokens": (lambda executor: executor.run(batch(row(3, 1, 1))), "its tokens are"),
    "token applied twice": (
        lambda executor: executor.run(batch(row(2, 1, 0, 1))),
        "state that is not its own",
    ),
    "step lost": (lambda executor: executor.run(batch(row(4, 1))), "foreign KV at position 3"),
    "samples too early": (
        lambda executor: executor.run(batch(row(3, 0, samples=True))),
        "computes 4 of 5 tokens, samples is True",
    ),
    "does not sample": (wrong_row(samples=False), "computes 5 of 5 tokens, samples is False"),
    "wrong draw": (wrong_row(num_output_tokens=1), "has drawn 0, not 1"),
    "foreign block": (wrong_row(block_table=[3, 7, 5]), "foreign KV at position 2"),
    "blocks in another order": (wrong_row(block_table=[4, 3, 5]), "foreign KV at position 0"),
    "too few blocks": (wrong_row(block_table=[3, 4]), "has 2 blocks"),
    "foreign state": (wrong_row(state_table=[1, 7]), "state that is not its own"),
    "state pages in another order": (wrong_row(state_table=[2, 1]), "state that is not its own"),
    "state too short": (wrong_row(state_table=[1]), "1 state pages"),
    "dummy page": (wrong_row(block_table=[3, 4, 0]), "names page 0"),
    "page that does not exist": (wrong_row(block_table=[3, 4, 12]), "names page 12"),
    "page twice": (wrong_row(block_table=[3, 4, 1]), "both name page 1"),
    "page shared by two": (
        lambda executor: executor.run(batch(row(3, 0, 1), other(block_table=[5]), new=("b",))),
        "both name page 5",
    ),
    "stranger": (lambda executor: executor.run(batch(other())), "was not announced"),
    "announced twice": (lambda executor: executor.run(batch(new=("a",))), "announced twice"),
    "row after its release": (
        lambda executor: executor.run(batch(row(3, 0, 1), released=("a",))),
        "not announced",
    ),
    "released twice": (lambda executor: executor.run(batch(released=("a", "a"))), "was not known"),
    "state scrubbed under it": (
        lambda executor: executor.run(batch(row(3, 0, 1), scrubs=(2,))),
        "state that is not its own",
    ),
    "dummy page scrubbed": (lambda executor: executor.run(batch(scrubs=(0,))), "dummy page is scrubbed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_it_finds(fault: str) -> None:
    inject, message = FAULTS[fault]
    with pytest.raises(InvariantError, match=message):
        inject(started())


def test_it_finds_pages_that_were_freed_too_early() -> None:
    free: set[int] = set()
    executor = TagExecutor(LAYOUT, 12, free_pages=lambda: free)
    executor.run(batch(row(0, 0, 1, 1), new=("a",)))
    free.add(4)
    with pytest.raises(InvariantError, match="names page 4, which is free"):
        executor.run(batch(row(3, 0, 1)))
    free.clear()
    with pytest.raises(InvariantError, match="foreign KV at position 2"):
        executor.run(batch(row(3, 0, 1)))


def test_it_finds_a_failed_requests_pages_that_were_not_scrubbed() -> None:
    executor = started()
    executor.fail_request("a")
    (result,) = executor.run(batch(row(3, 0, 1))).rows
    assert result.error == "non-finite logits"
    reuse = other(state_table=[9, 2])
    with pytest.raises(InvariantError, match="page 2, which was never scrubbed"):
        executor.run(batch(reuse, new=("b",), released=("a",)))
    executor.run(batch(reuse, scrubs=(2,)))


def test_it_wants_blocks_of_one_page() -> None:
    with pytest.raises(InvariantError, match="blocks of one page, not 2"):
        TagExecutor(SmallLayout(pages_per_block=2), 9)


def test_the_scripted_executor_answers_from_lists_and_functions() -> None:
    for script in ({"a": [7, 8]}, lambda _, n: 7 + n):
        executor = ScriptedExecutor(script)
        (first,) = executor.run(batch(row(0, *PROMPT), new=("a",))).rows
        (second,) = executor.run(batch(row(5, 7))).rows
        assert (first.token_ids, second.token_ids) == ((7,), (8,))
        assert len(executor.batches) == 2
        assert set(executor.known) == {"a"}
        executor.run(batch(released=("a",)))
        assert not executor.known


def test_the_scripted_executor_says_when_its_script_is_too_short() -> None:
    executor = ScriptedExecutor({"a": [7]})
    executor.run(batch(row(0, *PROMPT), new=("a",)))
    with pytest.raises(ExecutionError, match="no token 1 for request 'a'"):
        executor.run(batch(row(5, 7)))


def test_the_scripted_executor_refuses_two_rows_of_one_request() -> None:
    executor = ScriptedExecutor({"a": [7]})
    with pytest.raises(InvariantError, match="more than one row"):
        executor.run(batch(row(0, 0), row(1, 1), new=("a",)))

"""Lists of options become points: every combination once, in order, and nothing wrong gets through."""

from __future__ import annotations

import pytest

from milepost.errors import ConfigError
from milepost.sim.runs import RunSpec
from milepost.sim.sweep.grid import (
    MAX_POINTS,
    GridOptions,
    budget_name,
    grid,
    parse_budget,
    parse_present,
    point_name,
    split_list,
)

BASE = RunSpec()


def names(**lists: tuple[str, ...]) -> list[str]:
    return [point_name(spec) for spec in grid(GridOptions(**lists), BASE)]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a", ["a"]),
        ("turns+branch,every(2048),adaptive", ["turns+branch", "every(2048)", "adaptive"]),
        ("marconi(alpha=1,x=2),lru", ["marconi(alpha=1,x=2)", "lru"]),
        (" a , b ", ["a", "b"]),
        ("f(g(1,2),3),h", ["f(g(1,2),3)", "h"]),
    ],
)
def test_commas_part_a_list_but_not_parameters(text: str, items: list[str]) -> None:
    assert split_list("policy", text) == items


@pytest.mark.parametrize("text", ["every(2048", "every2048)", ")(", "a,b),(c"])
def test_parentheses_must_match(text: str) -> None:
    with pytest.raises(ConfigError, match="policy: the parentheses don't match"):
        split_list("policy", text)


@pytest.mark.parametrize("text", ["", ",", "a,", ",a", "a,,b", " "])
def test_no_item_is_empty(text: str) -> None:
    with pytest.raises(ConfigError, match="an item of the list is empty"):
        split_list("policy", text)


def test_points_are_in_order_by_budget_first() -> None:
    assert names(
        budgets=("200GB,unlimited",),
        policies=("turns+branch,every(2048)", "adaptive"),
        evictions=("value", "lru"),
    ) == [
        f"{budget} {policy} {eviction} paged"
        for budget in ("200GB", "unlimited")
        for policy in ("turns+branch", "every(2048)", "adaptive")
        for eviction in ("value", "lru")
    ]


def test_all_axes_are_multiplied() -> None:
    given = names(
        budgets=("1GB", "2GB"),
        policies=("last,turns",),
        evictions=("lru",),
        layouts=("paged,lcm,aligned",),
        match_units=("16,64",),
        block_sizes=("64,128",),
    )
    assert len(given) == len(set(given)) == 2 * 2 * 3 * 2 * 2
    assert given[:2] == [
        "1GB last lru paged match unit 16 block 64",
        "1GB last lru paged match unit 16 block 128",
    ]


def test_a_preset_is_one_row_a_budget() -> None:
    assert names(budgets=("1GB,2GB",), policies=("last,turns",), presets=("vllm", "sglang")) == [
        "1GB last value paged",
        "1GB turns value paged",
        "1GB vllm",
        "1GB sglang",
        "2GB last value paged",
        "2GB turns value paged",
        "2GB vllm",
        "2GB sglang",
    ]


def test_presets_alone_are_all_there_is() -> None:
    assert names(budgets=("1GB",), presets=("vllm",)) == ["1GB vllm"]
    assert names(budgets=("1GB",), presets=("vllm",), evictions=("lru",)) == [
        "1GB adaptive lru paged",
        "1GB vllm",
    ]


def test_a_preset_finds_its_own_block_size() -> None:
    assert names(budgets=("1GB",), policies=("last",), presets=("vllm",), block_sizes=("64,128",)) == [
        "1GB last value paged block 64",
        "1GB last value paged block 128",
        "1GB vllm",
    ]
    with pytest.raises(ConfigError, match=r"block_size is that of policies.*Given: 64\."):
        names(presets=("vllm",), block_sizes=("64",))


def test_presets_take_parameters() -> None:
    assert names(
        presets=("vllm(retention=8192),marconi(alpha=1)", "vllm(alignment=128)"), budgets=("1GB",)
    ) == [
        "1GB vllm(retention=8192)",
        "1GB marconi(alpha=1)",
        "1GB vllm",
    ]


def test_the_unlimited_preset_comes_once_at_the_end() -> None:
    assert names(budgets=("1GB,2GB",), presets=("unlimited,vllm",)) == [
        "1GB vllm",
        "2GB vllm",
        "unlimited unlimited",
    ]


def test_repetitions_are_left_out() -> None:
    assert names(budgets=("1GB", "1000MB", "unlimited,UNLIMITED"), policies=("last,last", "last")) == [
        "1GB last value paged",
        "unlimited last value paged",
    ]


def test_what_is_not_listed_is_as_in_the_base() -> None:
    base = RunSpec(policy="turns", queueing=True, token_budget=99)
    (spec,) = grid(GridOptions(budgets=("2GiB",), match_units=("32",)), base)
    assert spec == RunSpec(
        policy="turns", queueing=True, token_budget=99, budget_bytes=2 << 30, match_unit=32
    )


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ({"budgets": ("200GBB",)}, r"budget must be a positive number of bytes.*Did you mean 'GB'"),
        ({"budgets": ("unlimted",)}, r"or unlimited\. Given: 'unlimted'\. Did you mean 'unlimited'"),
        ({"budgets": ("0",)}, "budget must be a positive number"),
        ({"budgets": ("-1GB",)}, "budget must be a positive number"),
        ({"budgets": ("nan",)}, "budget must be a number of bytes"),
        ({"policies": ("adaptve",)}, "Did you mean 'adaptive'"),
        ({"policies": ("clairvoyent",)}, "Did you mean 'clairvoyant'. It is known to simulate only"),
        ({"policies": ("turns+clairvoyant",)}, "can't be joined with other policies. Name it alone"),
        ({"policies": ("every",)}, "every needs a period"),
        ({"policies": ("every(0)",)}, "0"),
        ({"policies": ("turns+turns",)}, "names turns twice"),
        ({"policies": ("every(2048",)}, "parentheses don't match"),
        ({"evictions": ("lur",)}, "Did you mean 'lru'"),
        ({"evictions": ("marconi(alpha=nan)",)}, "alpha must be a number"),
        ({"layouts": ("page",)}, "Did you mean 'paged'"),
        ({"presets": ("vlm",)}, "Did you mean 'vllm'"),
        ({"match_units": ("0",)}, "match_unit must be a number of tokens, 1 to"),
        ({"match_units": ("1.5",)}, "match_unit must be a number of tokens"),
        ({"match_units": ("\uff19",)}, "match_unit must be a number of tokens"),
        ({"block_sizes": ("9" * 5000,)}, "block_size must be a number of tokens"),
        ({"block_sizes": ("block",)}, "block_size must be a number of tokens"),
        ({"match_units": (",".join(map(str, range(1, MAX_POINTS + 2))),)}, "at most 10,000 points"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(lists: dict[str, tuple[str, ...]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        grid(GridOptions(**lists), BASE)


def test_messages_stay_short_whatever_is_given() -> None:
    for field in GridOptions.__struct_fields__:
        with pytest.raises(ConfigError) as raised:
            grid(GridOptions(**{field: ("x" * 100_000,)}), BASE)
        assert len(str(raised.value)) < 1000, field


def test_the_clairvoyant_ones_are_known_here() -> None:
    assert names(budgets=("1GB",), policies=("clairvoyant",), evictions=("clairvoyant",)) == [
        "1GB clairvoyant clairvoyant paged"
    ]


@pytest.mark.parametrize(
    "text", ["200GB", "1600GB", "2TB", "200GiB", "1.5GB", "512MiB", "7B", "2.01GB", "unlimited"]
)
def test_a_budget_is_named_as_it_is_written(text: str) -> None:
    assert budget_name(parse_budget(text)) == text


def test_decimal_and_binary_units() -> None:
    assert parse_budget("200GB") == 200 * 10**9
    assert parse_budget("200GiB") == 200 << 30


def test_the_present_one_is_a_point() -> None:
    base = RunSpec(budget_bytes=7)
    assert parse_present("policy=turns+branch,eviction=marconi(alpha=1)", base) == RunSpec(
        budget_bytes=7, policy="turns+branch", eviction="marconi(alpha=1)"
    )


def test_the_present_one_may_be_a_preset() -> None:
    assert parse_present("preset=vllm, match-unit=16", RunSpec(budget_bytes=7)) == RunSpec(
        budget_bytes=7, preset="vllm", match_unit=16
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("adaptive", "present takes settings such as"),
        ("polcy=last", "Did you mean 'policy'"),
        ("policy=last,policy=turns", "present takes policy once"),
        ("policy=lst", "Did you mean 'last'"),
        ("policy=", "empty"),
        ("preset=vllm,policy=last", "a preset replaces"),
        ("budget=1GB", "present takes settings such as"),
    ],
)
def test_a_present_one_that_is_none(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_present(text, BASE)

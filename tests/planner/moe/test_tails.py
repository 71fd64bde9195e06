"""The three tails of LatentMoE: bytes, FLOPs and times by hand, and which wins where."""

from __future__ import annotations

from itertools import pairwise

import pytest

from milepost.planner.moe.crossings import tail_ranges
from milepost.planner.moe.published import PUBLISHED_TAIL_SECONDS
from milepost.planner.moe.tails import TAILS, TailCost, TailTimes, note_tail_facts, note_tails
from milepost.sim.cost.hardware import find_hardware
from tests.planner.moe.sheets import facts

H, L = 7168, 3584
UP = 2 * H * L  # bytes of W_up
GB300 = find_hardware("gb300")
LINK, MEMORY = 900e9 * GB300.efficiency.network, 8e12 * GB300.efficiency.memory
FLOPS = 2.5e15 * GB300.efficiency.compute
WAIT, KERNEL = 6e-6, GB300.kernel_seconds


def times(ranks: int, tokens: int, hardware: str = "gb300") -> TailTimes:
    sheet = facts(hardware=hardware)
    note_tail_facts(sheet, "group", ranks)
    return note_tails(sheet, "group", "tail", tokens)


def tail(name: str, ranks: int, tokens: int) -> TailCost:
    return next(one for one in times(ranks, tokens).tails if one.name == name)


def reduced(size: float, ranks: int) -> tuple[float, float]:
    """Seconds and bytes of an all-reduce."""
    one = (WAIT + (ranks - 1) * size / LINK, (ranks - 1) * size)
    two = (2 * WAIT + 2 * (ranks - 1) / ranks * size / LINK, 2 * (ranks - 1) / ranks * size)
    return min(one, two)


@pytest.mark.parametrize("ranks", [2, 8, 16])
@pytest.mark.parametrize("tokens", [1, 64, 8192])
def test_replicated_by_hand(ranks: int, tokens: int) -> None:
    latent, hidden = reduced(2 * tokens * L, ranks), reduced(2 * tokens * H, ranks)
    up = max(2 * tokens * H * L / FLOPS, (UP + 2 * tokens * (H + L)) / MEMORY)
    found = tail("replicated", ranks, tokens)
    assert found.flops == 2 * tokens * H * L
    assert found.network_bytes == pytest.approx(latent[1] + hidden[1])
    assert found.memory_bytes == UP + 2 * tokens * (H + L) + 6 * tokens * H
    add = 6 * tokens * H / MEMORY
    assert found.seconds == pytest.approx(latent[0] + max(KERNEL + up, hidden[0]) + KERNEL + add)


@pytest.mark.parametrize("ranks", [2, 8, 16])
@pytest.mark.parametrize("tokens", [1, 64, 8192])
def test_scattered_by_hand(ranks: int, tokens: int) -> None:
    latent, part = reduced(2 * tokens * L, ranks), (ranks - 1) / ranks * 2 * tokens * H
    held = UP / ranks + 2 * tokens * (H / ranks + L)
    up = max(2 * tokens * H * L / ranks / FLOPS, held / MEMORY)
    found = tail("scattered", ranks, tokens)
    assert found.flops == pytest.approx(2 * tokens * H * L / ranks)
    assert found.network_bytes == pytest.approx(latent[1] + 2 * part)
    assert found.memory_bytes == pytest.approx(held + 4 * tokens * H)
    copied = 4 * tokens * H / MEMORY
    expected = latent[0] + part / LINK + KERNEL + max(up, part / LINK) + WAIT + copied
    assert found.seconds == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [2, 8, 16])
@pytest.mark.parametrize("tokens", [1, 64, 8192])
def test_summed_by_hand(ranks: int, tokens: int) -> None:
    latent, hidden = reduced(2 * tokens * L, ranks), reduced(2 * tokens * H, ranks)
    held = UP / ranks + 2 * tokens * (H / ranks + L)
    up = max(2 * tokens * H * L / ranks / FLOPS, held / MEMORY)
    found = tail("summed", ranks, tokens)
    assert found.network_bytes == pytest.approx(latent[1] + hidden[1])
    assert found.seconds == pytest.approx(
        latent[0] + KERNEL + up + 2 * tokens * H / ranks / MEMORY + hidden[0]
    )


def test_the_whole_up_projection_reads_51_mb_on_each_rank() -> None:
    """Of K3; 8 us at 6.4 TB/s, which is what dividing its columns saves at one token."""
    assert UP == 51_380_224
    whole, columns = tail("replicated", 8, 1), tail("summed", 8, 1)
    assert whole.memory_bytes / columns.memory_bytes == pytest.approx(8, rel=0.01)


def test_the_published_change_on_eight_ranks_is_near_without_fitting() -> None:
    """13.200 -> 10.620 us is -19.5 %. The formulas know no kernel that starts before the last one ends."""
    before, after = tail("replicated", 8, 1).seconds, tail("scattered", 8, 1).seconds
    published_before, published_after = PUBLISHED_TAIL_SECONDS
    assert published_after / published_before - 1 == pytest.approx(-0.195, abs=0.001)
    assert -0.20 < after / before - 1 < -0.13
    assert before == pytest.approx(18.4e-6, abs=0.1e-6)


def test_an_all_reduce_changes_from_one_shot_to_two() -> None:
    few, many = times(8, 1), times(8, 8192)
    assert few.tails[0].network_bytes == 7 * 2 * (H + L)
    assert many.tails[0].network_bytes == pytest.approx(2 * 7 / 8 * 2 * 8192 * (H + L))


def test_the_quickest_is_named_with_and_without_multicast() -> None:
    found = times(8, 64)
    seconds = {one.name: one.seconds for one in found.tails}
    assert list(seconds) == list(TAILS)
    assert seconds[found.best] == min(seconds.values())
    del seconds["scattered"]
    assert seconds[found.best_without_multicast] == min(seconds.values())
    assert found.winner(multicast=False) == found.best_without_multicast


def test_beyond_the_domain_the_slower_link_counts() -> None:
    assert times(16, 1, "h200").tails[0].seconds > times(8, 1, "h200").tails[0].seconds + 2e-5


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("multicast", [True, False])
def test_ranges_change_exactly_where_the_winner_does(ranks: int, multicast: bool) -> None:
    sheet = facts()
    note_tail_facts(sheet, "group", ranks)
    known = tuple(note_tails(sheet, "group", f"t{count}", count) for count in (1, 8, 64, 512, 4096))
    found = tail_ranges(sheet, known, multicast=multicast)
    assert found[0].first_tokens == 1
    assert found[-1].last_tokens == 4096
    for one, following in pairwise(found):
        assert following.first_tokens == one.last_tokens + 1
        assert following.best != one.best
    for one in found:
        assert times(ranks, one.first_tokens).winner(multicast=multicast) == one.best
        assert times(ranks, one.last_tokens).winner(multicast=multicast) == one.best

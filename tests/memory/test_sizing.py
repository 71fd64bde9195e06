"""From options to the numbers that the rest of the engine runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.config import EngineConfig
from milepost.errors import ConfigError
from milepost.memory.layout import PagedLayout, paged_layout
from milepost.memory.sizing import resolve
from tests.model_specs import K3, SMALL


def _layout(config: EngineConfig) -> PagedLayout:
    return paged_layout(SMALL, **config.layout_options())


def test_resolved_numbers(tmp_path: Path) -> None:
    config = EngineConfig.from_options(
        {"model": tmp_path / "toy", "memory": "1MiB", "block_size": 16, "max_num_seqs": 3, "threads": 2}
    )
    layout = _layout(config)
    assert layout.page_bytes == 16 * 32 * 4
    resolved = resolve(config, SMALL, layout)
    assert resolved.num_pages == (1 << 20) // layout.page_bytes == 512
    assert resolved.memory_bytes == resolved.num_pages * layout.page_bytes
    assert resolved.max_model_len == 4096  # the model's own limit is the lesser
    assert resolved.served_model_name == "toy"
    assert resolved.threads == 2


def test_the_arena_caps_the_length_of_a_sequence() -> None:
    config = EngineConfig(model="m", memory="100kB", block_size=16)
    layout = _layout(config)
    resolved = resolve(config, SMALL, layout)
    assert resolved.num_pages == 48
    assert resolved.max_model_len == (47 - layout.pages_per_state) * 16 + 1 < 4096


def test_default_memory_is_a_share_and_no_more_than_is_of_use() -> None:
    config = EngineConfig(model="m", max_num_seqs=2, block_size=16)
    layout = _layout(config)
    scarce = resolve(config, SMALL, layout, available_bytes=3 << 20, weight_bytes=1 << 20)
    assert scarce.num_pages == (1 << 20) // layout.page_bytes
    plenty = resolve(config, SMALL, layout, available_bytes=64 << 30)
    running = 1 + 2 * (layout.pages_per_state + 4096 // 16)
    assert plenty.num_pages == 2 * running  # as much again for the cache
    uncached = EngineConfig(model="m", max_num_seqs=2, block_size=16, prefix_cache=False)
    assert resolve(uncached, SMALL, layout, available_bytes=64 << 30).num_pages == running


def test_memory_for_less_than_one_sequence_states_the_need() -> None:
    config = EngineConfig(model="m", memory=4096, block_size=16)
    layout = _layout(config)
    need = (2 + layout.pages_per_state) * layout.page_bytes
    with pytest.raises(ConfigError, match=f"{need} bytes.*Given: memory 4096.*Set memory to {need}"):
        resolve(config, SMALL, layout)
    assert resolve(EngineConfig(model="m", memory=need, block_size=16), SMALL, layout).max_model_len == 17


def test_memory_that_the_machine_lacks_is_refused_at_once() -> None:
    config = EngineConfig(model="m", memory="5000TiB")
    with pytest.raises(ConfigError, match=r"memory must be at most .* all that this machine has.*'5000TiB'"):
        resolve(config, SMALL, _layout(config))


@pytest.mark.parametrize("asked", ["5000TiB", 10**30])
def test_a_host_cache_that_the_machine_lacks_is_refused_at_once(asked: int | str) -> None:
    config = EngineConfig(model="m", memory="16MiB", host_cache=asked)
    with pytest.raises(ConfigError, match=rf"host_cache must be at most .* this machine has.*{asked!r}"):
        resolve(config, SMALL, _layout(config))


def test_a_folder_with_a_name_that_json_cannot_hold() -> None:
    config = EngineConfig(model="m\udcff", memory="16MiB")
    assert resolve(config, SMALL, _layout(config)).served_model_name == "m\ufffd"


def test_memory_that_is_not_available_states_the_share() -> None:
    config = EngineConfig(model="m", block_size=16)
    with pytest.raises(ConfigError, match=r"Given: 1.0 KiB, 50% of the memory available"):
        resolve(config, SMALL, _layout(config), available_bytes=2048)


def test_a_length_that_the_model_lacks_is_refused() -> None:
    config = EngineConfig(model="m", max_model_len=4097)
    with pytest.raises(ConfigError, match=r"max_model_len must be at most 4096.*Given: 4097"):
        resolve(config, SMALL, _layout(config))


def test_a_length_that_the_arena_lacks_states_both_ways_out() -> None:
    config = EngineConfig(model="m", memory="100kB", block_size=16, max_model_len=2000)
    layout = _layout(config)
    need = (1 + layout.pages_per_state + 125) * layout.page_bytes
    fits = (47 - layout.pages_per_state) * 16 + 1
    with pytest.raises(
        ConfigError, match=f"Set memory to {need} or more, or max_model_len to {fits} or less"
    ):
        resolve(config, SMALL, layout)


def test_a_memory_budget_buys_whole_pages() -> None:
    layout = paged_layout(K3, tensor_parallel=8)
    least = 34 * 1_769_472  # the dummy page, a state of 32 pages, one block
    budgets = {least: 34, least + 1_769_471: 34, 2 << 30: 1213}
    pages = {
        budget: resolve(EngineConfig(model="m", memory=budget), K3, layout).num_pages for budget in budgets
    }
    assert pages == budgets
    with pytest.raises(ConfigError, match=rf"at least 34 pages.* {least} bytes.*Given: memory {least - 1}"):
        resolve(EngineConfig(model="m", memory=least - 1), K3, layout)

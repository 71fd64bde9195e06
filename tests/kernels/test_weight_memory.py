"""Memory for weights: parts of mappings that don't touch one another, and go with the last tensor in them."""

from __future__ import annotations

import gc
import random
import weakref
from pathlib import Path

import pytest
import torch

from milepost.kernels.native import weight_memory as module
from milepost.kernels.native.weight_memory import weight_memory

CPU = torch.device("cpu")
HUGE_PAGE = 1 << 21


def test_parts_are_apart_and_keep_what_is_written() -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)  # noqa: T201 - pytest shows it with a failure
    choose = random.Random(seed)
    dtypes = (torch.float32, torch.bfloat16, torch.int8, torch.uint8)
    parts = []
    for number in range(60):
        shape = (choose.randint(1, 3), choose.randint(1, 70), choose.randint(1, 5000))
        part = weight_memory(*shape, dtype=choose.choice(dtypes), device=CPU)
        assert part.shape == shape
        assert part.is_contiguous()
        assert part.data_ptr() % 64 == 0
        parts.append(part.fill_(number))
    for number, part in enumerate(parts):
        assert (part == number).all()


def test_matrices_lie_in_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    if module._ADVICE is None:
        pytest.skip("only Linux takes advice about huge pages")
    monkeypatch.setattr(module, "_mappings", module._Mappings())
    first = weight_memory(1, 3, 5, dtype=torch.float32, device=CPU)
    assert first.data_ptr() % HUGE_PAGE == 0
    larger_than_a_mapping = weight_memory(1, 40, HUGE_PAGE, dtype=torch.uint8, device=CPU)
    assert larger_than_a_mapping.data_ptr() % HUGE_PAGE == 0


def test_a_mapping_goes_with_its_last_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    if module._ADVICE is None:
        pytest.skip("only Linux takes advice about huge pages")
    mappings = module._Mappings()
    monkeypatch.setattr(module, "_mappings", mappings)
    first, second = (weight_memory(1, 8, 8, dtype=torch.float32, device=CPU) for _ in range(2))
    mapping = mappings._last()
    assert mapping is not None
    alive = weakref.ref(mapping)
    del mapping, first
    gc.collect()
    assert alive() is not None
    second.zero_()
    del second
    gc.collect()
    assert alive() is None
    weight_memory(1, 8, 8, dtype=torch.float32, device=CPU).zero_()  # a new mapping


def test_without_huge_pages_memory_is_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ADVICE", None)
    assert weight_memory(2, 3, dtype=torch.bfloat16, device=CPU).shape == (2, 3)


def test_a_system_that_refuses_a_mapping_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_map", lambda num_bytes: None)
    monkeypatch.setattr(module, "_mappings", module._Mappings())
    assert weight_memory(2, 3, dtype=torch.int8, device=CPU).fill_(7).tolist() == [[7] * 3] * 2


def test_meta_tensors_take_no_memory() -> None:
    assert weight_memory(2, 1 << 40, dtype=torch.float32, device=torch.device("meta")).is_meta


def test_weights_take_what_they_hold_and_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("only Linux says what a process holds")
    monkeypatch.setattr(module, "_mappings", module._Mappings())
    before = _held(status)
    part = weight_memory(5 << 20, dtype=torch.uint8, device=CPU).zero_()
    assert _held(status) - before <= part.nbytes + 2 * HUGE_PAGE


def _held(status: Path) -> int:
    return int(status.read_text().split()[1]) * 4096

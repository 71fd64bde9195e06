"""What the machine offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.machine import available_memory, processor_name, usable_cores


def test_the_machine_has_memory_and_cores() -> None:
    assert available_memory() > 1 << 20
    assert usable_cores() >= 1


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("processor\t: 0\nmodel name\t: A Fast One: 9\n", "A Fast One: 9"),
        ("model name\t:\n", None),
        (None, None),
    ],
)
def test_a_processor_has_a_name(
    monkeypatch: pytest.MonkeyPatch, content: str | None, name: str | None
) -> None:
    def read_text(self: Path, encoding: str) -> str:
        if content is None:
            raise FileNotFoundError(self)
        return content

    monkeypatch.setattr(Path, "read_text", read_text)
    found = processor_name()
    assert found
    assert name in (None, found)

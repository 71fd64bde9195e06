"""The import contract itself: it must be able to fail. `make lint` runs it on the package."""

from __future__ import annotations

from tests.repository.import_table import Row, find_violations, parse_row

DATA = ["types", "errors"]


def test_a_row_expands_data() -> None:
    row = parse_row("engine | data scheduler | msgspec", DATA)
    assert row == Row("engine", frozenset({"types", "errors", "scheduler"}), frozenset({"msgspec"}))


def test_own_modules_below_the_package_and_stdlib_are_allowed() -> None:
    rows = [parse_row("engine | data | msgspec", DATA)]
    imports = [
        ("milepost.engine.core", "milepost.engine.queue"),
        ("milepost.engine.core", "milepost.types"),
        ("milepost.engine.core", "asyncio"),
        ("milepost.engine.core", "msgspec"),
        ("milepost.engine", "milepost"),
    ]
    assert find_violations(rows, imports) == []


def test_a_forbidden_import_is_named() -> None:
    rows = [parse_row("engine | data memory.layout | ", DATA)]
    imports = [
        ("milepost.engine.core", "milepost.runtime.arena"),
        ("milepost.engine.core", "milepost.memory.pool"),
        ("milepost.engine.core", "milepost.memory.layout"),
        ("milepost.engine.core", "torch"),
    ]
    assert find_violations(rows, imports) == [
        "milepost.engine.core imports milepost.memory.pool: not in the line of `engine`.",
        "milepost.engine.core imports milepost.runtime.arena: not in the line of `engine`.",
        "milepost.engine.core imports torch: not in the line of `engine`.",
    ]


def test_a_name_that_only_starts_alike_is_another_package() -> None:
    rows = [parse_row("engine | sim | ", DATA)]
    assert find_violations(rows, [("milepost.engine.core", "milepost.simulator")]) != []


def test_a_package_without_a_row_breaks() -> None:
    assert find_violations([], [("milepost.fresh", "milepost")]) == [
        "milepost.fresh has no line in the import table of pyproject.toml."
    ]

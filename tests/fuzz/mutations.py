"""Spoils a JSON value: something in it becomes another thing, or goes, or comes twice."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

__all__ = ["mutated"]

Path = list[Any]

NUMBERS = [
    *(0, -1, 1, 2, 17, 255, 256, 1 << 15, (1 << 31) - 1, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64),
    *(-(1 << 31), -(1 << 63), -(1 << 64), 10**40, 0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, 1.0000000001),
    *(float("nan"), float("inf"), float("-inf")),
]
TEXTS = [
    *(
        "",
        " ",
        "\x00",
        "\x7f",
        "\ud800",
        "\udfff\ud800",
        "\ufeff",
        "\u202e",
        "e\u0301" * 50,
        "\U0001d518" * 40,
        "👩‍👩‍👧‍👦" * 9,
    ),
    *(
        "<|open|>",
        "<|close|>response<|sep|>",
        "<|end_of_msg|>",
        "[EOS]",
        "{{ 7*7 }}",
        "{% for x in y %}",
        "%s%n",
    ),
    *(
        "../../etc/passwd",
        "null",
        "true",
        "NaN",
        "1e999",
        "\r\nX-Injected: 1",
        "a" * 5000,
        "\n" * 300,
        "'\";--",
    ),
]
NAMES = [
    "",
    "model",
    "modell",
    "__class__",
    "messages",
    "prompt",
    "max_tokens",
    "role",
    "content",
    "type",
    "\x00",
    "n",
]


def _deep(draw: random.Random) -> Any:
    value: Any = draw.choice([1, "x", None, []])
    for _ in range(draw.choice([3, 30, 200])):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def _any(draw: random.Random) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: draw.choice(NUMBERS),
        lambda: draw.choice(TEXTS),
        lambda: draw.choice([None, True, False, [], {}, [[]], [None], {"": {}}]),
        lambda: [draw.choice(NUMBERS) for _ in range(draw.choice([1, 3, 400]))],
        lambda: [draw.choice(TEXTS) for _ in range(draw.choice([1, 3, 60]))],
        lambda: {draw.choice(NAMES): draw.choice(TEXTS) for _ in range(draw.choice([1, 4]))},
        lambda: _deep(draw),
    ]
    return draw.choice(kinds)()


def _places(value: Any, path: Path) -> list[Path]:
    found = [path]
    if isinstance(value, dict):
        for key, item in value.items():
            found += _places(item, [*path, key])
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += _places(item, [*path, index])
    return found


def _holder(body: Any, path: Path) -> Any:
    for key in path[:-1]:
        body = body[key]
    return body


def _replace(body: Any, path: Path, draw: random.Random) -> None:
    _holder(body, path)[path[-1]] = _any(draw)


def _remove(body: Any, path: Path, draw: random.Random) -> None:
    del _holder(body, path)[path[-1]]


def _repeat(body: Any, path: Path, draw: random.Random) -> None:
    holder = _holder(body, path)
    item, times = holder[path[-1]], draw.choice([2, 5, 200])
    if isinstance(item, str | list):
        holder[path[-1]] = item * times
    elif isinstance(holder, list):
        holder.extend([item] * times)
    else:
        holder[path[-1]] = [item] * times


def _rename(body: Any, path: Path, draw: random.Random) -> None:
    holder = _holder(body, path)
    item = holder.pop(path[-1])
    if isinstance(holder, dict):
        holder[draw.choice([*NAMES, str(path[-1]).upper(), f"{path[-1]} "])] = item
    else:
        holder.insert(0, item)


def _move(body: Any, path: Path, draw: random.Random) -> None:
    """A copy of one part takes the place of another."""
    other = draw.choice(_places(body, []))
    part = body
    for key in other:
        part = part[key]
    _holder(body, path)[path[-1]] = copy.deepcopy(part)


def _add(body: Any, path: Path, draw: random.Random) -> None:
    holder = _holder(body, path)
    if isinstance(holder, dict):
        holder[draw.choice(NAMES)] = _any(draw)
    else:
        holder.insert(draw.randrange(len(holder) + 1), _any(draw))


def _change_number(body: Any, path: Path, draw: random.Random) -> None:
    holder = _holder(body, path)
    item = holder[path[-1]]
    if isinstance(item, int | float):
        holder[path[-1]] = draw.choice([-item, item + 1, item * 1000, str(item), float(item), bool(item)])
    else:
        _replace(body, path, draw)


_CHANGES = (_replace, _replace, _replace, _remove, _repeat, _rename, _move, _add, _change_number)


def mutated(body: Any, draw: random.Random) -> Any:
    """A copy of `body` with one to three changes; now and then another value altogether."""
    if draw.random() < 0.03:
        return _any(draw)
    body = copy.deepcopy(body)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        places = [path for path in _places(body, []) if path]
        if not places:
            return _any(draw)
        draw.choice(_CHANGES)(body, draw.choice(places), draw)
    return body

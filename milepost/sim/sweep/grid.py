"""A sweep's points from lists of options: every combination once, in a fixed order, all names checked.

    budgets  x  policies  x  evictions  x  layouts  x  match units  x  block sizes
    budgets  x  presets                             x  match units

Lists are written with commas; a comma inside parentheses belongs to a policy's parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

import msgspec

from milepost.byte_counts import parse_bytes
from milepost.error_text import nearest, one_of
from milepost.errors import ConfigError
from milepost.memory.named_layout import SIMULATED_LAYOUTS
from milepost.prefix.eviction import parse_eviction
from milepost.prefix.policies import parse_policy
from milepost.sim.clairvoyant.oracle import CLAIRVOYANT
from milepost.sim.runs import RunSpec
from milepost.sim.sweep.parts_by_name import full_preset_name

__all__ = [
    "UNLIMITED",
    "GridOptions",
    "budget_name",
    "check_eviction",
    "check_policy",
    "grid",
    "parse_budget",
    "parse_present",
    "point_name",
    "split_list",
]

T = TypeVar("T")

UNLIMITED = "unlimited"
MAX_POINTS = 10_000
_MAX_TOKENS = 1 << 30
_UNITS = (
    ("TB", 10**12),
    ("GB", 10**9),
    ("GiB", 1 << 30),
    ("MB", 10**6),
    ("MiB", 1 << 20),
    ("kB", 10**3),
)
_PRESENT = ("policy", "eviction", "layout", "preset", "match_unit", "block_size")


class GridOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Lists as they are written; each text may hold several items, and what is not given has its default.

    Attributes:
        budgets: byte counts such as "200GB", or "unlimited".
        policies: snapshot policies.
        evictions: eviction policies.
        layouts: names of layouts.
        presets: models of other engines, each in the place of a policy, an eviction and a layout.
        match_units: tokens between prefix keys.
        block_sizes: tokens of a KV block.
    """

    budgets: Sequence[str] = ()
    policies: Sequence[str] = ()
    evictions: Sequence[str] = ()
    layouts: Sequence[str] = ()
    presets: Sequence[str] = ()
    match_units: Sequence[str] = ()
    block_sizes: Sequence[str] = ()


def grid(options: GridOptions, base: RunSpec) -> tuple[RunSpec, ...]:
    """Every point that `options` ask for, by budget first; what they leave open is as in `base`.

    A preset finds its own block size; "unlimited" has no budget either and comes once, at the end. With
    presets and none of policies, evictions and layouts there are no points but the presets'.

    Args:
        options: the lists.
        base: all other settings, and defaults of the lists.

    Raises:
        ConfigError: an unknown name, a value that is none, or too many points.
    """
    budgets = _read("budget", options.budgets, parse_budget) or (base.budget_bytes,)
    units = _read("match_unit", options.match_units, _tokens("match_unit")) or (base.match_unit,)
    blocks = _read("block_size", options.block_sizes, _tokens("block_size")) or (base.block_size,)
    own = (
        _read("policy", options.policies, check_policy),
        _read("eviction", options.evictions, check_eviction),
        _read("layout", options.layouts, _name("layout", SIMULATED_LAYOUTS)),
    )
    presets = _read("preset", options.presets, full_preset_name)
    rows = [] if presets and not any(own) else _rows(own, base)
    if options.block_sizes and not rows:
        raise ConfigError(
            f"block_size is that of policies; a preset finds its own, or has a parameter for it. "
            f"Given: {blocks[0]}. Leave it out, or name a policy too."
        )
    count = len(budgets) * len(units) * (len(rows) * len(blocks) + len(presets))
    if count > MAX_POINTS:
        raise ConfigError(f"A sweep has at most {MAX_POINTS:,} points. Given: {count:,}. Leave some out.")
    sized = [{"match_unit": unit, "block_size": block} for unit, block in product(units, blocks)]
    bare = [{"match_unit": unit, "block_size": 0} for unit in units]
    limited = [preset for preset in presets if preset != UNLIMITED]
    points = [
        {"budget_bytes": budget, **row, **sizes}
        for budget in budgets
        for row, sizes in (*product(rows, sized), *product(map(_preset_row, limited), bare))
    ]
    if UNLIMITED in presets:
        points += [{"budget_bytes": None, **_preset_row(UNLIMITED), **sizes} for sizes in bare]
    return tuple(dict.fromkeys(msgspec.structs.replace(base, **point) for point in points))


def _rows(own: tuple[tuple[str, ...], ...], base: RunSpec) -> list[dict[str, str]]:
    policies, evictions, layouts = own
    return [
        {"policy": policy, "eviction": eviction, "layout": layout}
        for policy, eviction, layout in product(
            policies or (base.policy,), evictions or (base.eviction,), layouts or (base.layout,)
        )
    ]


def _preset_row(preset: str) -> dict[str, str]:
    return {"preset": preset}


# --- lists ------------------------------------------------------------------------------------------


def split_list(option: str, text: str) -> list[str]:
    """The items of `text`, which commas outside parentheses part.

    Raises:
        ConfigError: an empty item, or parentheses that don't match.
    """
    items, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            break
        if sign == "," and not depth:
            items.append(text[start:place].strip())
            start = place + 1
    items.append(text[start:].strip())
    if depth:
        raise ConfigError(f"{option}: the parentheses don't match. Given: {text!r:.100}.")
    if not all(items):
        raise ConfigError(f"{option}: an item of the list is empty. Given: {text!r:.100}.")
    return items


def _read(option: str, texts: Sequence[str], read: Callable[[str], T]) -> tuple[T, ...]:
    """All items of all texts, without repetitions."""
    return tuple(dict.fromkeys(read(item) for text in texts for item in split_list(option, text)))


def parse_budget(text: str) -> int | None:
    """Bytes of a budget, None for "unlimited".

    Raises:
        ConfigError: neither; with the nearest match.
    """
    if text.lower() == UNLIMITED:
        return None
    try:
        return parse_bytes(text, name="budget")
    except ConfigError as error:
        if text[:1].isalpha():
            hint = nearest(text, (UNLIMITED,))
            raise ConfigError(
                f"budget must be a number of bytes, such as 200GB, or {UNLIMITED}. "
                f"Given: {text!r:.100}.{hint}"
            ) from error
        raise


def budget_name(budget: int | None) -> str:
    """A budget as it is written: "400GB" (10^9 bytes), or "unlimited"."""
    if budget is None:
        return UNLIMITED
    for unit, factor in _UNITS:
        # 1600GB is what people write, 1.6TB what they would have to think about.
        whole = factor if unit in {"TB", "GiB", "MiB"} else factor // 1000
        if budget >= factor and budget % whole == 0:
            return f"{budget / factor:.3f}".rstrip("0").rstrip(".") + unit
    return f"{budget}B"


def _name(option: str, known: Collection[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ConfigError(one_of(option, text, known))
        return text

    return read


def _tokens(option: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = float(text) if text.isascii() and text.isdigit() and len(text) < 20 else math.nan
        if not 1 <= number <= _MAX_TOKENS:  # also refuses NaN
            raise ConfigError(
                f"{option} must be a number of tokens, 1 to {_MAX_TOKENS:,}. Given: {text!r:.100}."
            )
        return int(number)

    return read


def check_policy(text: str) -> str:
    """`text`, which must name a snapshot policy or be "clairvoyant".

    Raises:
        ConfigError: it does not; with the nearest match.
    """
    # Whether a policy's own budget holds a state is known when there is a model.
    return _known(text, partial(parse_policy, state_bytes=1, budget_bytes=1))


def check_eviction(text: str) -> str:
    """`text`, which must name an eviction policy or be "clairvoyant".

    Raises:
        ConfigError: it does not; with the nearest match.
    """
    return _known(text, parse_eviction)


def _known(text: str, parse: Callable[[str], object]) -> str:
    if text == CLAIRVOYANT:
        return text
    if CLAIRVOYANT in re.split(r"[+\s]+", text):
        raise ConfigError(
            f"{CLAIRVOYANT} can't be joined with other policies. Name it alone. Given: {text!r:.100}."
        )
    try:
        parse(text)
    except ConfigError as error:
        hint = nearest(text, (CLAIRVOYANT,))
        raise ConfigError(f"{error}{hint and f'{hint} It is known to simulate only.'}") from None
    return text


# --- one point --------------------------------------------------------------------------------------


def parse_present(text: str, base: RunSpec) -> RunSpec:
    """What runs today, as ``policy=turns+branch,eviction=lru`` or ``preset=vllm,match_unit=16``.

    Args:
        text: settings by name, parted by commas.
        base: everything else, the budget too.

    Raises:
        ConfigError: an unknown or repeated name, or a value that is none.
    """
    given: dict[str, str] = {}
    for item in split_list("present", text):
        name, equals, value = item.partition("=")
        key = name.strip().replace("-", "_")
        if not equals or key not in _PRESENT:
            raise ConfigError(
                f"present takes settings such as policy=turns+branch,eviction=lru or preset=vllm. "
                f"Given: {item!r:.100}.{nearest(key, _PRESENT)}"
            )
        if key in given:
            raise ConfigError(f"present takes {key} once. Given: {text!r:.100}.")
        given[key] = value.strip()
    if "preset" in given and not given.keys().isdisjoint({"policy", "eviction", "layout"}):
        raise ConfigError(
            f"present: a preset replaces policy, eviction and layout; leave one out. Given: {text!r:.100}."
        )
    options = GridOptions(
        policies=_listed(given, "policy"),
        evictions=_listed(given, "eviction"),
        layouts=_listed(given, "layout"),
        presets=_listed(given, "preset"),
        match_units=_listed(given, "match_unit"),
        block_sizes=_listed(given, "block_size"),
    )
    specs = grid(options, base)
    if len(specs) != 1:
        raise ConfigError(f"present is one setting of each kind. Given: {text!r:.100}.")
    return specs[0]


def _listed(given: dict[str, str], name: str) -> tuple[str, ...]:
    return (given[name],) if name in given else ()


def point_name(spec: RunSpec) -> str:
    """What tells a point from the others of its sweep, for messages: "400GB adaptive value paged"."""
    words = [budget_name(spec.budget_bytes)]
    words += [spec.preset] if spec.preset else [spec.policy, spec.eviction, spec.layout]
    if spec.match_unit:
        words.append(f"match unit {spec.match_unit}")
    if spec.block_size:
        words.append(f"block {spec.block_size}")
    return " ".join(words)

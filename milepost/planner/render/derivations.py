"""Where every number comes from, for a page: a list of which each line opens.

It works without scripts; with them it can be searched, and a link to a number opens it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape

from milepost.planner.worksheet import Derivation, number_text, value_text

__all__ = ["derivations_html"]

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_MOST_USERS = 12
_FEW = 60
"""Up to so many numbers, all groups are open."""


def derivations_html(derivations: Sequence[Derivation]) -> str:
    """One block a number, which opens, in groups by the first part of their names, which open too."""
    ids = {entry.name: f"d{place}" for place, entry in enumerate(derivations)}
    known = {entry.name: entry for entry in derivations}
    users: dict[str, list[str]] = {}
    for entry in derivations:
        for name in entry.inputs:
            users.setdefault(name, []).append(entry.name)
    groups: dict[str, list[str]] = {}
    for entry in derivations:
        part = entry.name.partition(".")[0] if "." in entry.name else ""
        groups.setdefault(part, []).append(_block(entry, known, ids, users.get(entry.name, [])))
    opened = len(derivations) <= _FEW
    return "".join(_group(part, blocks, opened=opened) for part, blocks in groups.items())


def _group(part: str, blocks: Sequence[str], *, opened: bool) -> str:
    heading = f"{escape(part or 'overall')} <small>{len(blocks):,}</small>"
    return (
        f'<details class="group"{" open" if opened else ""}><summary>{heading}</summary>'
        f"{''.join(blocks)}</details>"
    )


def _block(
    entry: Derivation, known: Mapping[str, Derivation], ids: Mapping[str, str], users: Sequence[str]
) -> str:
    rows: list[tuple[str, str]] = []
    if entry.formula:
        rows.append(("formula", f"<code>{_linked(entry.formula, known, ids)}</code>"))
        rows.append(("in numbers", f"<code>{_filled(entry, known)} = {escape(value_text(entry))}</code>"))
    rows += [("from", _input(known[name], ids)) for name in entry.inputs]
    if entry.source:
        rows.append(("source", f'<span class="about">{escape(entry.source)}</span>'))
    if users:
        shown = ", ".join(_link(name, ids) for name in users[:_MOST_USERS])
        more = f" and {len(users) - _MOST_USERS} more" if len(users) > _MOST_USERS else ""
        rows.append(("used in", shown + more))
    told = "".join(f"<dt>{name}</dt><dd>{html}</dd>" for name, html in rows)
    return (
        f'<details class="number-of" id="{ids[entry.name]}">'
        f"<summary><span>{escape(entry.name)}</span><small>{escape(entry.meaning)}</small>"
        f"<b>{escape(number_text(entry.value))}</b> <i>{escape(entry.unit)}</i></summary>"
        f"<dl>{told}</dl></details>"
    )


def _input(entry: Derivation, ids: Mapping[str, str]) -> str:
    return f"{_link(entry.name, ids)} = {escape(value_text(entry))}"


def _link(name: str, ids: Mapping[str, str]) -> str:
    return f'<a href="#{ids[name]}">{escape(name)}</a>'


def _linked(formula: str, known: Mapping[str, Derivation], ids: Mapping[str, str]) -> str:
    """The formula, whose names lead to their own blocks."""
    return _replaced(formula, known, lambda name: _link(name, ids))


def _filled(entry: Derivation, known: Mapping[str, Derivation]) -> str:
    """The formula with values in place of names."""
    return _replaced(entry.formula, known, lambda name: escape(number_text(known[name].value)))


def _replaced(formula: str, known: Mapping[str, Derivation], replacement: Callable[[str], str]) -> str:
    """The formula as markup with a replacement for each name of a number, `min` and `else` left alone."""
    parts, end = [], 0
    for match in _NAME.finditer(formula):
        if match[0] in known:
            parts += [escape(formula[end : match.start()]), replacement(match[0])]
            end = match.end()
    return "".join([*parts, escape(formula[end:])])

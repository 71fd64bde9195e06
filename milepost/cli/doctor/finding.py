"""What an examination finds."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

__all__ = ["Finding", "Level", "worst_of"]


class Level(Enum):
    """How much a finding matters.

    ``ok`` is as it should be, ``note`` is good to know, a ``warning`` costs speed or will fail some day, and
    with a ``problem`` a server does not start.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        topic: the part of the report it stands in.
        name: what was looked at.
        level: how much it matters.
        found: what it is.
        advice: what to do; empty where there is nothing to.
    """

    topic: str
    name: str
    level: Level
    found: str
    advice: str = ""


def worst_of(findings: Iterable[Finding]) -> Level:
    """The level that matters most."""
    order = [*Level]
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)

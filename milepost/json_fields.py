"""Fields of a JSON object, taken by name and type, with everything wrong noted instead of raised.

A reader of a file written by someone else takes what it knows, calls `JsonFields.finish` to find what
nobody took, and reports all problems at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from milepost.error_text import as_json, nearest

__all__ = ["JsonFields"]


class JsonFields:
    """One JSON object: takes fields by name and notes what is wrong with them.

    Args:
        values: the decoded object.
        path: what messages put before a field's name, such as ``text_config.``.
        problems: where problems are noted; nested objects share it.
    """

    def __init__(self, values: Mapping[str, Any], path: str, problems: list[str]) -> None:
        self._values = values
        self._path = path
        self._problems = problems
        self._known: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Names of all fields of the object."""
        return list(self._values)

    def problem(self, name: str, text: str) -> None:
        """Note a problem of the field `name`."""
        self._problems.append(f"{self._path}{name}: {text}")

    def optional(self, *names: str) -> object:
        """Value of the first of `names` that is there and not null, else None."""
        self._known.update(names)
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def section(self, name: str, *, required: bool = True) -> JsonFields:
        """A nested object; an empty one, with a problem noted, when it is missing or not an object."""
        value = self.optional(name)
        if value is None and required:
            self.problem(name, "is missing")
        elif value is not None and not isinstance(value, dict):
            self.problem(name, f"must be an object. Given: {as_json(value)}")
        content = value if isinstance(value, dict) else {}
        return JsonFields(content, f"{self._path}{name}.", self._problems)

    def integer(
        self, *names: str, minimum: int = 1, maximum: int | None = None, default: int | None = None
    ) -> int:
        """A whole number in a range; required unless a default is given."""
        value = self.optional(*names)
        if value is None and default is not None:
            return default
        top = math.inf if maximum is None else maximum
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= top:
            return value
        limit = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        self._mismatch(names, value, f"a whole number {limit}")
        return minimum

    def number(self, name: str, *, positive: bool = True) -> float:
        """A finite number, above zero when `positive`; required."""
        value = self.optional(name)
        number = float(value) if type(value) in (int, float) else math.nan  # type: ignore[arg-type]
        if not math.isfinite(number) or (positive and number <= 0):
            self._mismatch((name,), value, "a number above 0" if positive else "a finite number")
            return 1.0
        return number

    def boolean(self, name: str, *, default: bool | None = None) -> bool:
        """True or false; required unless a default is given."""
        value = self.optional(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, bool):
            self._mismatch((name,), value, "true or false")
            return False
        return value

    def choice(self, name: str, allowed: Iterable[str]) -> str:
        """One of some words; required."""
        value = self.optional(name)
        words = list(allowed)
        if value not in words:
            self._mismatch((name,), value, "one of " + ", ".join(map(repr, words)))
            return words[0]
        return str(value)

    def finish(self, harmless: frozenset[str], fixed: Mapping[str, tuple[object, ...]]) -> None:
        """Check the fields that nobody took."""
        for name, value in self._values.items():
            if value is None or name in self._known or name in harmless:
                continue
            if name not in fixed:
                self._unknown(name, value, self._known | set(fixed))
            elif not any(value == allowed and type(value) is type(allowed) for allowed in fixed[name]):
                wanted = " or ".join(as_json(allowed) for allowed in fixed[name])
                self.problem(name, f"only {wanted} is implemented. Given: {as_json(value)}")

    def _mismatch(self, names: tuple[str, ...], value: object, wanted: str) -> None:
        name = " or ".join(names)
        if value is None:
            self.problem(name, f"is missing; it must be {wanted}")
        else:
            self.problem(name, f"must be {wanted}. Given: {as_json(value)}")

    def _unknown(self, name: str, value: object, known: set[str]) -> None:
        advice = "Set it to null only if the model does not depend on it"
        given = f"Given: {as_json(value)}.{nearest(name, sorted(known))}"
        self.problem(name, f"is unknown and could change the maths. {given} {advice}")

"""Policies as they are written on the command line: ``name``, ``name(1, key=value)``, joined by ``+``."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from milepost.error_text import nearest
from milepost.errors import ConfigError

__all__ = ["Term", "parse_terms"]

_TERM = re.compile(r"\s*([a-z][a-z0-9-]*)\s*(?:\(([^()]*)\))?\s*")


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One name with its arguments, still as text.

    Attributes:
        option: the option that it was written for, for messages.
        name: the policy's name.
        arguments: (parameter, value) in the order in which they were written; "" where no parameter is named.
    """

    option: str
    name: str
    arguments: tuple[tuple[str, str], ...] = ()

    def bind(self, parameters: Sequence[str]) -> dict[str, str]:
        """Values by parameter; a value without a name is that of the first parameter.

        Raises:
            ConfigError: too many values, one given twice, or a parameter that is none of `parameters`.
        """
        bound: dict[str, str] = {}
        for index, (written, value) in enumerate(self.arguments):
            if not written and (index or not parameters):
                takes = f"only {parameters[0]} without a name" if parameters else "no parameters"
                raise ConfigError(f"{self.option}: {self.name} takes {takes}. Given: {value!r:.100}.")
            name = written or parameters[0]
            if name not in parameters:
                known = ", ".join(parameters) or "none"
                raise ConfigError(
                    f"{self.option}: {self.name} has no parameter {name!r}.{nearest(name, parameters)} "
                    f"Known: {known}."
                )
            if name in bound:
                raise ConfigError(f"{self.option}: {self.name} takes {name} once. Given: twice.")
            bound[name] = value
        return bound


def parse_terms(option: str, text: str) -> tuple[Term, ...]:
    """Read `text`, the value of `option`.

    Raises:
        ConfigError: it does not have the form; the message shows it.
    """
    return tuple(_parse_term(option, part) for part in text.split("+"))


def _parse_term(option: str, part: str) -> Term:
    match = _TERM.fullmatch(part)
    inside = "" if match is None else (match[2] or "")
    pairs = [_parse_argument(argument) for argument in inside.split(",")] if inside.strip() else []
    if match is None or not all(value for _, value in pairs):
        raise ConfigError(
            f"{option} takes names in lower case, with parameters in parentheses, joined by +, "
            f"such as turns+every(8192). Given: {part!r:.100}."
        )
    return Term(option=option, name=match[1], arguments=tuple(pairs))


def _parse_argument(argument: str) -> tuple[str, str]:
    name, equals, value = argument.partition("=")
    if not equals:
        return "", argument.strip()
    # "=3" has lost its name; without a value it is refused.
    return name.strip(), value.strip() if name.strip() else ""

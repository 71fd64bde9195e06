"""What a shell offers for an option's or an argument's value, where its type alone doesn't say."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from milepost.cli.shipped_model import SHIPPED_MODEL_NAME

__all__ = ["Completion", "models", "one_of_words"]

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]


def one_of_words(words: Iterable[str]) -> Completion:
    """Offers those of some words that go on as the given one begins."""

    def offered(
        _context: click.Context, _parameter: click.Parameter, begun: str
    ) -> list[CompletionItem[str]]:
        return [CompletionItem(word) for word in words if word.startswith(begun)]

    return offered


def models(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    """Offers the shipped model and, in its place once something else is begun, folders."""
    if begun and SHIPPED_MODEL_NAME.startswith(begun):
        return [CompletionItem(SHIPPED_MODEL_NAME)]
    return [CompletionItem(begun, type="dir")]

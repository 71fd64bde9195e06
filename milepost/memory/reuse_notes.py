"""What a user should know at start about how finely prefixes can be shared.

An engine whose block is long shares nothing of a shorter prompt, and from outside that looks like a cache
that is broken. So the numbers are said before the first request, as sentences of `ResolvedConfig.notes`.
"""

from __future__ import annotations

from milepost.byte_counts import format_bytes
from milepost.memory.layout import DEFAULT_BLOCK_SIZE, Layout

__all__ = ["reuse_notes"]

_EXAMPLE_UNIT = 16  # tokens; the option's default, where prompts are long enough for it


def reuse_notes(layout: Layout, max_model_len: int, match_unit: int | None = None) -> tuple[str, ...]:
    """Sentences about blocks and match units that are long for the sequences they are meant for.

    Args:
        layout: how blocks lie in pages.
        max_model_len: tokens of the longest sequence.
        match_unit: tokens between prefix keys; None where no prefix is kept.

    Returns:
        Nothing where blocks and keys are fine.
    """
    notes = []
    if layout.block_size > max_model_len:
        block = format_bytes(layout.pages_per_block * layout.page_bytes)
        notes.append(
            f"A KV block of {layout.block_size:,} tokens is longer than max_model_len {max_model_len:,}: "
            f"every sequence, however short, takes a whole one ({block}), and none is ever shared whole. "
            "Choose the paged layout, a smaller block_size, or a larger max_model_len."
        )
    if match_unit is None:
        return tuple(notes)
    # The last prompt token is always computed, and one more is drawn.
    longest_prompt = max_model_len - 1
    if match_unit >= longest_prompt:
        notes.append(
            f"No prefix can be hit at a prefix key: the first stands at token {match_unit:,} (match_unit), a "
            f"prompt holds at most {longest_prompt:,} tokens, and its last one is always computed. "
            + _finer(longest_prompt)
        )
    elif match_unit > DEFAULT_BLOCK_SIZE:
        notes.append(
            f"Prefix keys stand every {match_unit:,} tokens (match_unit): prompts that share fewer share "
            f"nothing at a key, and a prompt needs {match_unit + 1:,} tokens to hit one, since its last "
            "token is always computed. " + _finer(match_unit)
        )
    return tuple(notes)


def _finer(above: int) -> str:
    """What to set so that a prefix shorter than `above` tokens is shared at a key."""
    if above <= 1:
        return "Set max_model_len to more than 2, so that a prompt has a token that can be shared."
    example = min(_EXAMPLE_UNIT, 1 << ((above - 1).bit_length() - 1))
    return f"Set match_unit to less than {above:,}, such as {example}, to share shorter prefixes."

"""Text as it comes: whole characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.engine.detokenizer import Detokenizer, StopMatcher


class Bytes:
    """Token n stands for byte n; 256 is a special token without text."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""


class Pieces:
    """Token n stands for the n-th piece."""

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self._pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]


def emitted(pieces: Sequence[str | bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], str | None]:
    """What each piece makes visible, the flush last; ends early at a stop string."""
    detokenizer = Detokenizer(Pieces(pieces), stops)
    shown: list[str] = []
    for token_id in range(len(pieces)):
        text, stop = detokenizer.push([token_id])
        shown.append(text)
        if stop is not None:
            return shown, stop
    text, stop = detokenizer.flush()
    return [*shown, text], stop


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The rule, said without any state: the first to be complete wins, then the longest."""
    ends = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end - len(stop)], stop


def test_half_a_character_waits_for_its_other_half() -> None:
    shown, _ = emitted([b"a\xc3", b"\xa9\xf0\x9f", b"\x8e", b"\x89!"])
    assert shown == ["a", "é", "", "🎉!", ""]


def test_half_a_character_at_the_end_becomes_a_replacement() -> None:
    assert emitted([b"ok\xe2\x82"]) == (["ok", "\ufffd"], None)


def test_special_tokens_show_nothing() -> None:
    assert Detokenizer(Bytes()).push([104, 256, 105]) == ("hi", None)


def first_late_stop(text: str, stops: tuple[str, ...], early: int) -> tuple[str, str | None]:
    """As `first_stop`, of those that end behind the first `early` characters."""
    for end in range(early + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(derandomize=True, deadline=None, max_examples=500)
@given(
    st.text("ab", max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3).map(tuple),
    st.integers(0, 8),
    st.integers(1, 4),
)
def test_stop_strings_within_the_least_length_stop_nothing(
    text: str, stops: tuple[str, ...], least: int, at_once: int
) -> None:
    """One token a character, `at_once` of them in each output."""
    detokenizer = Detokenizer(Pieces(list(text)), stops, min_tokens=least)
    shown, stop = "", None
    for first in range(0, len(text), at_once):
        more, stop = detokenizer.push(range(first, min(first + at_once, len(text))))
        shown += more
        if stop is not None:
            break
    if stop is None:
        more, stop = detokenizer.flush()
        shown += more
    assert (shown, stop) == first_late_stop(text, stops, least)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(st.binary(max_size=5), max_size=12))
def test_any_bytes_in_any_pieces_give_what_decoding_them_at_once_gives(pieces: list[bytes]) -> None:
    shown, _ = emitted(pieces)
    assert "".join(shown) == b"".join(pieces).decode(errors="replace")


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.text(max_size=12), st.data())
def test_valid_text_is_never_shown_with_a_replacement(text: str, data: st.DataObject) -> None:
    encoded = text.encode(errors="ignore")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=6)))
    pieces = [encoded[a:b] for a, b in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    shown, _ = emitted(pieces)
    position = 0
    whole = encoded.decode()
    for piece in shown:
        assert whole[position : position + len(piece)] == piece
        position += len(piece)
    assert position == len(whole)


def test_text_that_might_become_a_stop_string_is_held_back_and_shown_when_it_does_not() -> None:
    shown, stop = emitted(["one E", "N", "X", " two EN"], ("END",))
    assert shown == ["one ", "", "ENX", " two ", "EN"]
    assert stop is None


def test_a_stop_string_across_tokens_ends_the_text_before_it() -> None:
    assert emitted(["a E", "N", "D b"], ("END",)) == (["a ", "", ""], "END")


def test_the_first_stop_string_to_be_complete_wins() -> None:
    assert emitted(["xabcd"], ("abcd", "bc")) == (["xa"], "bc")
    assert emitted(["x", "a", "b", "c"], ("abcd", "bc")) == (["x", "", "", "a"], "bc")


def test_of_two_that_end_together_the_longer_wins() -> None:
    assert emitted(["xab"], ("b", "ab")) == (["x"], "ab")
    assert emitted(["x", "a", "b"], ("b", "ab")) == (["x", "", ""], "ab")


def test_a_stop_string_of_repeats_is_found_wherever_it_starts() -> None:
    assert emitted(["a", "a", "a", "b"], ("aab",)) == (["", "", "a", ""], "aab")


def test_a_stop_string_may_end_in_a_character_that_comes_in_halves() -> None:
    assert emitted([b"say \xc3", b"\xa9", b" more"], ("é",)) == (["say ", ""], "é")


def test_a_stop_string_completed_by_the_flush_counts() -> None:
    assert emitted([b"a\xe2\x82"], ("\ufffd",)) == (["a", ""], "\ufffd")


@settings(derandomize=True, deadline=None, max_examples=500)
@given(
    st.lists(st.text("ab", max_size=4), max_size=10),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple),
)
def test_stop_strings_do_not_depend_on_token_borders(pieces: list[str], stops: tuple[str, ...]) -> None:
    shown, stop = emitted(pieces, stops)
    assert ("".join(shown), stop) == first_stop("".join(pieces), stops)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.lists(st.text("ab", max_size=3), max_size=10),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
)
def test_nothing_shown_is_taken_back_and_nothing_is_held_without_need(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    matcher = StopMatcher(stops)
    shown = text = ""
    for piece in pieces:
        new, stop = matcher.push(piece)
        shown, text = shown + new, text + piece
        if stop is not None:
            return
        held = text[len(shown) :]
        assert text.startswith(shown)
        # What is held is the longest end of the text that some stop string starts with.
        candidates = [n for n in range(len(text) + 1) if any(stop.startswith(text[n:]) for stop in stops)]
        assert len(text) - len(held) == candidates[0]


@pytest.mark.parametrize("length", [10, 100_000])
def test_a_long_stop_string_costs_no_more_per_character(length: int) -> None:
    """Counted in comparisons: each character takes a bounded number of steps, amortised."""
    matcher = StopMatcher(("a" * length + "b",))
    comparisons = 0

    class Counted(str):
        __slots__ = ()

        def __getitem__(self, index: object) -> str:
            nonlocal comparisons
            comparisons += 1
            return str.__getitem__(self, index)  # type: ignore[index]

    matcher._stops = [Counted(matcher._stops[0])]
    for _ in range(50):
        matcher.push("aaaac")
    assert comparisons < 4 * 250


def test_requests_with_the_same_stop_strings_are_prepared_once() -> None:
    """All choices of one request have them, and preparing takes the thread that every request waits for."""
    stops = tuple("ab" * 2000 + str(index) for index in range(16))
    first, second = StopMatcher(stops), StopMatcher(stops)
    assert all(one is other for one, other in zip(first._fallbacks, second._fallbacks, strict=True))
    assert StopMatcher((stops[0],) * 16).push(stops[0]) == ("", stops[0])


def test_a_stop_string_that_is_given_often_is_searched_for_once() -> None:
    assert len(StopMatcher(("a", "b", "a"))._stops) == 2

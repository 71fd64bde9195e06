"""Compiles grammars, and holds replies to them: which tokens may come next, over a model's vocabulary.

Built on llguidance (MIT), which parses with Earley's algorithm over lexemes that derivatives of regular
expressions match, and walks a trie of the vocabulary for a mask. Everything it does is bounded by `_LIMITS`
and by `milepost.grammar.bounds`: a grammar comes from a user.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from milepost.errors import ExecutionError, RequestError
from milepost.grammar.bounds import require_bounded
from milepost.types import Grammar

__all__ = ["GrammarCompiler", "Matcher", "Vocabulary"]

Mask = NDArray[np.bool_]

_MAX_KEPT = 128  # an evicted one is compiled again when its request is drawn for, on the engine's thread
_MAX_KEPT_CHARS = 4 << 20
_MAX_ERROR_CHARS = 600
# What a schema of some hundred properties or tools needs; hostile ones take less than a tenth of a second for
# a mask, and end with an error of their own.
_LIMITS = LLParserLimits(
    max_grammar_size=50_000,
    max_items_in_row=20_000,  # an object's optional properties make four each
    step_max_items=20_000,
    step_lexer_fuel=100_000,
    initial_lexer_fuel=500_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)
# The model picks how forced text is tokenised, as for all other text. The alternative asks the tokenizer for
# it in every step, with as much text as a user's grammar forces.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'
_WORN = "lexer error"  # begins the error of a lexer that is over a limit
_EXCERPT = re.compile(r"^\s*\d* ?\|", re.MULTILINE)
_PLACE = re.compile(r"^(?:at )?(\d+)\(\d+\): ")


class Vocabulary(Protocol):
    """All that is needed of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id that the tokenizer knows."""
        ...

    def special_name(self, token_id: int) -> str | None:
        """Name of a special token; None for an ordinary one or an unknown id."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of an ordinary token; empty for a special token or an unknown id."""
        ...


class Matcher:
    """What one reply has spelled so far, and what it may go on with. Not for two threads at once.

    Args:
        compiler: makes another start where this one's is worn.
        grammar: of the reply.
        start: a copy of the compiled grammar, before the first token.
    """

    def __init__(self, compiler: GrammarCompiler, grammar: Grammar, start: LLMatcher) -> None:
        self._compiler = compiler
        self._grammar = grammar
        self._matcher = start
        self._taken: list[int] = []
        self._is_own = False

    def mask(self) -> Mask:
        """Which tokens may come next: [vocab] bool; a stop token only where the grammar may end.

        Raises:
            ExecutionError: the grammar went over a limit, or leaves no token at all.
        """
        bits = _bits(self._matcher)
        if self._matcher.is_error():
            self._start_anew()
            bits = _bits(self._matcher)
            if self._matcher.is_error():
                raise ExecutionError(f"The reply's grammar can't go on: {_words(self._matcher.get_error())}.")
        mask = self._compiler.drawable(bits)
        if not mask.any():
            raise ExecutionError(
                "The reply's grammar leaves no token to draw. It names tokens that the model doesn't have."
            )
        return mask

    def take(self, token_id: int) -> None:
        """Let a drawn token pass.

        Raises:
            ExecutionError: the mask does not allow it, or the grammar went over a limit.
        """
        if not _takes(self._matcher, token_id):
            self._start_anew()
            if not _takes(self._matcher, token_id):
                words = _words(self._matcher.get_error())
                raise ExecutionError(f"The reply's grammar does not take token {token_id}: {words}.")
        self._taken.append(token_id)

    def _start_anew(self) -> None:
        """Go on with a lexer of its own where the shared one is worn.

        Copies share their lexer, which remembers all that any of them has seen, up to a limit. A reply must
        not fail for what others have spelled.
        """
        if self._is_own or not self._matcher.get_error().startswith(_WORN):
            return
        self._compiler.forget(self._grammar)
        fresh = self._compiler.compile(self._grammar)
        if not fresh.is_error() and fresh.consume_tokens(self._taken):
            self._matcher, self._is_own = fresh, True


class GrammarCompiler:
    """Compiles grammars for one tokenizer and one model. Safe from any threads.

    The tokenizer's table is built when the first grammar comes, which takes some tenths of a second.

    Args:
        vocabulary: the tokenizer's side.
        vocab_size: of the model's logits; ids that the tokenizer doesn't know are never allowed.
        stop_token_ids: the engine's: what may be drawn where a grammar ends.
    """

    def __init__(self, vocabulary: Vocabulary, *, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._stop_token_ids = tuple(stop_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._known_bits: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._kept: OrderedDict[str, LLMatcher | str] = OrderedDict()
        self._kept_chars = 0
        self._lock = threading.Lock()  # of what is kept, and never held for long
        self._compiling = threading.Lock()  # one grammar at a time is compiled for a check

    @property
    def num_kept(self) -> int:
        """Grammars that are ready, or known to be wrong."""
        with self._lock:
            return len(self._kept)

    def check(self, grammar: Grammar, *, param: str | None = "grammar") -> None:
        """Refuse what can't be compiled or spells nothing; takes milliseconds, seldom more than a second.

        A grammar that was checked is most often ready when its request starts.

        Args:
            grammar: what a request brings.
            param: the request's field at fault.

        Raises:
            RequestError: with the compiler's own words.
        """
        if not self._stop_token_ids:
            raise RequestError(
                "This model has no token that ends a reply, so it takes no grammar.", param=param
            )
        kept = self._lookup(grammar)
        if kept is None:
            try:
                require_bounded(grammar)
            except RequestError as error:
                raise RequestError(str(error), param=param) from None
            with self._compiling:
                kept = self._lookup(grammar) or self._keep(grammar, self._try(grammar))
        if isinstance(kept, str):
            raise RequestError(f"The grammar can't be used: {kept}.", param=param)

    def matcher(self, grammar: Grammar) -> Matcher:
        """What holds one reply to a grammar.

        Raises:
            RequestError: as `check`.
        """
        kept = self._lookup(grammar)
        if kept is None:
            require_bounded(grammar)
            kept = self._keep(grammar, self._try(grammar))
        if isinstance(kept, str):
            raise RequestError(f"The grammar can't be used: {kept}.", param="grammar")
        return Matcher(self, grammar, kept.deep_copy())

    def compile(self, grammar: Grammar) -> LLMatcher:
        """A grammar compiled once more, with nothing that others have seen; it may hold an error."""
        text = LLMatcher.grammar_from_lark(grammar.lark + _OPTIONS)
        return LLMatcher(self._table(), text, log_level=0, limits=_LIMITS)

    def forget(self, grammar: Grammar) -> None:
        """Compile a grammar anew when it comes again."""
        with self._lock:
            if self._kept.pop(grammar.lark, None) is not None:
                self._kept_chars -= len(grammar.lark)

    def drawable(self, bits: NDArray[np.uint8]) -> Mask:
        """One bit a token of the table as [vocab] bool, without ids that stand for nothing."""
        known = bits[: self._known_bits.size] & self._known_bits
        return np.unpackbits(known, count=self._vocab_size, bitorder="little").view(np.bool_)

    def _try(self, grammar: Grammar) -> LLMatcher | str:
        """A compiled grammar that has a first token, or what is wrong with it."""
        start = self.compile(grammar)
        if start.is_error():
            return _reason(start)
        # The copy goes a step, and its lexer is the start's: the first reply finds it warm.
        first = start.deep_copy()
        bits = _bits(first)
        if first.is_error():
            return _reason(first)
        return start if self.drawable(bits).any() else "there is no token that it could begin with"

    def _lookup(self, grammar: Grammar) -> LLMatcher | str | None:
        with self._lock:
            kept = self._kept.get(grammar.lark)
            if kept is not None:
                self._kept.move_to_end(grammar.lark)
            return kept

    def _keep(self, grammar: Grammar, compiled: LLMatcher | str) -> LLMatcher | str:
        """Keep a grammar, and let those go that were not asked for the longest."""
        with self._lock:
            if grammar.lark not in self._kept:
                self._kept_chars += len(grammar.lark)
            self._kept[grammar.lark] = compiled
            while len(self._kept) > _MAX_KEPT or self._kept_chars > _MAX_KEPT_CHARS:
                text, _ = self._kept.popitem(last=False)
                self._kept_chars -= len(text)
        return compiled

    def _table(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                table = _Table(self._vocabulary, self._vocab_size, self._stop_token_ids)
                self._known_bits = np.packbits([bool(word) for word in table.tokens], bitorder="little")
                self._tokenizer = LLTokenizer(
                    TokenizerWrapper(table), eos_token=list(self._stop_token_ids) or None
                )
            return self._tokenizer


class _Table:
    """The vocabulary as llguidance reads it, once."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        known = min(vocab_size, vocabulary.vocab_size)
        names = [vocabulary.special_name(token_id) for token_id in range(known)]
        self.tokens = [
            vocabulary.token_bytes(token_id) if name is None else name.encode() or b"?"
            for token_id, name in enumerate(names)
        ] + [b""] * (vocab_size - known)
        stops = set(stop_token_ids)
        self.special_token_ids = [
            token_id for token_id, name in enumerate(names) if name is not None or token_id in stops
        ]
        self.eos_token_id = min(stops, default=0)
        self.bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens of a forced text; never needed, as nothing is forced."""
        raise NotImplementedError


def _bits(matcher: LLMatcher) -> NDArray[np.uint8]:
    """Which tokens of the table may come next, one bit a token, the lowest first."""
    return np.frombuffer(matcher.compute_bitmask(), np.uint8)


def _takes(matcher: LLMatcher, token_id: int) -> bool:
    """Let a token pass. One that ends the reply too early only shows in the matcher's state."""
    return matcher.consume_token(token_id) and not matcher.is_error()


def _reason(failed: LLMatcher) -> str:
    """Why a grammar could not begin."""
    error = failed.get_error()
    return "there is nothing that it allows" if error.startswith("NoExtension") else _words(error)


def _words(error: str) -> str:
    """What llguidance says is wrong, without the grammar around it and its inner state."""
    error = error.partition("\n<")[0]
    excerpt = _EXCERPT.search(error)
    if excerpt is not None:
        error = error[: excerpt.start()]
    error = _PLACE.sub(lambda place: "" if place[1] == "1" else f"line {place[1]}: ", error)
    error = " ".join(error.split()).rstrip(".")
    return error if len(error) <= _MAX_ERROR_CHARS else f"{error[:_MAX_ERROR_CHARS]}..."

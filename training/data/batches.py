"""Token batches with per-token loss weights and the ranges of the answers in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from training.chat import ChatForm
from training.data.dialogues import Dialogue, DialogueWriter, Span, drill
from training.tokenizer import ToyTokenizer

ANSWER_WEIGHT = 1.0
FIRST_WEIGHT = 4.0
"""The first token of a recalled answer needs the fact; the others mostly continue it."""
DIALOGUE_WEIGHT = 0.01
TEXT_WEIGHT = 0.1
_KEEP = 0.1
"""Share of the tokens outside answers that are used, for the others too; it saves most of the output head."""


@dataclass
class Batch:
    """Next-token prediction on B sequences of T tokens.

    Attributes:
        inputs: [B, T] ids.
        targets: [B, T] ids, one ahead.
        weights: [B, T] float loss weights.
        spans: Per row, the answers, as positions in ``targets``.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    spans: list[list[Span]]


@dataclass(frozen=True)
class Mix:
    """How often a sequence is text or a copying drill; otherwise it is a dialogue."""

    text: float = 0.1
    drill: float = 0.15


class BatchMaker:
    """Makes batches from a seed; the same step always gets the same batch."""

    def __init__(self, tokenizer: ToyTokenizer, texts: Sequence[str], seed: int) -> None:
        self._form = ChatForm(tokenizer)
        self._seed = seed
        self._bos = tokenizer.specials["[BOS]"]
        self._pad = tokenizer.specials["[PAD]"]
        self._coin = torch.Generator()
        self._stream = [token for text in texts for token in [self._bos, *tokenizer.encode(text)]]

    def make(self, step: int, batch: int, length: int, mix: Mix) -> Batch:
        """A batch of ``batch`` sequences of ``length`` tokens."""
        rng = Random(f"{self._seed}-{step}")
        self._coin.manual_seed(rng.getrandbits(32))
        rows = [self._sequence(rng, length + 1, mix) for _ in range(batch)]
        ids = torch.tensor([row.ids for row, _ in rows])
        weights = torch.stack([self._weights(row, base) for row, base in rows])
        spans = [[Span(span.start - 1, span.stop - 1, span.kind) for span in row.spans] for row, _ in rows]
        return Batch(ids[:, :-1], ids[:, 1:], weights[:, 1:], spans)

    def _sequence(self, rng: Random, length: int, mix: Mix) -> tuple[Dialogue, float]:
        """One row and the weight of its tokens outside answers."""
        kind = rng.random()
        if kind < mix.text and len(self._stream) > length:
            start = rng.randrange(len(self._stream) - length)
            return Dialogue([self._bos, *self._stream[start : start + length - 1]]), TEXT_WEIGHT
        if kind < mix.text + mix.drill:
            return drill(self._form, rng, length), DIALOGUE_WEIGHT
        return DialogueWriter(self._form, rng, length).write(), DIALOGUE_WEIGHT

    def _weights(self, row: Dialogue, base: float) -> Tensor:
        weights = (torch.rand(len(row.ids), generator=self._coin) < _KEEP) * (base / _KEEP)
        for span in row.spans:
            weights[span.start : span.stop] = ANSWER_WEIGHT
            if span.kind.startswith(("recall", "again")):
                weights[span.start] = FIRST_WEIGHT
        return weights

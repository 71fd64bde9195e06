"""Sequences fed to a model runner token by known token, with snapshots, copies and poisoned pages."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from milepost.kernels.precision import compute_dtype
from milepost.models import Model, StepInputs, StepOutput
from milepost.runtime.model_runner import ModelRunner
from milepost.testing.poisoning_executor import PoisoningExecutor
from milepost.types import Batch, BatchResult, Row, SnapshotOrder
from tests.models.paged_batches import layout_of

NUM_PAGES = 1500


class Recorder:
    """A model that keeps the logits of every token of its last step."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.logits = torch.empty(0)

    def forward(self, inputs: StepInputs) -> StepOutput:
        every = replace(inputs, sample_index=torch.arange(inputs.ragged.num_tokens))
        output = self._model.forward(every)
        self.logits = output.logits
        return StepOutput(output.logits[inputs.sample_index], output.finite)


@dataclass
class KnownSequence:
    """One sequence: where it lies, how far it is, what it left and what the model said."""

    tokens: Sequence[int]
    blocks: list[int]
    state: list[int]
    computed: int = 0
    logits: list[Tensor] = field(default_factory=list)
    snapshots: dict[int, list[int]] = field(default_factory=dict)  # position -> pages


class SnapshotRuns:
    """Known sequences on a runner whose unused pages are NaN.

    Args:
        model: what runs.
        block_size: tokens of a page; the aligned layout takes more.
        layout: name of the layout.
    """

    def __init__(self, model: Model, block_size: int = 16, layout: str = "paged") -> None:
        dtype, wide = model.dtype, compute_dtype(model.dtype)
        self.layout = layout_of(model, layout, block_size)
        self.recorder = Recorder(model)
        self.runner = ModelRunner(
            self.recorder, self.layout, NUM_PAGES, kv_dtype=dtype, conv_dtype=dtype, recurrent_dtype=wide
        )
        self._free = random.Random(0).sample(range(1, NUM_PAGES), NUM_PAGES - 1)
        self._executor = PoisoningExecutor(self.runner, self.runner.arena, free_pages=lambda: self._free)
        self._copies: list[tuple[int, int]] = []
        self._steps = 0
        self.sequences: dict[str, KnownSequence] = {}

    def start(self, name: str, tokens: Sequence[int]) -> None:
        """A cold sequence."""
        self.sequences[name] = KnownSequence(tokens, self._blocks(len(tokens)), self._state())

    def resume(self, name: str, source: str, position: int, tokens: Sequence[int]) -> None:
        """A sequence that goes on from a snapshot of another one, whose first `position` tokens it shares."""
        old, size = self.sequences[source], self.layout.block_size
        shared = old.blocks[: position // size]
        new = KnownSequence(tokens, [*shared, *self._blocks(len(tokens) - len(shared) * size)], self._state())
        new.computed = position
        self._copies += zip(old.snapshots[position], new.state, strict=True)
        if position % size:
            self._copies.append((old.blocks[position // size], new.blocks[position // size]))
        self.sequences[name] = new

    def step(
        self, counts: Mapping[str, int], snapshots: Mapping[str, Sequence[int]] | None = None
    ) -> BatchResult:
        """Advance sequences by so many tokens each, leaving snapshots after these positions."""
        rows = tuple(
            self._row(name, count, (snapshots or {}).get(name, ())) for name, count in counts.items()
        )
        result = self._executor.run(Batch(step=self._steps, rows=rows, copies=tuple(self._copies)))
        self._copies.clear()
        self._steps += 1
        logits = torch.split(self.recorder.logits, list(counts.values()))
        for (name, count), part in zip(counts.items(), logits, strict=True):
            self.sequences[name].computed += count
            self.sequences[name].logits.append(part)
        return result

    def run(self, name: str, budget: int, positions: Sequence[int]) -> None:
        """Run a sequence to its end, `budget` tokens a step; all snapshots must be reported."""
        sequence = self.sequences[name]
        while sequence.computed < len(sequence.tokens):
            start = sequence.computed
            count = min(budget, len(sequence.tokens) - start)
            here = [position for position in positions if start < position <= start + count]
            (result,) = self.step({name: count}, {name: here}).rows
            assert result.error is None
            assert list(result.snapshots) == here

    def rest(self) -> dict[str, int]:
        """Tokens that each sequence has not computed yet, those with none left out."""
        left = {name: len(each.tokens) - each.computed for name, each in self.sequences.items()}
        return {name: count for name, count in left.items() if count}

    def logits_of(self, name: str) -> Tensor:
        """Of all tokens that it computed itself: [tokens, vocab]."""
        return torch.cat(self.sequences[name].logits)

    def _row(self, name: str, count: int, positions: Sequence[int]) -> Row:
        sequence = self.sequences[name]
        for position in positions:
            sequence.snapshots[position] = self._state()
        return Row(
            request_id=name,
            start=sequence.computed,
            token_ids=tuple(sequence.tokens[sequence.computed : sequence.computed + count]),
            block_table=sequence.blocks,
            state_table=sequence.state,
            samples=False,
            snapshots=tuple(
                SnapshotOrder(position=position, pages=tuple(sequence.snapshots[position]))
                for position in positions
            ),
        )

    def _blocks(self, num_tokens: int) -> list[int]:
        return [self._free.pop() for _ in range(self.layout.blocks_for(num_tokens))]

    def _state(self) -> list[int]:
        return [self._free.pop() for _ in range(self.layout.pages_per_state)]

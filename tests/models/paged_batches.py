"""Run a model over sequences whose pages lie shuffled in one poisoned arena, in any batch shape."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from milepost.kernels.paging import PagedKv, Ragged
from milepost.kernels.precision import compute_dtype
from milepost.memory.layout import TiledLayout
from milepost.memory.named_layout import named_layout
from milepost.models import Model, StepInputs
from milepost.runtime.arena import Arena


def layout_of(model: Model, name: str, block_size: int) -> TiledLayout:
    """The layout for pages in the model's own dtypes; the aligned one takes more than `block_size` tokens."""
    return named_layout(
        name,
        model.spec,
        block_size=block_size,
        kv_itemsize=model.dtype.itemsize,
        conv_itemsize=model.dtype.itemsize,
        recurrent_itemsize=compute_dtype(model.dtype).itemsize,
    )


class PagedBatches:
    """Sequences of token ids, each advanced by any number of tokens a step.

    Attributes:
        layout: how the pages are cut.
        arena: all pages, poisoned before anything is written.
        logits: logits of each sequence's tokens, one tensor a step.
        samples: which tokens of the next step get logits; None for all.
        finite: whether each row of the last step was finite.

    Args:
        model: what runs.
        sequences: token ids of each sequence.
        block_size: tokens of a page.
        seed: of the order in which pages are handed out.
        layout: name of the layout.
    """

    def __init__(
        self,
        model: Model,
        sequences: Sequence[Sequence[int]],
        block_size: int = 8,
        seed: int = 0,
        layout: str = "paged",
    ) -> None:
        self._model = model
        self._sequences = sequences
        dtype, wide = model.dtype, compute_dtype(model.dtype)
        self.layout = layout_of(model, layout, block_size)
        self.samples: Sequence[int] | None = None
        self.finite: list[bool] = []
        self._computed = [0] * len(sequences)
        self.logits: list[list[Tensor]] = [[] for _ in sequences]
        blocks = [self.layout.blocks_for(len(sequence)) for sequence in sequences]
        num_pages = 1 + sum(blocks) + len(sequences) * self.layout.pages_per_state
        self.arena = Arena(self.layout, num_pages, kv_dtype=dtype, conv_dtype=dtype, recurrent_dtype=wide)
        self.arena.poison_all()
        free = list(range(1, num_pages))
        random.Random(seed).shuffle(free)
        self._blocks = [[free.pop() for _ in range(count)] for count in blocks]
        self._states = [[free.pop() for _ in range(self.layout.pages_per_state)] for _ in sequences]

    def step(self, counts: Mapping[int, int]) -> None:
        """Advance sequence i by ``counts[i]`` tokens, rows in the mapping's order, and keep all logits."""
        tokens: list[int] = []
        cu_seqlens, starts = [0], []
        for index, count in counts.items():
            start = self._computed[index]
            tokens += self._sequences[index][start : start + count]
            starts.append(start)
            cu_seqlens.append(len(tokens))
            self._computed[index] += count
        width = max(len(self._blocks[index]) for index in counts)
        blocks = [self._blocks[index] + [0] * (width - len(self._blocks[index])) for index in counts]
        inputs = StepInputs(
            token_ids=torch.tensor(tokens),
            ragged=Ragged(torch.tensor(cu_seqlens), torch.tensor(starts)),
            state=self.arena.states(torch.tensor([self._states[index] for index in counts])),
            kv=PagedKv(self.arena.kv, torch.tensor(blocks)),
            sample_index=torch.tensor(range(len(tokens)) if self.samples is None else self.samples).long(),
        )
        output = self._model.forward(inputs)
        self.finite = output.finite.tolist()
        logits = output.logits
        for row, index in enumerate(counts):
            rows = slice(cu_seqlens[row], cu_seqlens[row + 1]) if self.samples is None else slice(None)
            self.logits[index].append(logits[rows])

    def pages(self) -> Tensor:
        """A copy of the arena, one row of bytes a page."""
        return self.arena.bytes.clone().view(self.arena.num_pages, -1)

    def pages_of(self, index: int, num_tokens: int) -> list[int]:
        """Pages of a sequence's state and of its first `num_tokens` tokens."""
        return self._states[index] + self._blocks[index][: self.layout.blocks_for(num_tokens)]

    def run(self, steps: Sequence[Mapping[int, int]]) -> list[Tensor]:
        """Run the steps, then what is left one sequence after the other; logits of each sequence."""
        for counts in steps:
            self.step(counts)
            assert all(self.finite)
        for index, sequence in enumerate(self._sequences):
            if self._computed[index] < len(sequence):
                self.step({index: len(sequence) - self._computed[index]})
        return [torch.cat(parts) for parts in self.logits]

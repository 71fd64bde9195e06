"""Measures a checkpoint folder on seeded cases: the share of greedy answers that equal the expected string.

``python -m training.evaluate milepost/assets/milepost-toy-k3``

A greedy answer equals the expected one if and only if every expected token, the closing markers included, is
the most likely one given those before it. So one forward pass over prompt and answer decides a case.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from training.cases import SHORT_TASKS, Case, make_cases
from training.chat import ChatForm
from training.export import load_checkpoint
from training.model import KimiK3ForConditionalGeneration
from training.tokenizer import ToyTokenizer

DISTANCES = (0, 256, 512, 1024, 2048, 4096)
_TOKENS_AT_ONCE = 8192


@dataclass(frozen=True)
class Result:
    """Right answers of one kind of case."""

    kind: str
    distance: int
    right: int
    total: int

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.right / self.total


class Evaluator:
    """Answers cases with a model."""

    def __init__(self, model: KimiK3ForConditionalGeneration, tokenizer: ToyTokenizer) -> None:
        self._model, self._tokenizer, self._form = model, tokenizer, ChatForm(tokenizer)

    def evaluate(self, cases: Sequence[Case]) -> int:
        """How many of ``cases`` are answered right."""
        return sum(self.right(cases))

    def right(self, cases: Sequence[Case]) -> list[bool]:
        """Which of ``cases`` are answered right, in their order."""
        encoded = [self._encode(case) for case in cases]
        right = [False] * len(cases)
        for group in _grouped(encoded):
            for index, is_right in zip(group, self._right([encoded[i] for i in group]), strict=True):
                right[index] = is_right
        return right

    def answer(self, case: Case, limit: int = 64) -> str:
        """The greedy answer, decoded token by token without a cache (slow; for looking at)."""
        ids = self._form.prompt(list(case.messages))
        start = len(ids)
        while len(ids) < start + limit and ids[-1] != self._form.end_of_msg:
            with torch.inference_mode():
                ids.append(int(self._model(torch.tensor([ids]))[0, -1].argmax()))
        return self._tokenizer.decode(ids[start:]).split("<|close|>")[0]

    def _encode(self, case: Case) -> tuple[list[int], int]:
        """Prompt and answer as ids, and where the answer starts."""
        prompt = self._form.prompt(list(case.messages))
        return prompt + self._form.answer(case.answer), len(prompt)

    @torch.inference_mode()
    def _right(self, group: list[tuple[list[int], int]]) -> list[bool]:
        """Padding at the end changes nothing before it, so rows of different length share a pass."""
        longest = max(len(ids) for ids, _ in group)
        rows = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in group])
        asked = torch.zeros_like(rows, dtype=torch.bool)
        for row, (ids, start) in enumerate(group):
            asked[row, start - 1 : len(ids) - 1] = True
        right = self._model(rows, asked).argmax(-1) == rows[asked.roll(1, dims=1)]
        return [bool(part.all()) for part in torch.split(right, [len(ids) - start for ids, start in group])]


def _grouped(encoded: list[tuple[list[int], int]]) -> Iterator[list[int]]:
    """Indices of cases of similar length, of a bounded number of tokens together."""
    group: list[int] = []
    for index in sorted(range(len(encoded)), key=lambda i: len(encoded[i][0])):
        if group and len(encoded[index][0]) * (len(group) + 1) > _TOKENS_AT_ONCE:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def evaluate_all(evaluator: Evaluator, tokenizer: ToyTokenizer, count: int, seed: int) -> list[Result]:
    """Recall at every distance, then the short tasks."""
    plan = [("recall", distance) for distance in DISTANCES]
    plan += [("sentence", distance) for distance in DISTANCES if distance <= 1024]
    plan += [(kind, 0) for kind in SHORT_TASKS]
    results = []
    for kind, distance in plan:
        cases = make_cases(kind, count, seed, tokenizer.count, distance)
        result = Result(kind, distance, evaluator.evaluate(cases), count)
        results.append(result)
        print(f"{kind:10} {distance:5} {result.right:4} / {count} = {result.accuracy:.1%}", flush=True)
    return results


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=100, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the results here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = ToyTokenizer.load(args.checkpoint)
    evaluator = Evaluator(load_checkpoint(args.checkpoint), tokenizer)
    results = evaluate_all(evaluator, tokenizer, args.count, args.seed)
    if args.json:
        rows = [{**vars(result), "accuracy": result.accuracy} for result in results]
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

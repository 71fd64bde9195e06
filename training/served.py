"""Asks the served engine what ``training/evaluate.py`` asks the trained module, and compares case by case.

``python -m training.served milepost/assets/milepost-toy-k3``

The module sees prompt and answer in one pass with float32 attention over everything; the engine answers
token by token, many cases together, from pages of KV and states. Their answers must agree.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from milepost.llm import LLM
from milepost.types import SamplingParams
from training.cases import Case, make_cases
from training.evaluate import DISTANCES, Evaluator
from training.export import load_checkpoint
from training.tokenizer import ToyTokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=64)


@dataclass(frozen=True)
class Agreement:
    """Recall at one distance: right answers of the served engine and of the trained module."""

    distance: int
    served: int
    trained: int
    differing: int
    total: int


def served_answers(llm: LLM, cases: Sequence[Case]) -> list[str]:
    """Greedy answers of the engine, all cases scheduled together."""
    conversations = [
        [{"role": message.role, "content": message.content} for message in case.messages] for case in cases
    ]
    return [chat.reply.content or "" for chat in llm.chat_all(conversations, GREEDY)]


def compare(llm: LLM, evaluator: Evaluator, tokenizer: ToyTokenizer, distance: int, count: int) -> Agreement:
    """Ask both the same recall cases."""
    cases = make_cases("recall", count, 1, tokenizer.count, distance)
    served = [answer == case.answer for answer, case in zip(served_answers(llm, cases), cases, strict=True)]
    trained = evaluator.right(cases)
    differing = sum(ours != theirs for ours, theirs in zip(served, trained, strict=True))
    return Agreement(distance, sum(served), sum(trained), differing, count)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=100, help="cases at each distance")
    parser.add_argument("--memory", default="256MiB")
    args = parser.parse_args()
    tokenizer = ToyTokenizer.load(args.checkpoint)
    evaluator = Evaluator(load_checkpoint(args.checkpoint), tokenizer)
    print("distance  served  trained  differing")
    with LLM(args.checkpoint, memory=args.memory) as llm, torch.inference_mode():
        for distance in DISTANCES:
            row = compare(llm, evaluator, tokenizer, distance, args.count)
            served, trained = row.served / row.total, row.trained / row.total
            print(f"{row.distance:8}  {served:6.1%}  {trained:7.1%}  {row.differing:9}", flush=True)


if __name__ == "__main__":
    main()

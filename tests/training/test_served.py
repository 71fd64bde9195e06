"""The shipped model: what the engine answers is what the trained module answers, case by case."""

from __future__ import annotations

import torch

from milepost.cli.shipped_model import shipped_model
from milepost.llm import LLM
from training.evaluate import Evaluator
from training.export import load_checkpoint
from training.served import compare
from training.tokenizer import ToyTokenizer


def test_the_served_model_recalls_as_the_trained_one() -> None:
    folder = shipped_model()
    tokenizer = ToyTokenizer.load(folder)
    evaluator = Evaluator(load_checkpoint(folder), tokenizer)
    with LLM(folder, memory="64MiB", threads=1) as llm, torch.inference_mode():
        near = compare(llm, evaluator, tokenizer, distance=0, count=12)
        far = compare(llm, evaluator, tokenizer, distance=512, count=6)
    assert near.differing == far.differing == 0
    # It was trained for this; were it broken on both sides, agreeing would mean nothing.
    assert near.served >= 9
    assert far.served >= 4

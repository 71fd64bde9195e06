"""Trains the small model: seeded, resumable, with a JSON line of progress every few steps.

``python -m training.train --texts DEBS --state STATE --minutes 100``
"""

import argparse
import json
import signal
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from training import cases, circuit, tokenizer, words
from training.config import ToyConfig
from training.data import texts
from training.data.batches import ANSWER_WEIGHT, Batch, BatchMaker, Mix
from training.layers import Linear
from training.model import KimiK3ForConditionalGeneration
from training.optimizer import Muon, split_parameters
from training.tokenizer import ToyTokenizer

LENGTHS = (256, 512, 1024, 2048, 4096)
"""The curriculum: the next length starts once recall at the present one is good."""


@dataclass
class Progress:
    """What a run has done so far; saved with the weights."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    stage: int = 0
    stage_step: int = 0
    accuracy: dict[str, float] = field(default_factory=dict)
    """Running share of answers with every token right, by task (recall: at the present stage's length)."""


class Trainer:
    """Model, optimisers and curriculum of one run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        torch.manual_seed(args.seed)
        self.config = ToyConfig()
        self.model = KimiK3ForConditionalGeneration(self.config)
        documents = texts.documents(args.texts)
        self.tokenizer = load_or_train_tokenizer(args.state, documents, self.config)
        circuit.install(self.model, self.tokenizer)
        hidden, tables, others = split_parameters(self.model)
        self.muon = Muon(hidden, lr=args.muon_lr)
        groups = [{"params": tables, "peak": args.table_lr}, {"params": others, "peak": args.adam_lr}]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
        self.progress = Progress()
        self.state: Path = args.state
        self.batches = BatchMaker(self.tokenizer, documents, args.seed)
        self.losses: list[dict[str, float]] = []
        self.stopped = False

    def run(self) -> None:
        """Train until the budget of minutes is used up, or until SIGTERM; both leave a saved state."""
        last_save = last_time = time.monotonic()
        signal.signal(signal.SIGTERM, self._stop)
        while (share := self.progress.seconds / (60 * self.args.minutes)) < 1 and not self.stopped:
            self._step(share)
            now = time.monotonic()
            self.progress.seconds += now - last_time
            last_time = now
            if self.progress.step % self.args.log_every == 0:
                self._log(share)
            if now - last_save > self.args.save_every:
                self.save()
                last_save = now
        self.save()

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def _step(self, share: float) -> None:
        progress, args = self.progress, self.args
        length = self._choose_length()
        batch = self.batches.make(progress.step, max(1, args.batch_tokens // length), length, self._mix())
        factor = _schedule(progress.step, share)
        self.muon.param_groups[0]["lr"] = args.muon_lr * factor
        for group in self.adam.param_groups:
            group["lr"] = group["peak"] * factor
        keep = batch.weights > 0
        logits = self.model(batch.inputs, keep)
        loss = self._loss(logits, batch.targets[keep], batch.weights[keep])
        torch.autograd.backward(loss)
        for group in self.adam.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        self.muon.step()
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        self.model.balance_experts(args.balance_speed * factor)
        progress.step += 1
        progress.stage_step += 1
        progress.tokens += batch.inputs.numel()
        guesses = torch.full_like(batch.targets, -1)
        guesses[keep] = logits.detach().argmax(-1)
        self._track_accuracy(guesses, batch, length)
        self._advance_stage()

    def _loss(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Weighted mean over the kept positions: [N, V], [N], [N] -> []."""
        losses = functional.cross_entropy(logits, targets, reduction="none")
        total = (losses * weights).sum() / weights.sum()
        answers = weights >= ANSWER_WEIGHT
        self.losses.append({"loss": total.item(), "answer": losses.detach()[answers].mean().item()})
        return total

    def _choose_length(self) -> int:
        """The present stage's length, or as often an earlier one, where answers are denser."""
        rng = Random(f"length-{self.args.seed}-{self.progress.step}")
        stage = self.progress.stage
        if stage and rng.random() < 0.5:
            stage = rng.randrange(stage)
        return LENGTHS[stage]

    def _mix(self) -> Mix:
        return Mix(text=0.03, drill=0.1)

    def _track_accuracy(self, guesses: Tensor, batch: Batch, length: int) -> None:
        right = guesses == batch.targets
        by_kind: dict[str, list[float]] = defaultdict(list)
        for row, spans in enumerate(batch.spans):
            for span in spans:
                by_kind[span.kind].append(float(right[row, span.start : span.stop].all()))
        if length != LENGTHS[self.progress.stage]:
            for kind in cases.RECALL_KINDS:
                by_kind.pop(kind, None)
        for kind, results in by_kind.items():
            mean = sum(results) / len(results)
            before = self.progress.accuracy.get(kind, 0.0)
            self.progress.accuracy[kind] = before + 0.05 * (mean - before)

    def _advance_stage(self) -> None:
        progress = self.progress
        best = max(progress.accuracy.get(kind, 0.0) for kind in cases.RECALL_KINDS)
        longest = min(len(LENGTHS) - 1, self.args.last_stage)
        if best > self.args.advance_at and progress.stage_step > 60 and progress.stage < longest:
            progress.stage += 1
            progress.stage_step = 0
            progress.accuracy |= dict.fromkeys(cases.RECALL_KINDS, 0.0)
            print(f"stage {progress.stage}: {LENGTHS[progress.stage]} tokens", flush=True)

    def _log(self, share: float) -> None:
        progress = self.progress
        recent = self.losses
        means = {key: round(sum(entry[key] for entry in recent) / len(recent), 4) for key in recent[0]}
        self.losses = []
        accuracy = {kind: round(value, 3) for kind, value in sorted(progress.accuracy.items())}
        record: dict[str, Any] = {
            "step": progress.step,
            "tokens": progress.tokens,
            "minutes": round(progress.seconds / 60, 2),
            "length": LENGTHS[progress.stage],
            **means,
            "accuracy": accuracy,
            "lr_factor": round(_schedule(progress.step, share), 3),
            "tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9)),
        }
        with (self.state / "log.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)

    def save(self) -> None:
        """Write everything a later run needs; the file is replaced in one move."""
        content = {
            "model": self.model.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "progress": asdict(self.progress),
            "config": asdict(self.config),
        }
        partial = self.state / "state.partial"
        torch.save(content, partial)
        partial.rename(self.state / "state.pt")

    def resume(self) -> None:
        """Continue from the saved state."""
        content = torch.load(self.state / "state.pt", weights_only=True)
        self.model.load_state_dict(content["model"])
        self.muon.load_state_dict(content["muon"])
        self.adam.load_state_dict(content["adam"])
        self.progress = Progress(**content["progress"])


def _schedule(step: int, share: float) -> float:
    """Warm up, hold, and fall to zero over the last 30 % of the budget."""
    return min(1.0, (step + 1) / 100) * min(1.0, (1 - share) / 0.3 + 1e-3)


def load_or_train_tokenizer(folder: Path, documents: list[str], config: ToyConfig) -> ToyTokenizer:
    """The tokenizer in ``folder``; trained there first if it has none."""
    if not (folder / "tiktoken.model").exists():
        ranks = tokenizer.train_ranks([*documents, *_dialogue_text()], config.base_vocab_size)
        tokenizer.save(ranks, folder, config.max_position_embeddings)
    return ToyTokenizer.load(folder)


def _dialogue_text(size: int = 6000) -> list[str]:
    """Text like that of the dialogues, so that their words become single tokens."""
    rng = Random(0)
    sample = ['message role="user" message role="assistant" message role="system" response'] * size
    for _ in range(size):
        fact = rng.choice(cases.RELATIONS).draw(rng, set())
        sample += [fact.statement, fact.question, fact.answer, cases.distractor(rng)]
        case = rng.choice(list(cases.SHORT_TASKS.values()))(rng)
        sample += [case.messages[0].content, case.answer]
    lists = (
        words.KEYS,
        words.NAMES,
        words.CITIES,
        words.OBJECTS,
        words.ROOMS,
        words.ANIMALS,
        words.ADJECTIVES,
    )
    return sample + [" " + " ".join(group) for group in lists] * 1500


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, required=True, help="folder with the Debian packages")
    parser.add_argument(
        "--state", type=Path, required=True, help="folder for tokenizer, log and resumable state"
    )
    parser.add_argument(
        "--minutes", type=float, default=100.0, help="budget; the learning rate falls towards its end"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--muon-lr", type=float, default=0.008)
    parser.add_argument("--table-lr", type=float, default=4e-3, help="of the embedding and the output head")
    parser.add_argument("--adam-lr", type=float, default=1e-3, help="of vectors, gates and the router")
    parser.add_argument("--balance-speed", type=float, default=2e-3)
    parser.add_argument("--advance-at", type=float, default=0.75, help="recall that starts the next length")
    parser.add_argument("--last-stage", type=int, default=len(LENGTHS) - 1)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--save-every", type=float, default=240.0, help="seconds")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 products (only where the CPU has them)")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Entry point."""
    args = parse_args()
    args.state.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    if args.bf16:
        Linear.compute_dtype = torch.bfloat16
    trainer = Trainer(args)
    if args.resume:
        trainer.resume()
    trainer.run()


if __name__ == "__main__":
    main()

"""Whole engines on toy checkpoints: model, runner, scheduler and step loop, free pages poisoned."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from milepost.engine.engine import Engine
from milepost.engine.executor import Executor
from milepost.kernels.ops import load_ops
from milepost.memory.capacity import sequence_pages
from milepost.memory.layout import TiledLayout, paged_layout
from milepost.memory.pool import PagePool
from milepost.models import Model, StepInputs, StepOutput, load_model
from milepost.prefix.cache import PrefixCache
from milepost.prefix.config import CacheConfig
from milepost.runtime.arena import Arena
from milepost.runtime.model_runner import ModelRunner, StepModel
from milepost.runtime.sampler import Sampler
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.poisoning_executor import PoisoningExecutor
from milepost.transfer.host_store import HostStore
from milepost.transfer.tiered_executor import TieredExecutor
from milepost.types import (
    Batch,
    BatchResult,
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
    Tier,
    TokenLogprobs,
    Usage,
)

torch.set_num_threads(1)

BLOCK_SIZE = 16
OUTPUT_TOKENS = 40


class BytelessDecoder:
    """Text is not what these tests look at."""

    def token_bytes(self, token_id: int) -> bytes:
        return b""


@dataclass(frozen=True)
class Toy:
    """A loaded toy model; it keeps nothing between steps, so every test may share it."""

    folder: Path
    model: Model
    layout: TiledLayout

    @property
    def vocab_size(self) -> int:
        return self.model.spec.vocab_size

    def pages_for(self, requests: Sequence[Request]) -> int:
        """Pages that hold all requests at their full length at once, the dummy page included."""
        return 1 + sum(sequence_pages(self.layout, final_length(request) - 1) for request in requests)


def load_toy(folder: Path, kernels: str) -> Toy:
    model = load_model(folder, dtype=torch.float32, ops=load_ops(kernels))
    layout = paged_layout(model.spec, block_size=BLOCK_SIZE, kv_itemsize=4, conv_itemsize=4)
    return Toy(folder, model, layout)


def final_length(request: Request) -> int:
    assert request.sampling.max_tokens is not None
    return len(request.prompt_token_ids) + request.sampling.max_tokens


GREEDY = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)


def make_request(toy: Toy, name: str, length: int, sampling: SamplingParams = GREEDY) -> Request:
    """A request whose prompt depends on its name and length only."""
    draw = random.Random(f"{name}/{length}")
    prompt = tuple(draw.randrange(toy.vocab_size) for _ in range(length))
    return Request(request_id=name, prompt_token_ids=prompt, sampling=sampling)


def sixteen_requests(toy: Toy, sampling: SamplingParams = GREEDY) -> list[Request]:
    """Prompts that end on, before and behind the borders of blocks (16) and of KDA's chunks (64)."""
    lengths = (1, 2, 5, 15, 16, 17, 31, 33, 48, 63, 64, 65, 90, 127, 128, 130)
    return [make_request(toy, f"r{length}", length, sampling) for length in lengths]


@dataclass
class Reply:
    """All that came back for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    usage: Usage | None = None


class NoteTaker:
    """The toy's model; keeps the logits of every sampled row."""

    def __init__(self, toy: Toy) -> None:
        self._model = toy.model
        self.logits: list[list[float]] = []

    def forward(self, inputs: StepInputs) -> StepOutput:
        output = self._model.forward(inputs)
        self.logits.extend(output.logits.double().tolist())
        return output


BeforeStep = Callable[[Batch, Arena], None]


class _Disturbed:
    """A runner whose arena somebody touches before each step."""

    def __init__(self, runner: ModelRunner, before_step: BeforeStep) -> None:
        self._runner = runner
        self._before_step = before_step

    def run(self, batch: Batch) -> BatchResult:
        self._before_step(batch, self._runner.arena)
        return self._runner.run(batch)

    def close(self) -> None:
        self._runner.close()


class _Tiered:
    """Tiers around a poisoning executor, which is told what they load."""

    def __init__(self, poisoning: PoisoningExecutor, arena: Arena, host_pages: int) -> None:
        self._poisoning = poisoning
        host = HostStore(host_pages, arena.layout.page_bytes)
        self._tiered = TieredExecutor(poisoning, arena.pages(), host)

    def run(self, batch: Batch) -> BatchResult:
        loads = [transfer for transfer in batch.transfers if transfer.target is Tier.ARENA]
        self._poisoning.filled_elsewhere(target for transfer in loads for _, target in transfer.pages)
        return self._tiered.run(batch)

    def close(self) -> None:
        self._tiered.close()


class TestEngine:
    """An engine whose every part is in reach; every step is checked.

    Args:
        toy: the model.
        budget: tokens of a step.
        num_pages: pages of the pool, dummy page included.
        max_num_seqs: rows of a step.
        headroom: tokens that admission leaves room for; 0 gives want of pages its chance.
        seed: the engine's seed.
        model: runs instead of the toy's own, such as one that takes notes.
        runner: a runner of `num_pages` pages that is built already; `model` and `seed` are its own then.
        preempt: chance that a running request is preempted before a step.
        before_step: sees each batch and the arena just before the runner does.
        cache: of the prefix cache; None for none.
        host_pages: of a host tier behind the arena; 0 for none.
        stop_token_ids: end a reply; None takes the model's.
    """

    __test__ = False

    def __init__(
        self,
        toy: Toy,
        *,
        num_pages: int,
        budget: int = 4096,
        max_num_seqs: int = 32,
        headroom: int = 0,
        seed: int | None = None,
        model: StepModel | None = None,
        runner: ModelRunner | None = None,
        preempt: float = 0.0,
        before_step: BeforeStep | None = None,
        cache: CacheConfig | None = None,
        host_pages: int = 0,
        stop_token_ids: tuple[int, ...] | None = None,
    ) -> None:
        runner = runner or ModelRunner(model or toy.model, toy.layout, num_pages, sampler=Sampler(seed))
        inner: Executor = runner if before_step is None else _Disturbed(runner, before_step)
        self.pool = PagePool(num_pages)
        poisoning = PoisoningExecutor(inner, runner.arena, free_pages=self.pool.free_pages)
        self.executor: Executor = poisoning
        self.cache = None if cache is None else PrefixCache(cache, toy.layout, self.pool)
        if self.cache is not None and host_pages:
            self.cache.add_tiers(host_pages)
            self.executor = _Tiered(poisoning, runner.arena, host_pages)
        config = SchedulerConfig(
            max_model_len=toy.model.spec.max_position,
            token_budget=budget,
            max_num_seqs=max_num_seqs,
            headroom=headroom,
            stop_token_ids=toy.model.spec.stop_token_ids if stop_token_ids is None else stop_token_ids,
            vocab_size=toy.vocab_size,
        )
        self.scheduler = Scheduler(config, toy.layout, self.pool, self.cache)
        self.engine = Engine(self.executor, self.scheduler, BytelessDecoder())
        self._preempt = preempt
        self._random = random.Random(f"{seed}/{budget}/{num_pages}")

    def run(
        self,
        requests: Sequence[Request],
        *,
        arrivals: int | None = None,
        aborts: dict[int, str] | None = None,
    ) -> dict[str, Reply]:
        """Serve requests to their end.

        Args:
            requests: in the order of their arrival.
            arrivals: so many come before each step; None: all at once.
            aborts: step -> request to abort before it.
        """
        replies = {request.request_id: Reply() for request in requests}
        coming = list(requests)
        step = 0
        while coming or self.engine.has_work:
            count = len(coming) if arrivals is None else arrivals
            for request in coming[:count]:
                self.engine.submit(request)
            del coming[:count]
            gone = self.engine.abort(aborts[step]) if aborts and step in aborts else None
            self._preempt_some()
            for output in [*([gone] if gone else []), *self.engine.step()]:
                _collect(replies[output.request_id], output)
            self.scheduler.check()
            step += 1
        self.check_idle()
        return replies

    def check_idle(self) -> None:
        """Nothing is owned, and every page that is not free is reachable by a key."""
        counts = self.pool.counts()
        assert counts.leased == counts.quarantined == 0
        self.scheduler.check()
        reachable = (
            0 if self.cache is None else self.cache.index.num_state_pages + self.cache.index.num_kv_pages
        )
        assert counts.cached == reachable
        assert counts.free + counts.tainted + counts.cached + 1 == counts.total

    def check_reset(self) -> None:
        """A reset of an idle engine leaves nothing but free pages."""
        self.scheduler.reset_cache()
        self.check_idle()
        counts = self.pool.counts()
        assert counts.free + counts.tainted + 1 == counts.total

    def _preempt_some(self) -> None:
        running = self.scheduler._roster.running
        if len(running) > 1 and self._random.random() < self._preempt:
            self.scheduler._turns.preempt(self._random.choice(running))


def _collect(reply: Reply, output: RequestOutput) -> None:
    assert reply.finish_reason is None, "an output after the last one"
    reply.tokens.extend(output.token_ids)
    reply.logprobs.extend(output.logprobs)
    reply.finish_reason, reply.error, reply.usage = output.finish_reason, output.error, output.usage


def tokens_of(replies: dict[str, Reply]) -> dict[str, list[int]]:
    """Tokens of replies that all ended well."""
    assert {reply.error for reply in replies.values()} == {None}
    return {name: reply.tokens for name, reply in replies.items()}


def run_alone(toy: Toy, request: Request, *, seed: int | None = None) -> Reply:
    """Serve one request by itself, in an engine of its own."""
    engine = TestEngine(toy, num_pages=toy.pages_for([request]), seed=seed)
    return engine.run([request])[request.request_id]

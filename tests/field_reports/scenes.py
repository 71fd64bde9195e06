"""What the scenes of the field reports share: prompts that part where a test says, and quick engines."""

from __future__ import annotations

import random
from collections.abc import Sequence

from milepost.memory.pool import PagePool
from milepost.prefix.cache import PrefixCache
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.types import Batch, Usage
from tests.scheduler.harness import STEP_SECONDS, SmallLayout, World, cache_config, request

Tokens = tuple[int, ...]

WORDS = 50_000  # tokens of a scripted vocabulary: two that are drawn are hardly ever the same


def text(seed: object, length: int, vocabulary: int = WORDS) -> Tokens:
    """`length` tokens that depend on the seed; a shorter text of the same seed is its beginning."""
    draw = random.Random(f"{seed}")
    return tuple(draw.randrange(vocabulary) for _ in range(length))


def serve(world: World, request_id: str, prompt: Sequence[int], max_tokens: int = 2, **more: object) -> int:
    """Serve one request alone; its hit. What it drew is what its own tokens say, whatever it resumed from."""
    world.add(request(request_id, prompt, max_tokens, **more))  # type: ignore[arg-type]
    world.run()
    assert world.output[request_id] == world.expected(request_id, max_tokens)
    return world.finished[request_id].usage.cached_tokens


class Rehearsal:
    """A scheduler with its cache, at full length: a script in place of a model, and no proofs each step.

    Attributes:
        usage: what each finished request was told.
        drawn: its tokens.
        batches: every step.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        block_size: int = 16,
        pages_per_state: int = 8,
        token_budget: int = 4096,
        **cache: object,
    ) -> None:
        layout = SmallLayout(block_size=block_size, pages_per_state=pages_per_state)
        self.now = 0.0
        self.pool = PagePool(num_pages)
        self.cache = PrefixCache(cache_config(**cache), layout, self.pool, clock=lambda: self.now)
        config = SchedulerConfig(max_model_len=1 << 20, token_budget=token_budget, max_num_seqs=64)
        self.scheduler = Scheduler(config, layout, self.pool, self.cache)
        self.executor = ScriptedExecutor(lambda name, n: sum(name.encode()) * 31 + n)
        self.usage: dict[str, Usage] = {}
        self.drawn: dict[str, list[int]] = {}
        self.batches: list[Batch] = []

    def step(self) -> bool:
        batch = self.scheduler.schedule()
        if batch is None:
            return False
        self.batches.append(batch)
        for update in self.scheduler.update(batch, self.executor.run(batch)):
            self.drawn.setdefault(update.request_id, []).extend(update.token_ids)
            if update.finish_reason is not None:
                self.usage[update.request_id] = update.usage
        self.now += STEP_SECONDS
        return True

    def serve(self, request_id: str, prompt: Sequence[int], max_tokens: int = 2, **more: object) -> int:
        """Serve one request alone; its hit, which is also what was not computed."""
        before = self.scheduler.stats().computed_tokens
        self.scheduler.add(request(request_id, prompt, max_tokens, **more))  # type: ignore[arg-type]
        while self.step():
            pass
        usage = self.usage[request_id]
        computed = self.scheduler.stats().computed_tokens - before
        if not usage.num_preemptions:
            assert computed == len(prompt) + max_tokens - 1 - usage.cached_tokens
        return usage.cached_tokens

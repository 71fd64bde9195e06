"""What over-admission costs: work done twice because a full pool preempts what has grown."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.results import Result
from benchmarks.scheduler_cost import LAYOUT
from milepost.memory.pool import PagePool
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.types import Request, SamplingParams

__all__ = ["admission"]

REQUESTS = 100
PAGES = 1000
HEADROOMS = (0, 64, 256, 1 << 20)
CASES = ((512, 512), (128, 1024), (2048, 128))
"""(mean prompt, mean output); lengths lie evenly between half and one and a half of the mean"""


def admission() -> Iterator[Result]:
    """Tokens computed per token needed, and steps, on a tight pool, by headroom; counted, not timed."""
    for prompt, output in CASES:
        for headroom in HEADROOMS:
            work, steps = _serve(prompt, output, headroom)
            case = f"prompt {prompt}, output {output}, headroom {headroom}"
            settings: dict[str, object] = {"requests": REQUESTS, "pages": PAGES}
            for quantity, unit, sample in (("work", "computed/needed", work), ("length", "steps", steps)):
                yield Result(
                    benchmark="admission",
                    subject=case,
                    quantity=quantity,
                    unit=unit,
                    samples=[sample],
                    settings=settings,
                )


def _serve(mean_prompt: int, mean_output: int, headroom: int) -> tuple[float, float]:
    """Serve all requests; tokens computed per token needed, and the steps that it took."""
    config = SchedulerConfig(max_model_len=1 << 20, headroom=headroom)
    scheduler = Scheduler(config, LAYOUT, PagePool(PAGES))
    executor = ScriptedExecutor(lambda _request_id, _index: 0)
    lengths = random.Random(0)
    needed = 0
    for i in range(REQUESTS):
        prompt = lengths.randint(mean_prompt // 2, mean_prompt * 3 // 2)
        output = lengths.randint(mean_output // 2, mean_output * 3 // 2)
        needed += prompt + output - 1
        sampling = SamplingParams(max_tokens=output)
        scheduler.add(Request(request_id=str(i), prompt_token_ids=(0,) * prompt, sampling=sampling))
    while (batch := scheduler.schedule()) is not None:
        scheduler.update(batch, executor.run(batch))
        executor.batches.clear()
    stats = scheduler.stats()
    return stats.computed_tokens / needed, float(stats.steps)

"""Engines on scripts, for the tests of the step loop and of the async front."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from milepost.engine.engine import Engine
from milepost.engine.reports import EngineObserver
from milepost.memory.pool import PagePool
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.types import Request, RequestOutput, SamplingParams
from tests.scheduler.harness import SmallLayout

EOS = 256


class ByteDecoder:
    """Token n stands for byte n; `EOS` has no text."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS else b""


class Setup:
    """An engine that says what a script says, and all its parts."""

    def __init__(
        self,
        replies: dict[str, str] | Callable[[str, int], int],
        *,
        num_pages: int = 64,
        token_budget: int = 64,
        max_num_seqs: int = 8,
        clock: Callable[[], float] | None = None,
        observer: EngineObserver | None = None,
    ) -> None:
        self.pool = PagePool(num_pages)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_model_len=1 << 20,
                token_budget=token_budget,
                max_num_seqs=max_num_seqs,
                stop_token_ids=(EOS,),
            ),
            SmallLayout(),
            self.pool,
        )
        script = (
            replies
            if callable(replies)
            else {name: [*reply.encode(), EOS] for name, reply in replies.items()}
        )
        self.executor = ScriptedExecutor(script)
        clocked = {} if clock is None else {"clock": clock}
        self.engine = Engine(self.executor, self.scheduler, ByteDecoder(), observer=observer, **clocked)


def ask(
    request_id: str,
    prompt: Sequence[int] = (1, 2, 3),
    *,
    stop: tuple[str, ...] = (),
    max_tokens: int | None = None,
    logprobs: int | None = None,
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(stop=stop, max_tokens=max_tokens, logprobs=logprobs),
    )


def run(engine: Engine) -> dict[str, list[RequestOutput]]:
    """Step to the end; outputs by request, of which exactly the last is final."""
    outputs: dict[str, list[RequestOutput]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    for news in outputs.values():
        assert [output.finished for output in news] == [False] * (len(news) - 1) + [True]
    return outputs


def text_of(outputs: Sequence[RequestOutput]) -> str:
    return "".join(output.text for output in outputs)

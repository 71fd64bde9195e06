"""What one client reads: the outputs of its request, from a mailbox that the engine's thread fills."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import msgspec

from milepost.engine.detokenizer import Detokenizer
from milepost.types import FinishReason, Request, RequestOutput, Usage

__all__ = ["OutputStream"]


class OutputStream:
    """Outputs of one request, for one consumer on one event loop.

    Iterate over it to the end, or `close` it: that aborts the request and never waits. Built by
    `AsyncEngine.submit`.

    Args:
        request: whose outputs these are.
        loop: the consumer's event loop.
        on_close: told when the consumer leaves early.
        detokenizer: makes the outputs' text; None when they bring it.
    """

    def __init__(
        self,
        request: Request,
        loop: asyncio.AbstractEventLoop,
        on_close: Callable[[OutputStream], None],
        detokenizer: Detokenizer | None = None,
    ) -> None:
        self.request_id = request.request_id
        self.loop = loop
        self._on_close = on_close
        self._detokenizer = detokenizer
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._lock = threading.Lock()
        self._mail: list[RequestOutput] = []
        self._arrived = asyncio.Event()
        self._ended = False

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> RequestOutput:
        """Everything new since the last call, merged; waits until there is something."""
        if self._ended:
            raise StopAsyncIteration
        while True:
            await self._arrived.wait()
            # Cleared before the mail is taken: mail that comes in between sets it again or is taken now.
            self._arrived.clear()
            if self._ended:
                raise StopAsyncIteration
            with self._lock:
                mail, self._mail = self._mail, []
            if mail:
                output = _merged(mail)
                self._ended = output.finished
                return output if self._detokenizer is None else _with_text(output, self._detokenizer)

    def close(self) -> None:
        """Abort the request unless it has ended. Call it on the stream's own event loop.

        An iteration that waits ends, however long the engine takes to notice.
        """
        if not self._ended:
            self._ended = True
            self._arrived.set()
            self._on_close(self)

    def put(self, output: RequestOutput) -> bool:
        """Called by the engine's thread; True when the consumer must be woken (`wake`, on its loop)."""
        with self._lock:
            self._mail.append(output)
            return len(self._mail) == 1

    def wake(self) -> None:
        """Let the consumer look into its mail; runs on the stream's loop."""
        self._arrived.set()

    def stillborn(self, reason: FinishReason, error: str | None) -> RequestOutput:
        """The last output of a request that never got into the engine."""
        usage = Usage(prompt_tokens=self._num_prompt_tokens, output_tokens=0)
        return RequestOutput(request_id=self.request_id, finish_reason=reason, error=error, usage=usage)


def _with_text(output: RequestOutput, detokenizer: Detokenizer) -> RequestOutput:
    text, _ = detokenizer.take(output.token_ids, output.finish_reason)
    return msgspec.structs.replace(output, text=text)


def _merged(outputs: list[RequestOutput]) -> RequestOutput:
    """One output that says what all of them say, in order."""
    last = outputs[-1]
    if len(outputs) == 1:
        return last
    return msgspec.structs.replace(
        last,
        text="".join(output.text for output in outputs),
        token_ids=tuple(token for output in outputs for token in output.token_ids),
        logprobs=tuple(logprob for output in outputs for logprob in output.logprobs),
    )

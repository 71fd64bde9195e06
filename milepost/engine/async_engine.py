"""The async front: many clients on event loops, one thread that steps.

The thread owns the engine. Clients never touch it: they put commands (start, abort) on a list that
the thread empties before each step, and read outputs from a mailbox of their own. So no client
waits for a step, and no step waits for a client; outputs that a slow client has not taken yet
merge into one. Their text is made where they are read, while the next step computes, unless stop
strings must be found in it before that step.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import msgspec

from milepost.engine.engine import Engine, failure_sentence
from milepost.engine.output_stream import OutputStream
from milepost.engine.reports import EngineStats
from milepost.engine.waker import Waker
from milepost.errors import EngineStoppedError, MilepostError, RequestError
from milepost.prefix.reports import Explanation
from milepost.scheduler.limits import Limits
from milepost.types import FinishReason, Request, RequestOutput

__all__ = ["AsyncEngine"]

logger = logging.getLogger(__name__)

_TRANSFER_SECONDS = 0.01  # how often an idle engine looks after transfers between tiers

T = TypeVar("T")


class AsyncEngine:
    """Runs an `Engine` in a thread of its own, from construction until `stop`.

    `submit`, `stream`, `explain`, `reset_cache`, `drain` and `stop` belong on an event loop (any, also
    several); `abort`, `limits` and `stats` are safe from any thread.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Guards everything below; `_changed` wakes the thread, `_idle` those who drain.
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._idle = threading.Condition(lock)
        self._commands: list[Callable[[], None]] = []
        self._questions: set[Future[Any]] = set()
        # Submitted and neither ended nor closed; and what is in the engine now. An id that is closed
        # and submitted again is for a moment another stream in each.
        self._open: dict[str, OutputStream] = {}
        self._live: dict[str, OutputStream] = {}
        self._busy = False
        self._refusal: str | None = None
        self._failure: str | None = None
        self._stopping = False
        self._stopped = False
        self._stats = engine.stats()
        self._waker = Waker()
        self._thread = threading.Thread(target=self._run, name="milepost-engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the engine stopped by itself, else None."""
        return self._failure or self._engine.failure

    @property
    def limits(self) -> Limits:
        """What can be served at all."""
        return self._engine.limits

    def stats(self) -> EngineStats:
        """The snapshot that the thread took after its latest turn."""
        return self._stats

    def submit(self, request: Request) -> OutputStream:
        """Accept a request; returns its outputs, which the caller must exhaust or close.

        Raises:
            RequestError: it can't be served, or its id is alive already.
            EngineStoppedError: the engine drains, is stopped, or has failed.
        """
        self.limits.validate(request)
        if not request.arrival_time:
            request = msgspec.structs.replace(request, arrival_time=self._engine.clock())
        detokenizer = None if request.sampling.stop else self._engine.detokenizer(request)
        stream = OutputStream(request, asyncio.get_running_loop(), self._on_close, detokenizer)
        with self._changed:
            refusal = self._refusal or self.failure
            if refusal is not None:
                raise EngineStoppedError(f"{refusal} No new requests are taken.")
            if request.request_id in self._open:
                raise RequestError(
                    f"request_id must be unique among the requests alive. Given: {request.request_id!r}.",
                    param="request_id",
                )
            self._open[request.request_id] = stream
            self._commands.append(partial(self._start, stream, request))
            self._changed.notify()
        return stream

    async def stream(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request; leaving the iteration early aborts it and frees its pages at once.

        Raises:
            RequestError, EngineStoppedError: as `submit`, at the first output.
        """
        outputs = self.submit(request)
        try:
            async for output in outputs:
                yield output
        finally:
            outputs.close()

    def abort(self, request_id: str) -> None:
        """End a request, whoever reads it; its stream gets a last output. Unknown ids are ignored."""
        self._command(partial(self._abort_id, request_id))

    async def explain(self, prompt_token_ids: Sequence[int], *, cache_salt: str = "") -> Explanation:
        """What a prompt would hit between this step and the next; see `Engine.explain`.

        Raises:
            RequestError, ConfigError: as there.
            EngineStoppedError: the engine is stopped or has failed.
        """
        return await self._ask(partial(self._engine.explain, prompt_token_ids, cache_salt=cache_salt))

    async def reset_cache(self) -> int:
        """Drop all that is cached, between two steps; see `Engine.reset_cache`.

        Raises:
            ConfigError: as there.
            EngineStoppedError: the engine is stopped or has failed.
        """
        return await self._ask(self._engine.reset_cache)

    async def drain(self, seconds: float | None = None) -> bool:
        """Refuse new requests and wait until the others have ended, for at most `seconds`.

        Returns:
            whether all have ended. `stop` afterwards.
        """
        with self._changed:
            self._refusal = self._refusal or "The engine is draining."
        return await asyncio.to_thread(self._wait_until_idle, seconds)

    async def stop(self) -> None:
        """Abort what is alive, close the engine and end its thread; safe to call twice."""
        with self._changed:
            self._refusal = "The engine is stopped."
            self._stopping = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    # -- clients' side, under the lock -----------------------------------------------------------

    def _command(self, command: Callable[[], None]) -> None:
        with self._changed:
            if not self._stopped:
                self._commands.append(command)
                self._changed.notify()

    async def _ask(self, question: Callable[[], T]) -> T:
        """What the engine's thread answers, once it gets to it."""
        answer: Future[T] = Future()
        with self._changed:
            if self._stopped or self.failure is not None:
                raise EngineStoppedError(f"{self.failure or self._refusal} It answers nothing any more.")
            self._questions.add(answer)
            self._commands.append(partial(self._answer, question, answer))
            self._changed.notify()
        return await asyncio.wrap_future(answer)

    def _on_close(self, stream: OutputStream) -> None:
        with self._changed:
            if self._open.get(stream.request_id) is stream:
                # The id may come again at once: commands keep their order, the abort is applied first.
                del self._open[stream.request_id]
        self._command(partial(self._abort, stream))

    def _wait_until_idle(self, seconds: float | None) -> bool:
        with self._idle:
            return self._idle.wait_for(self._is_idle, seconds)

    def _is_idle(self) -> bool:
        return not (self._busy or self._commands or self._live)

    # -- the engine's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (commands := self._next_turn()) is not None:
                for command in commands:
                    command()
                self._deliver(self._engine.step())
                self._stats = self._engine.stats()
        except Exception as error:
            logger.exception("The engine's thread failed")
            self._shut(FinishReason.ERROR, failure_sentence("The engine failed", error))
        else:
            self._shut(FinishReason.ABORT, None)

    def _next_turn(self) -> Sequence[Callable[[], None]] | None:
        """Wait for something to do; the commands of this turn, None when it is time to stop."""
        with self._changed:
            self._busy = False
            if self._is_idle():
                self._idle.notify_all()
            # What is on its way to another tier goes on without requests: the process may be killed.
            seconds = _TRANSFER_SECONDS if self._engine.has_transfers else None
            self._changed.wait_for(lambda: self._stopping or self._commands or self._live, seconds)
            if self._stopping:
                return None
            commands, self._commands = self._commands, []
            self._busy = True
            return commands

    def _start(self, stream: OutputStream, request: Request) -> None:
        try:
            self._engine.submit(request, with_text=bool(request.sampling.stop))
        except MilepostError as error:
            # It was validated, so the engine has failed since.
            self._end(stream, stream.stillborn(FinishReason.ERROR, str(error)))
        else:
            with self._changed:
                self._live[request.request_id] = stream

    def _answer(self, question: Callable[[], T], answer: Future[T]) -> None:
        with self._changed:
            self._questions.discard(answer)
        if not answer.set_running_or_notify_cancel():
            return  # whoever asked is gone
        try:
            answer.set_result(question())
        except Exception as error:  # noqa: BLE001 - it belongs to the one who asked
            answer.set_exception(error)

    def _abort(self, stream: OutputStream) -> None:
        if self._live.get(stream.request_id) is stream:
            output = self._engine.abort(stream.request_id)
            if output is not None:
                self._end(stream, output)

    def _abort_id(self, request_id: str) -> None:
        stream = self._live.get(request_id)
        if stream is not None:
            self._abort(stream)

    def _end(self, stream: OutputStream, output: RequestOutput) -> None:
        """Deliver a last output outside a step."""
        self._forget(stream)
        if stream.put(output):
            self._waker.wake([stream])

    def _forget(self, stream: OutputStream) -> None:
        with self._changed:
            for streams in (self._live, self._open):
                if streams.get(stream.request_id) is stream:
                    del streams[stream.request_id]

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        sleeping: list[OutputStream] = []
        for output in outputs:
            stream = self._live[output.request_id]
            if output.finished:
                self._forget(stream)
            elif stream.loop.is_closed():
                self._disconnect(stream)
                continue
            if stream.put(output):
                sleeping.append(stream)
        self._waker.wake(sleeping)

    def _disconnect(self, stream: OutputStream) -> None:
        """End a request whose event loop is gone, so that nobody can ever read it."""
        self._engine.abort(stream.request_id)
        self._forget(stream)

    def _shut(self, reason: FinishReason, error: str | None) -> None:
        """End everything that is still open, with one last output each, and close the engine."""
        with self._changed:
            self._failure = error
            self._refusal = self._refusal or error or "The engine is stopped."
            self._stopped = True
            commands, self._commands = self._commands, []
        if reason is FinishReason.ERROR:
            self._end_all(reason, error)
            commands = []
        try:
            for command in commands:
                command()
            self._deliver(output for output in self._engine.close() if output.request_id in self._live)
        except Exception:
            logger.exception("The engine could not be closed cleanly")
        self._end_all(reason, error)
        self._leave_unanswered(error)
        self._waker.stop()
        self._stats = self._engine.stats()
        with self._changed:
            self._busy = False
            self._idle.notify_all()

    def _leave_unanswered(self, error: str | None) -> None:
        """Nobody waits for an answer of a thread that has ended."""
        with self._changed:
            questions, self._questions = self._questions, set()
        for answer in questions:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(EngineStoppedError(error or "The engine is stopped."))

    def _end_all(self, reason: FinishReason, error: str | None) -> None:
        with self._changed:
            streams = {id(stream): stream for stream in [*self._live.values(), *self._open.values()]}
        for stream in streams.values():
            self._end(stream, stream.stillborn(reason, error))

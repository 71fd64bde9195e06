"""Several readers on one step loop: each finds its own outputs, whoever made the step.

Any reader may step, from any thread. A step brings news of all requests, so what belongs to others
waits in their mailboxes; without them, a reader that steps would swallow its neighbours' tokens.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from milepost.engine.engine import Engine
from milepost.types import Request, RequestOutput

__all__ = ["Mailboxes"]

T = TypeVar("T")


class Mailboxes:
    """The door to an `Engine` for readers that share it; safe from any thread.

    Args:
        engine: used by nobody else while this lives.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.RLock()
        self._mail: dict[str, list[RequestOutput]] = {}
        self._inside = False
        self._deferred: deque[str] = deque()

    def submit(self, request: Request) -> None:
        """Accept a request; its outputs come from `take`.

        Raises:
            RequestError, EngineStoppedError: as `Engine.submit`.
        """
        with self._lock:
            self._engine.submit(request)
            self._mail[request.request_id] = []

    def take(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """New outputs of some requests, in order; makes one step when none are there yet.

        An empty list is normal, as for `Engine.step`.
        """
        with self._lock:
            wanted = [request_id for request_id in request_ids if request_id in self._mail]
            if wanted and not any(self._mail[request_id] for request_id in wanted):
                self._step()
            return [output for request_id in wanted for output in self._emptied(request_id)]

    def abort(self, request_id: str) -> list[RequestOutput]:
        """End a request and forget it; returns what its reader has not taken yet, the last output too."""
        if self._inside_this_thread():
            # The interpreter drops a reader wherever it likes, also in the middle of a step.
            self._deferred.append(request_id)
            return []
        with self._lock:
            last = self._engine.abort(request_id)
            mail = self._mail.pop(request_id, [])
            return mail if last is None else [*mail, last]

    def ask(self, question: Callable[[Engine], T]) -> T:
        """Ask the engine something between two steps."""
        with self._lock:
            return question(self._engine)

    def close(self) -> None:
        """End everything that is alive, with a last output in its mailbox, and close the engine."""
        with self._lock:
            self._deliver(self._engine.close())

    def _step(self) -> None:
        self._inside = True
        try:
            self._deliver(self._engine.step())
        finally:
            self._inside = False
            while self._deferred:
                self.abort(self._deferred.popleft())

    def _inside_this_thread(self) -> bool:
        # The lock is this thread's own if it can be taken, and then `_inside` is this thread's step.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._inside
        finally:
            self._lock.release()

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            if output.request_id in self._mail:
                self._mail[output.request_id].append(output)

    def _emptied(self, request_id: str) -> list[RequestOutput]:
        mail = self._mail[request_id]
        if mail and mail[-1].finished:
            del self._mail[request_id]
        else:
            self._mail[request_id] = []
        return mail

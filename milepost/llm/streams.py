"""Replies as they come, for a caller whose iteration is what drives the engine."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.chat.reply import ReplyDelta, ReplyParser
from milepost.engine.mailboxes import Mailboxes
from milepost.errors import ExecutionError
from milepost.types import FinishReason, Request, RequestOutput

__all__ = ["ChatStream", "TokenStream", "raise_if_failed"]


class TokenStream:
    """Outputs of one request as they come; the engine only works while somebody iterates.

    Leaving the iteration early aborts the request.

    Raises (while iterating):
        ExecutionError: the request failed; the engine goes on.
    """

    def __init__(self, mailboxes: Mailboxes, request: Request) -> None:
        self._mailboxes = mailboxes
        self._request = request
        self._aborted = False

    def abort(self) -> None:
        """End the reply after the step that runs now. Safe from a signal handler or another thread."""
        self._aborted = True

    def __iter__(self) -> Iterator[RequestOutput]:
        """Yield outputs; the last one has a finish reason."""
        request_id = self._request.request_id
        self._mailboxes.submit(self._request)
        try:
            while True:
                for output in self._next_outputs(request_id):
                    raise_if_failed(output)
                    yield output
                    if output.finished:
                        return
        finally:
            # Nothing happens when the request has ended.
            self._mailboxes.abort(request_id)

    def _next_outputs(self, request_id: str) -> list[RequestOutput]:
        return self._mailboxes.abort(request_id) if self._aborted else self._mailboxes.take([request_id])


class ChatStream:
    """A reply as it comes: (its new parts, the output they came from).

    Raises (while iterating):
        ExecutionError: the request failed; the engine goes on.
    """

    def __init__(self, outputs: TokenStream, parser: ReplyParser) -> None:
        self._outputs = outputs
        self._parser = parser

    def abort(self) -> None:
        """End the reply after the step that runs now. Safe from a signal handler or another thread."""
        self._outputs.abort()

    def __iter__(self) -> Iterator[tuple[ReplyDelta, RequestOutput]]:
        """Yield what each step adds to the reply; the last output has a finish reason."""
        for output in self._outputs:
            yield self._parser.feed(output), output


def raise_if_failed(output: RequestOutput) -> None:
    """Raise `ExecutionError` when the request ended with an error."""
    if output.finish_reason is FinishReason.ERROR:
        raise ExecutionError(output.error or "The request failed while it ran.")

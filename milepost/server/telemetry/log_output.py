"""Where the log goes: to standard error, which may be a pipe that nobody reads.

To write to a full pipe, or to a terminal that was stopped, waits for its reader, and with the writer every
request would wait, and the end of the process. So a line that can't be written soon is lost, and the next
one that can says how many were.
"""

from __future__ import annotations

import io
import logging
import select
import sys
import time

__all__ = ["StandardError"]

# Of a pipe that can be written to at all, so much is taken without waiting (pipe(7): PIPE_BUF).
_PIECE_BYTES = 4096
# For a reader that is slow; one that was not back by then gets no more until it is.
_PATIENCE_SECONDS = 0.05


class StandardError(logging.Handler):
    """Writes to standard error as it is now: whoever redirects it later gets the log too."""

    def __init__(self) -> None:
        super().__init__()
        self._num_lost = 0
        self._is_stuck = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a log that can't be written is not worth a request."""
        try:
            text = f"{self.format(record)}\n"
            if self._num_lost:
                text = f"{self.format(_loss(self._num_lost))}\n{text}"
            if self._write(text):
                self._num_lost = 0
            else:
                self._num_lost += 1
        except Exception:  # noqa: BLE001 - logging's own way to say so
            self.handleError(record)

    def _write(self, text: str) -> bool:
        """Write all of `text`, or, when nobody takes it, at most its beginning; whether it was all."""
        try:
            descriptor, output = sys.stderr.fileno(), sys.stderr.buffer
        except (AttributeError, io.UnsupportedOperation, ValueError):
            sys.stderr.write(text)  # not a file of the system's: nothing to wait for
            return True
        encoding, errors = sys.stderr.encoding, sys.stderr.errors or "backslashreplace"
        data = text.encode(encoding, errors)
        writable = select.poll()
        writable.register(descriptor, select.POLLOUT)
        end = time.monotonic() + (0.0 if self._is_stuck else _PATIENCE_SECONDS)
        for start in range(0, len(data), _PIECE_BYTES):
            self._is_stuck = not writable.poll(max(0.0, end - time.monotonic()) * 1000)
            if self._is_stuck:
                return False
            output.write(data[start : start + _PIECE_BYTES])
            output.flush()
        return True


def _loss(num_lost: int) -> logging.LogRecord:
    message = "%d lines of the log were lost or cut off: nobody took them"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, (num_lost,), None)

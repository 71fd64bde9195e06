"""The one error tree of Milepost.

    MilepostError
    ├── InputError               what the caller gave can't be served; CLI exit code 2, HTTP 400
    │   ├── ConfigError          an option or a combination of options
    │   ├── CheckpointError      a checkpoint folder: missing, torn, foreign or misshapen files
    │   ├── TokenizerError       tokenizer files that can't be read or don't fit the model
    │   ├── TraceError           recorded traffic: unreadable, misshapen, or unfit for what is asked of it
    │   └── RequestError         one request; ``param`` names the field at fault
    │       └── RequestTooLargeError   it can never fit: the prompt, the context or the page pool
    ├── ExecutionError           one request failed while it ran, such as non-finite logits
    ├── EngineStoppedError       the engine shuts down or has failed; nothing new is accepted
    └── InvariantError           a bug of Milepost's own: a checked invariant does not hold

A message says what is wrong, the limit, what was given, and what to do.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigError",
    "EngineStoppedError",
    "ExecutionError",
    "InputError",
    "InvariantError",
    "MilepostError",
    "RequestError",
    "RequestTooLargeError",
    "TokenizerError",
    "TraceError",
]


class MilepostError(Exception):
    """Base of every error that Milepost raises on purpose."""


class InputError(MilepostError):
    """What the caller gave can't be served; the message says what to change."""


class ConfigError(InputError):
    """An option, or a combination of options, is wrong."""


class CheckpointError(InputError):
    """A checkpoint can't be read or is not what its config.json promises."""


class TokenizerError(InputError):
    """Tokenizer files can't be read or don't fit the model."""


class TraceError(InputError):
    """Recorded traffic can't be read, or does not say what is asked of it."""


class RequestError(InputError):
    """One request can't be served as asked.

    Args:
        message: what is wrong, the limit, what was given, what to do.
        param: the request field at fault, as the caller spells it, or None.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RequestTooLargeError(RequestError):
    """The request can never fit, however long it waits."""


class ExecutionError(MilepostError):
    """One request failed while it ran; the others go on."""


class EngineStoppedError(MilepostError):
    """The engine is shutting down or has failed; it takes no new requests."""


class InvariantError(MilepostError):
    """An internal invariant does not hold: a bug in Milepost, never the caller's fault."""

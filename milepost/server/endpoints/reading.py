"""The steps that both generating endpoints take before they differ, and the front behind every one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from milepost.errors import RequestError
from milepost.server.access.tenants import tenant_of
from milepost.server.front import Front
from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.errors import HttpError
from milepost.server.protocol.fields import HarmlessValues, read_body
from milepost.server.protocol.sampling_fields import SamplingFields
from milepost.server.streaming import ClientDisconnectedError

__all__ = [
    "check_model",
    "fields_renamed",
    "front_of",
    "in_thread",
    "new_id",
    "read_fields",
    "read_request",
]

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=SamplingFields)
R = TypeVar("R")

# Reading more than this takes longer than other clients should wait for the event loop.
MAX_BYTES_ON_LOOP = 64 * 1024


def front_of(http: HttpRequest) -> Front:
    """The front that the app was built with."""
    front = http.app.state.front
    assert isinstance(front, Front)
    return front


async def in_thread(http: HttpRequest, work: Callable[[], R], *, is_long: bool = False) -> R:
    """Do what takes longer than the event loop may wait, in a thread.

    The threads are few. What may take seconds, for a long body or because it `is_long` in itself, waits
    for its turn on the event loop, so that it never holds all the threads which short requests need.
    """
    length = http.headers.get("content-length", "")
    if not is_long and length.isdecimal() and int(length) <= MAX_BYTES_ON_LOOP:
        return await asyncio.to_thread(work)
    async with http.app.state.long_work:
        return await asyncio.to_thread(work)


def new_id(prefix: str) -> str:
    """A fresh id such as ``chatcmpl-5f3c...``."""
    return f"{prefix}-{uuid.uuid4().hex}"


def check_model(asked: str | None, served: str) -> None:
    """Refuse a request for another model; one that names none means the served one.

    Raises:
        HttpError: 404, as OpenAI answers it.
    """
    if asked is not None and asked != served:
        raise HttpError(
            404,
            f"The model '{asked}' is not served here. Use '{served}'.",
            param="model",
            code=ErrorCode.MODEL_NOT_FOUND,
        )


@contextmanager
def fields_renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Let a `RequestError` name its field as the client spells it, by `names` (ours -> the client's).

    A name stands for the field and for whatever lies in it: ``names["a"] = "b"`` makes ``a.x`` ``b.x``.
    """
    try:
        yield
    except RequestError as error:
        ours = error.param or ""
        root, dot, inside = ours.partition(".")
        theirs = names.get(ours) or names.get(root, root) + dot + inside
        if theirs == ours:
            raise
        message = str(error)
        if message.startswith(f"{ours} "):
            message = theirs + message.removeprefix(ours)
        raise type(error)(message, param=theirs) from None


async def read_request(http: HttpRequest, kind: type[T], harmless: HarmlessValues) -> T:
    """Read and check what the client asks for, once it is sure that it could be served now.

    Args:
        http: the request.
        kind: the struct of the endpoint's fields.
        harmless: as of `milepost.server.protocol.fields.read_body`.

    Raises:
        HttpError: 415 for another content type, 413 and 408 for a body over the limit or too slow, 400 for
            a field that is not served, 404 for another model, 429 when there is enough to do.
        EngineStoppedError: the server takes no new requests.
        RequestError: fields that don't go together.
        ClientDisconnectedError: the client went away before the whole body had come.
    """
    asked = await read_fields(http, kind, harmless)
    front = front_of(http)
    front.check_open()
    check_model(asked.model, front.services.model_name)
    asked.check()
    front.check_room(tenant_of(http))
    return asked


async def read_fields(
    http: HttpRequest, kind: type[S], harmless: HarmlessValues, *, may_be_empty: bool = False
) -> S:
    """Read the fields of a body, whether or not the engine could serve anything; see `read_request`.

    Where a body `may_be_empty` an empty one has no fields.
    """
    try:
        body = await _read_bytes(http)
    except ClientDisconnect:
        raise ClientDisconnectedError from None
    if may_be_empty and not body:
        body = b"{}"
    if len(body) <= MAX_BYTES_ON_LOOP:
        return read_body(body, kind, harmless)
    return await in_thread(http, lambda: read_body(body, kind, harmless), is_long=True)


def _check_content_type(http: HttpRequest) -> None:
    """Refuse what any web page could make a browser send.

    Raises:
        HttpError: 415 for another content type than JSON's.
    """
    content_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HttpError(
            415,
            f"The content type must be application/json. Given: '{content_type}'. "
            "Send the header 'Content-Type: application/json'.",
            code=ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        )


async def _read_bytes(http: HttpRequest) -> bytes:
    """A JSON body; the gate bounds its size and its time."""
    _check_content_type(http)
    return await http.body()

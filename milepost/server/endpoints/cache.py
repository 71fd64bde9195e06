"""``POST /cache/explain`` and ``POST /cache/reset``: for those who run the server, not for its clients.

What an explanation says of other requests' prompts is no client's business; a gateway in front of the
server should keep ``/cache`` to itself, as it does ``/metrics``.
"""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost.error_text import one_of
from milepost.errors import RequestError
from milepost.server.access.gate import Gatekeeper
from milepost.server.access.tenants import Tenant, tenant_of
from milepost.server.endpoints.prompts import encode_chat, encode_text
from milepost.server.endpoints.reading import check_model, fields_renamed, front_of, in_thread, read_fields
from milepost.server.protocol.cache_requests import ExplainRequest, ResetRequest
from milepost.server.protocol.chat_fields import CHAT_WIRE_NAMES, chat_options
from milepost.server.protocol.responses import CacheReset, json_response
from milepost.server.services import Services

__all__ = ["explain_cache", "reset_cache"]


async def explain_cache(http: HttpRequest) -> Response:
    """What a prompt would hit now, and why not more: a `milepost.prefix.reports.Explanation`."""
    front = front_of(http)
    asked = await read_fields(http, ExplainRequest, {})
    check_model(asked.model, front.services.model_name)
    asked.check()
    with fields_renamed(CHAT_WIRE_NAMES | ({} if asked.messages is None else {"prompt": "messages"})):
        # Away from the event loop, as everything that is tokenised.
        token_ids = await in_thread(http, lambda: _token_ids(front.services, asked))
        salt = _tenant(http, asked.tenant).engine_salt(asked.cache_salt)
        explanation = await front.services.engine.explain(token_ids, cache_salt=salt)
    return json_response(explanation)


async def reset_cache(http: HttpRequest) -> Response:
    """Drop all that is cached; requests that run go on with what they have. It takes no fields."""
    await read_fields(http, ResetRequest, {}, may_be_empty=True)
    dropped = await front_of(http).services.engine.reset_cache()
    return json_response(CacheReset(dropped_snapshots=dropped))


def _tenant(http: HttpRequest, name: str | None) -> Tenant:
    """Who is meant; only operators come here, who may look at every tenant's."""
    if name is None:
        return tenant_of(http)
    keeper = http.app.state.gatekeeper
    assert isinstance(keeper, Gatekeeper)
    tenants = keeper.tenants
    if name not in tenants:
        raise RequestError(one_of("tenant", name, sorted(tenants)), param="tenant")
    return tenants[name]


def _token_ids(services: Services, asked: ExplainRequest) -> tuple[int, ...]:
    if asked.messages is not None:
        return encode_chat(services, asked.messages, chat_options(asked)).token_ids
    prompt = asked.prompt or ""
    return encode_text(services, prompt) if isinstance(prompt, str) else tuple(prompt)

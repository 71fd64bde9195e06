"""``GET /v1/models`` and ``GET /v1/models/MODEL``."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost.server.endpoints.reading import check_model, front_of
from milepost.server.protocol.responses import Model, ModelList, json_response
from milepost.server.services import Services

__all__ = ["list_models", "show_model"]


async def list_models(http: HttpRequest) -> Response:
    """The one model that is served."""
    return json_response(ModelList(data=[_model(front_of(http).services)]))


async def show_model(http: HttpRequest) -> Response:
    """The served model by its name."""
    services = front_of(http).services
    check_model(http.path_params["model"], services.model_name)
    return json_response(_model(services))


def _model(services: Services) -> Model:
    return Model(
        id=services.model_name,
        created=services.created,
        root=services.model_name,
        max_model_len=services.engine.limits.max_length,
    )

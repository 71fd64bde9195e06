"""The OpenAI-compatible HTTP server.

The composition root hands it an engine, the metrics that it tells, a tokenizer and a chat encoding
(`Services`); the server turns bytes into requests and outputs into bytes, and knows nothing of models
or memory.
"""

from milepost.server.access.exposure import check_access
from milepost.server.app import create_app
from milepost.server.config import ServerConfig
from milepost.server.services import Services
from milepost.server.serving import bind, serve
from milepost.server.telemetry.logs import configure_logging, tell
from milepost.server.telemetry.metrics import Metrics
from milepost.server.telemetry.tracing import Tracing, otlp_provider

__all__ = [
    "Metrics",
    "ServerConfig",
    "Services",
    "Tracing",
    "bind",
    "check_access",
    "configure_logging",
    "create_app",
    "otlp_provider",
    "serve",
    "tell",
]

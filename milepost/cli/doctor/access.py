"""Findings about who may ask a server, as its options say: keys, certificates, addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from milepost.cli.doctor.finding import Finding, Level
from milepost.errors import ConfigError

if TYPE_CHECKING:
    from milepost.server.config import ServerConfig

__all__ = ["examine_access"]

_TOPIC = "access"


def examine_access(server: ServerConfig) -> Iterator[Finding]:
    """Look at keys and certificates as `milepost serve` does before it starts.

    Args:
        server: its options.
    """
    from milepost.server import check_access  # with the HTTP stack, which takes a while

    try:
        warnings = check_access(server)
    except ConfigError as error:
        yield Finding(topic=_TOPIC, name="files", level=Level.PROBLEM, found=str(error))
        return
    for warning in warnings:
        found, _, advice = warning.partition(". ")
        yield Finding(
            topic=_TOPIC, name="address", level=Level.WARNING, found=f"{found.rstrip('.')}.", advice=advice
        )
    if not warnings:
        keys = "with keys" if server.api_keys is not None else "without a file of keys"
        yield Finding(topic=_TOPIC, name="address", level=Level.OK, found=f"{server.host}, {keys}")

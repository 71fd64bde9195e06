"""Whom the server can be reached by, and what an operator should know of it before it starts."""

from __future__ import annotations

import ipaddress
import os

from milepost.server.access.keys import ENVIRONMENT_NAME, KeyRing, read_keys
from milepost.server.access.tls import tls_context, tls_notes
from milepost.server.config import ServerConfig

__all__ = ["check_access", "is_loopback", "is_own_host"]


def check_access(config: ServerConfig) -> list[str]:
    """Read the files that decide who may ask, before the model is loaded.

    Returns:
        warnings for whoever runs the server.

    Raises:
        ConfigError: a file of keys, or a certificate or its key, is wrong.
    """
    keys, notes = read_keys(config.api_keys, os.environ)
    if config.tls_cert is not None and config.tls_key is not None:
        tls_context(config.tls_cert, config.tls_key)
        notes = [*notes, *tls_notes(config.tls_key)]
    return [*_exposure(config, keys), *notes]


def _exposure(config: ServerConfig, keys: KeyRing) -> list[str]:
    if is_loopback(config.host):
        return []
    found = []
    if not keys:
        found.append(
            f"Everyone who reaches {config.host} may use this server, read its metrics and empty its cache. "
            f"Give --api-keys or ${ENVIRONMENT_NAME}, or listen at 127.0.0.1 behind a gateway."
        )
    if config.tls_cert is None:
        found.append(
            f"What goes to and from {config.host}, keys and prompts included, can be read on its way. "
            "Give --tls-cert and --tls-key, or let a gateway speak TLS."
        )
    return found


def is_loopback(host: str) -> bool:
    """Whether an address or name is of this machine alone."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may mean anything


def is_own_host(header: str, allowed: tuple[str, ...]) -> bool:
    """Whether a ``Host`` header names a server that listens on this machine alone.

    A page of another site can make a browser send requests here by letting its own name mean 127.0.0.1
    (DNS rebinding); then its name is in the header. Addresses and names without a dot can't be another
    site's.

    Args:
        header: with or without a port.
        allowed: other names that mean this server.
    """
    host = header.strip().lower()
    if host.startswith("["):
        return "]" in host
    host = host.rpartition(":")[0] if ":" in host else host
    host = host.rstrip(".")
    known = {name.lower() for name in allowed}
    if "." not in host or host.endswith(".localhost") or host in known or "*" in known:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

"""TLS: a certificate chain and its key, checked before anything slow begins."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

from milepost.errors import ConfigError

__all__ = ["tls_context", "tls_notes"]


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """What a server needs to speak TLS 1.2 and up.

    Args:
        certificate: a PEM file of the chain, the server's own certificate first.
        key: a PEM file of its key, without a passphrase.

    Raises:
        ConfigError: a file can't be read, is no PEM, or the two don't belong together.
    """
    for option, file in (("tls_cert", certificate), ("tls_key", key)):
        try:
            Path(file).read_bytes()
        except OSError as error:
            raise ConfigError(f"{option}: can't read {file}: {error.strerror}.") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A renegotiation costs the server more than its client.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except ssl.SSLError as error:
        raise ConfigError(f"tls_cert, tls_key: {_reason(error)} Given: {certificate} and {key}.") from None
    except _PassphraseError:
        raise ConfigError(
            f"tls_key: {key} has a passphrase, and nobody is there to type it. "
            f"Give one without: openssl pkey -in {key} -out plain.pem; chmod 600 plain.pem."
        ) from None
    return context


def tls_notes(key: str) -> list[str]:
    """What whoever runs the server should know of the key's file."""
    if Path(key).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return [f"{key} is a private key and others can read it: chmod 600."]
    return []


class _PassphraseError(Exception):
    """OpenSSL asks for one; its own way to ask would be the terminal."""


def _no_passphrase() -> str:
    raise _PassphraseError


def _reason(error: ssl.SSLError) -> str:
    reason = str(error.reason or "PEM_LIB")  # whatever its annotation says, it may be None
    if reason == "KEY_VALUES_MISMATCH":
        return "the key is not the certificate's."
    if reason in {"NO_START_LINE", "PEM_LIB", "BAD_BASE64_DECODE", "BAD_END_LINE"}:
        return "these must be a certificate chain and a key in PEM."
    return f"OpenSSL says: {reason.replace('_', ' ').lower()}."

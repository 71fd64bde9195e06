"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["make_certificate", "needs_openssl"]

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")


def make_certificate(folder: Path, name: str = "server") -> tuple[str, str]:
    """A certificate of 127.0.0.1 that signs itself, and its key: paths of both."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    asked = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(key), "-out", str(certificate), "-days", "2"]
    name_of_it = ["-subj", "/CN=milepost test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *asked, *files, *name_of_it], check=True, capture_output=True)
    key.chmod(0o600)
    return str(certificate), str(key)

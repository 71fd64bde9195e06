"""Schemathesis: whether the server does what its own OpenAPI description says, on values made from that."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import Server

pytestmark = pytest.mark.clients

EXAMPLES = 25
SECONDS = 300

# A schema can't say all that a request must be: which message may follow which, that a prompt fits.
NOT_SAID = "positive_data_acceptance"


# A request may ask for less time than anything takes: that is 504, and no fault.
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 504]
"""


def test_the_server_does_what_it_describes(server: Server, tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("needs schemathesis")
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    words = [
        *(
            "--config-file",
            str(config),
            "run",
            f"{server.url}/openapi.json",
            "--checks",
            "all",
            "--exclude-checks",
            NOT_SAID,
        ),
        *("--max-examples", str(EXAMPLES), "--seed", "1", "--request-timeout", "30", "--no-color"),
    ]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("schemathesis")), *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "No issues found" in done.stdout
    assert not server.running()

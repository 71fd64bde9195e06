"""The options of `milepost serve` beside `ServerConfig`, which they fill."""

from __future__ import annotations

import click
import msgspec
import pytest

from milepost.cli.serve import serve
from milepost.cli.serve_options import take_server_config
from milepost.errors import ConfigError
from milepost.server import ServerConfig

WORDS: dict[object, str] = {None: "no limit", (): "none", True: "on"}
WITHOUT_DEFAULT = {"api_keys", "tls_cert", "tls_key", "log_prompts", "otlp_endpoint"}
FIELDS = {field.name: field for field in msgspec.structs.fields(ServerConfig)}


@pytest.mark.parametrize("name", FIELDS)
def test_an_option_tells_the_default_that_the_config_has(name: str) -> None:
    (option,) = [one for one in serve.params if one.name == name]
    assert isinstance(option, click.Option)
    default = FIELDS[name].default
    if name in WITHOUT_DEFAULT:
        assert not default
    elif isinstance(default, bool | tuple | None):
        assert f"[default: {WORDS[default]}]" in (option.help or "")
    else:
        shown = f"{default:g}" if isinstance(default, float) else default
        assert f"[default: {shown}]" in (option.help or "")


def test_nothing_given_is_the_default() -> None:
    assert take_server_config({"host": None, "cors_origins": (), "model": "x"}) == ServerConfig()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("port", 65536, "--port must be between 0 and 65535. Given: 65536."),
        ("max_waiting", 0, "--max-waiting must be at least 1. Given: 0."),
        ("request_timeout", float("nan"), "--request-timeout must be more than 0 seconds. Given: nan."),
        ("drain_seconds", -1.0, "--drain-seconds must be at least 0 seconds. Given: -1.0."),
        ("log_format", "jsn", "--log-format must be one of text, json. Given: 'jsn'. Did you mean 'json'?"),
        ("tls_cert", "a.pem", "--tls-cert needs its key too: both are files in PEM."),
        ("tls_key", "a.pem", "--tls-key needs its certificate chain too: both are files in PEM."),
        ("metrics_prefix", "a-b", "--metrics-prefix must be letters, digits and underscores. Given: 'a-b'."),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_option(name: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        take_server_config({name: value})
    assert str(raised.value) == words

"""`milepost serve --config`: what a file says, what the command line says over it, and the file it writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milepost.cli.app import run
from milepost.cli.config_file import read_config_file
from milepost.cli.config_text import config_text
from milepost.cli.shipped_model import shipped_model
from milepost.config import EngineConfig
from milepost.errors import ConfigError
from milepost.server import ServerConfig

Configs = tuple[EngineConfig, ServerConfig]
Capture = pytest.CaptureFixture[str]

EVERYTHING = EngineConfig(
    model="/models/k3",
    dtype="bfloat16",
    kv_dtype="bfloat16",
    weights="int8",
    memory="2GiB",
    layout="aligned",
    block_size=32,
    max_num_seqs=3,
    max_num_batched_tokens=100,
    max_model_len=1000,
    seed=-7,
    kernels="reference",
    threads=2,
    served_model_name='a "quoted" name \x7f \\ 🛣',
    check_states=True,
    match_unit="block",
    snapshot_policy="turns+branch",
    eviction="marconi(alpha=0.5)",
    host_cache=1 << 20,
    disk_cache="/cache, and more,20GiB",
    chat_template="/chat.jinja",
    reply_parser="think-tags+hermes",
    wait_for_leaders=False,
)
EVERYTHING_SERVED = ServerConfig(
    host="0.0.0.0",  # noqa: S104 - nothing listens
    port=1,
    api_keys="/keys.toml",
    allowed_hosts=("example.org",),
    max_body=1 << 20,
    body_timeout=3.5,
    max_waiting=2,
    max_connections=3,
    max_choices=4,
    request_timeout=1.5,
    stalled_reader_timeout=2.5,
    tls_cert="/cert.pem",
    tls_key="/key.pem",
    cors_origins=("https://example.org", "*"),
    drain_seconds=0.0,
    log_level="info",
    log_format="json",
    log_prompts=True,
    metrics_prefix="vllm",
    otlp_endpoint="http://localhost:4318",
    page=False,
)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "milepost.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def reread(path: Path) -> Configs:
    file = read_config_file(path)
    return EngineConfig(**file.engine), ServerConfig(**file.server)


def test_what_is_written_reads_back_to_the_same(write: Any) -> None:
    assert reread(write(config_text(EVERYTHING, EVERYTHING_SERVED))) == (EVERYTHING, EVERYTHING_SERVED)


def test_the_example_above_leaves_no_option_at_its_default() -> None:
    """Else the test before would not see a field that is lost: give a new option a value up there."""
    engine, default = msgspec.structs.asdict(EVERYTHING), msgspec.structs.asdict(EngineConfig(model="x"))
    same = {name for name, value in engine.items() if value == default[name]}
    assert same == {"prefix_cache", "cache_key"}  # the cache's other options need it; a secret isn't written
    server, plain = msgspec.structs.asdict(EVERYTHING_SERVED), msgspec.structs.asdict(ServerConfig())
    assert not {name for name, value in server.items() if value == plain[name]}


def test_defaults_are_written_as_comments_that_say_what_each_is(write: Any, capsys: Capture) -> None:
    assert run(["serve", "--print-config"]) == 0
    text = capsys.readouterr().out
    for name in EngineConfig.__struct_fields__ + ServerConfig.__struct_fields__:
        assert re.search(rf"^# {name}: \S", text, re.MULTILINE), f"{name} has no comment"
    shipped = EngineConfig(model=str(shipped_model()))
    assert reread(write(text)) == (shipped, ServerConfig())
    uncommented = re.sub(r"^# (\w+ = \S)", r"\1", text, flags=re.MULTILINE)
    assert "\nport = 8000" in uncommented
    assert reread(write(uncommented)) == (shipped, ServerConfig())


def test_a_secret_is_never_written() -> None:
    secret = "ab" * 16
    text = config_text(EngineConfig(model="x", cache_key=secret), ServerConfig())
    assert secret not in text
    assert "MILEPOST_CACHE_KEY" in text


def test_the_command_line_wins(write: Any, capsys: Capture) -> None:
    path = write(
        '[engine]\nmodel = "m"\nthreads = 3\nseed = 1\n[server]\nport = 1\npage = false\nmax-body = "1MiB"\n'
    )
    words = [
        "serve",
        "other",
        "--config",
        str(path),
        "--threads",
        "5",
        "--port",
        "2",
        "--page",
        "--print-config",
    ]
    assert run(words) == 0
    out = capsys.readouterr().out
    path.write_text(out)
    engine, server = reread(path)
    assert (engine.threads, engine.seed) == (5, 1)
    assert engine.model == str(Path("other").absolute())
    assert server == ServerConfig(port=2, max_body="1MiB")


def test_paths_are_relative_to_the_file(write: Any, tmp_path: Path) -> None:
    path = write(
        '[engine]\nmodel = "k3"\nhost-cache = "1GiB"\ndisk_cache = "cache,20GiB"\n'
        '[server]\napi-keys = "keys.toml"\ntls_cert = "/etc/cert.pem"\ntls_key = "../key.pem"\n'
    )
    file = read_config_file(path)
    assert file.engine["model"] == str(tmp_path / "k3")
    assert file.engine["disk_cache"] == f"{tmp_path / 'cache'},20GiB"
    assert file.server["api_keys"] == str(tmp_path / "keys.toml")
    assert file.server["tls_cert"] == "/etc/cert.pem"
    assert file.server["tls_key"] == str(tmp_path / "../key.pem")


def test_the_shipped_model_has_its_name_in_a_file_too(write: Any) -> None:
    assert read_config_file(write('[engine]\nmodel = "milepost-toy-k3"')).engine["model"] == str(
        shipped_model()
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\n\nprot = 1", "FILE, line 3, [server]: unknown key 'prot'. Did you mean 'port'?"),
        ("[server]\nport = '1'", "FILE, line 2, [server]: port must be a whole number. Given: '1'."),
        ("[server]\nport = true", "FILE, line 2, [server]: port must be a whole number. Given: True."),
        (
            "[server]\nmax-body = []",
            "FILE, line 2, [server]: max-body must be a whole number or a string. Given: [].",
        ),
        (
            "[server]\ncors_origins = '*'",
            "FILE, line 2, [server]: cors_origins must be a list of strings. Given: '*'.",
        ),
        ("[server]\npage = 1", "FILE, line 2, [server]: page must be true or false. Given: 1."),
        ("[server]\na-b=1\n", "FILE, line 2, [server]: unknown key 'a-b'. Known: host, port"),
        (
            "[server]\nmax-body=1\nmax_body=2",
            "FILE, line 3, [server]: max_body is given twice, with a dash and without.",
        ),
        ("[servr]\nport = 1", "FILE, line 1: there is no table 'servr'. Did you mean 'server'?"),
        ("\nport = 1", "FILE, line 2: 'port' stands in no table. Put it under [server]."),
        ("max-num-seqs = 1", "FILE, line 1: 'max-num-seqs' stands in no table. Put it under [engine]."),
        ("server.prot = 1", "FILE, line 1, [server]: unknown key 'prot'. Did you mean 'port'?"),
        ("[server", "FILE is not TOML: "),
        ("[server]\nport = 70000", "FILE, line 2, [server]: port must be between 0 and 65535. Given: 70000."),
        (
            "[server]\ntls_cert = 'a'\ntls_key = \"a\\u0000\"",
            "FILE, line 3, [server]: tls_key must not hold a character of code 0. Given: 'a\\x00'.",
        ),
        (
            "[server]\ncors_origins = ['https://a.example', 'https://a.example/']",
            "FILE, line 2, [server]: cors_origins must be such as https://example.org, without a path, or *.",
        ),
        ("[engine]\nthreads = 0", "FILE, line 2, [engine]: threads must be between 1 and 1024. Given: 0."),
        ("[engine]\nweights = 'int4'", "FILE, line 2, [engine]: weights must be one of auto, float32"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(write: Any, capsys: Capture, text: str, words: str) -> None:
    path = write(text)
    assert run(["serve", "--config", str(path), "--print-config"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("milepost: error: " + words.replace("FILE", str(path)))


def test_what_the_command_line_says_wrongly_is_not_blamed_on_the_file(write: Any, capsys: Capture) -> None:
    path = write("[server]\nport = 1\n")
    assert run(["serve", "--config", str(path), "--port", "70000", "--print-config"]) == 2
    assert capsys.readouterr().err == "milepost: error: --port must be between 0 and 65535. Given: 70000.\n"


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path: Path, capsys: Capture) -> None:
    assert run(["serve", "--config", str(tmp_path / "none.toml"), "--print-config"]) == 2
    assert (
        capsys.readouterr().err == f"milepost: error: {tmp_path / 'none.toml'}: No such file or directory.\n"
    )
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    assert run(["serve", "--config", str(tmp_path / "bad.toml"), "--print-config"]) == 2
    assert "must be UTF-8 text" in capsys.readouterr().err


def test_a_name_that_is_no_text_can_not_be_written() -> None:
    with pytest.raises(ConfigError, match="UTF-8"):
        config_text(EngineConfig(model="\udcff"), ServerConfig())

"""The README's examples are run: commands by the real command line's parser, code and requests for real."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from milepost.cli.app import commands, run
from milepost.cli.serve import serve
from milepost.config import EngineConfig
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.engine.scripted_cache import ScriptedCache
from tests.repository.paths import ROOT
from tests.server.scripted_server import END_OF_REPLY, MODEL, ServedEngine, serving

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)
SERVER = "http://localhost:8000"
SERVED_MODEL = "milepost-toy-k3"


def blocks(language: str) -> list[str]:
    return [match["text"] for match in BLOCK.finditer(README) if match["language"] == language]


def command_lines() -> list[list[str]]:
    """Every shell command, without comments, its continued lines joined."""
    text = "\n".join(blocks("sh")).replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedEngine]:
    with serving() as served:
        served.script.write(f"<|close|>think<|sep|><|open|>response<|sep|>Good day.{END_OF_REPLY}")
        yield served


def for_server(text: str, served: ServedEngine) -> str:
    """An example with the test server in place of the reader's."""
    assert SERVER in text
    assert SERVED_MODEL in text
    return text.replace(SERVER, served.url).replace(SERVED_MODEL, MODEL)


def test_every_command_is_of_a_known_kind() -> None:
    assert {words[0] for words in command_lines()} == {"make", ".", "milepost", "pip", "curl"}


@pytest.mark.parametrize(
    "words", [words for words in command_lines() if words[0] == "milepost"], ids=" ".join
)
def test_milepost_commands_parse(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "question.txt").write_text("What is 3 plus 4?")
    _, name, *arguments = words
    command = commands.commands[name]
    if isinstance(command, click.Group):
        name, *arguments = arguments
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    assert isinstance(command, click.Command)
    command.make_context(name, arguments).close()


@pytest.mark.parametrize(
    "words", [words for words in command_lines() if words[:2] == ["milepost", "simulate"]], ids=" ".join
)
def test_simulate_commands_run(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = next(word for word in words if (ROOT / word).is_file())
    (tmp_path / sample).parent.mkdir(parents=True)
    (tmp_path / sample).symlink_to(ROOT / sample)
    monkeypatch.chdir(tmp_path)
    assert run(words[1:]) == 0
    out, err = capsys.readouterr()
    assert "hit rate" in out
    assert err == ""
    assert ("--html" in words) == (tmp_path / "report.html").exists()


def test_pip_lines_are_what_make_installs() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    torch_line, milepost_line = [words for words in command_lines() if words[0] == "pip"]
    assert torch_line[:2] == ["pip", "install"]
    assert torch_line[2] in pins
    assert milepost_line == ["pip", "install", "-c", "constraints.txt", "-e", ".[engine,server]"]


def test_curl_example(served: ServedEngine) -> None:
    (words,) = [words for words in command_lines() if words[0] == "curl" and "-d" in words]
    url, header, body = words[1], words[words.index("-H") + 1], words[words.index("-d") + 1]
    assert url.startswith(SERVER)
    assert header == "Content-Type: application/json"
    content = json.loads(body)
    assert content["model"] == SERVED_MODEL
    reply = served.call(url.removeprefix(SERVER), content | {"model": MODEL})
    assert reply.status == 200, reply.body


def test_reset_example(served: ServedEngine) -> None:
    (words,) = [words for words in command_lines() if words[0] == "curl" and "-d" not in words]
    assert words[:3] == ["curl", "-X", "POST"]
    assert words[4:] == ["-H", "Content-Type: application/json"]
    ScriptedCache().install(served.scheduler)
    reply = served.call(words[3].removeprefix(SERVER), method=words[2])
    assert reply.status == 200, reply.body


def test_the_cache_s_table_has_the_options_and_their_defaults() -> None:
    section = README.partition("## The prefix cache")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:3] for row in section.splitlines() if row.startswith("| `--")]
    named = {flag: default.strip(" `") for flags, default in rows for flag in re.findall(r"--[a-z-]+", flags)}
    flags = {flag: option for option in serve.params for flag in [*option.opts, *option.secondary_opts]}
    config = EngineConfig(model="x")
    for flag, default in named.items():
        value = getattr(config, flags[flag].name or "")
        assert default == {True: "on", None: "none"}.get(value, str(value)), flag


def test_python_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [text for text in blocks("python") if "LLM(" in text]
    folder = write_toy_checkpoint(tmp_path / "toy", "kimi_k3", 1)
    code = code.replace("milepost/assets/milepost-toy-k3", str(folder)).replace(
        'memory="256MiB"', 'memory="64MiB", threads=1'
    )
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - our own example
    assert re.search(r" (stop|length)\n", capsys.readouterr().out)


def test_openai_example(served: ServedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [text for text in blocks("python") if "OpenAI(" in text]
    names: dict[str, object] = {}
    exec(compile(for_server(code, served), "README.md", "exec"), names)  # noqa: S102 - our own example
    names["client"].close()  # type: ignore[attr-defined]
    assert capsys.readouterr().out.strip().endswith("Good day.")

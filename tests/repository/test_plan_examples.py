"""What the documents say of ``milepost plan`` is run: commands and Python, and every option is told."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from milepost.cli.app import run
from milepost.cli.plan.group import plan
from tests.repository.paths import ROOT

DOCUMENTS = ("README.md", "docs/plan.md")
GUIDE = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def command_lines() -> list[list[str]]:
    """Every `milepost plan` of the documents, continued lines joined, without what it is piped into."""
    text = "\n".join(block for document in DOCUMENTS for block in blocks(document, "sh"))
    lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    plans = [words for words in lines if words[:2] == ["milepost", "plan"]]
    return [words[: words.index("|")] if "|" in words else words for words in plans]


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_commands_run(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in words:
        if word.startswith("tests/"):  # a sample of the repository's
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / word).symlink_to(ROOT / word)
    monkeypatch.chdir(tmp_path)
    assert run(words[1:]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out
    files = [Path(words[place + 1]) for place, word in enumerate(words) if word == "--html"]
    assert all(file.is_file() for file in files)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_examples_run(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    for code in blocks(document, "python"):
        if "milepost.planner" in code:
            exec(compile(code, document, "exec"), {})  # noqa: S102 - our own example
            assert capsys.readouterr().out


def test_the_guide_has_an_example_of_python_and_of_each_command() -> None:
    assert "milepost.planner" in "".join(blocks("docs/plan.md", "python"))
    named = {words[2] for words in command_lines()}
    assert named >= set(plan.list_commands(click.Context(plan)))


def flags_of(name: str) -> set[str]:
    command = plan.get_command(click.Context(plan), name)
    assert command is not None
    return {flag for option in command.params for flag in [*option.opts, *option.secondary_opts]}


def test_every_option_that_the_guide_names_exists() -> None:
    text = re.sub(r"`python -m [^`]*`", "", GUIDE)
    known = {flag for name in plan.list_commands(click.Context(plan)) for flag in flags_of(name)}
    assert set(re.findall(r"--[a-z][a-z-]*", text)) <= known


@pytest.mark.parametrize("name", plan.list_commands(click.Context(plan)))
def test_the_guide_tells_every_option(name: str) -> None:
    assert f"\n## {name.capitalize()}" in GUIDE
    command = plan.get_command(click.Context(plan), name)
    assert command is not None
    told = set(re.findall(r"--[a-z][a-z-]*", GUIDE))
    assert [option.opts for option in command.params if not told & set(option.opts)] == []

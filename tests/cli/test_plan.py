"""Each command of ``milepost plan`` by what all of them promise; what each computes is tested beside it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from milepost.cli.app import run
from milepost.cli.plan.group import plan
from milepost.planner.worksheet import number_text
from milepost.shapes.names import SHAPES
from tests.repository.paths import ROOT

COMMANDS = plan.list_commands(click.Context(plan))
UNITS = re.compile(
    r"(^|_)(bytes|tokens?|seconds|flops?|usd|watts|requests|states|slots|pages|devices|ranks|experts|per|price"
    r"|share|load|utilization|ratio|rate|factor|scale|gain|speedup|saving|mean|percentile)(_|$)"
)
HEAVY = ("torch", "polars", "plotly", "pandas")

REFUSED = {
    ("moe", "qwen3.5-4b"),  # no experts
    ("moe", "qwen3.5-27b"),
    ("moe", "qwen3.8-27b"),
    ("serve", "milepost-toy-k3"),  # shorter than the default prompt
}


@pytest.fixture(scope="module", params=COMMANDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def output_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["plan", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.fixture
def fields(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output_of(capsys, name, "--json"))
    return found


def test_tables_are_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = output_of(capsys, name)
    assert "kimi-k3" in out.splitlines()[0].lower().replace(" ", "-")
    assert "\nNotes\n" in out
    assert not re.search(r"\b(nan|inf|None)\b", out), "what is not known has words"


def test_help_has_examples_that_parse(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = output_of(capsys, name, "--help")
    assert "What is deployed:" in out
    text = out.partition("Examples:")[2].replace("\\\n", " ")
    examples = [shlex.split(line, comments=True) for line in text.splitlines() if line.strip()]
    assert len(examples) > 1
    command = plan.get_command(click.Context(plan), name)
    assert command is not None
    for words in examples:
        assert words[:3] == ["milepost", "plan", name]
        ours = words[: words.index("|")] if "|" in words else words
        command.make_context(name, ours[3:]).close()


def test_json_has_numbers_with_their_units(name: str, fields: dict[str, Any]) -> None:
    assert fields["derivations"]
    assert all(isinstance(note, str) for note in fields["notes"])
    unnamed = {
        path for path, value in _numbers(fields) if isinstance(value, float) and not UNITS.search(path)
    }
    assert not unnamed, "a number that is no count must say its unit"


def _numbers(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Names of fields and the numbers in them; derivations have units of their own."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name != "derivations":
                yield from _numbers(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def test_every_number_can_be_explained(
    name: str, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    derivations = fields["derivations"]
    names = [line.split()[0] for line in output_of(capsys, name, "--explain", "list").splitlines()]
    assert names == [entry["name"] for entry in derivations]
    words = [word for one in names for word in ("--explain", one)]
    told = output_of(capsys, name, *words).split("\n\n")
    assert len(told) == len(names)
    for text, entry in zip(told, derivations, strict=True):
        first = text.splitlines()[0]
        assert first.split()[:2] == [entry["name"], number_text(entry["value"])]
        assert entry["formula"] in first
        assert entry["source"] or entry["formula"], f"{entry['name']} comes from nowhere"
        assert len(text.splitlines()) > len(set(entry["inputs"]))


def test_a_page_holds_everything_and_loads_nothing(
    name: str, fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.html"
    output_of(capsys, name, "--html", str(file))
    page = file.read_text(encoding="utf-8")
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    targets = set(re.findall(r"(?:src|href)=[\"']?([^\"'>\s]*)", markup))
    assert all(target == "data:," or target.startswith("#d") for target in targets)
    assert not re.search(r"@import|url\((?!#)", markup)
    assert markup.count('class="number-of"') == len(fields["derivations"])


@pytest.mark.parametrize("model", SHAPES)
def test_every_known_model_is_planned_or_refused_in_one_line(
    model: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.html"
    code = run(["plan", name, "--model", model, "--html", str(file)])
    out, err = capsys.readouterr()
    assert code == (2 if (name, model) in REFUSED else 0), err
    if code == 0:
        assert model in out
        assert model in file.read_text(encoding="utf-8")
    else:
        assert not file.exists()
        assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "kimi-k4"], "Did you mean 'kimi-k3'?"),
        (["--hardware", "h2000"], "Did you mean 'h200'?"),
        (["--tp", "7"], "The nearest that does: 6"),
        (["--tp", "8", "--cp", "3"], "The nearest that does: "),
        (["--hardware", "h100", "--dp", "1"], "h100"),
    ],
)
def test_nonsense_is_one_line(
    name: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", name, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("milepost: error: ")
    assert err.count("\n") == 1
    assert says in err


def test_a_plan_imports_nothing_heavy(name: str) -> None:
    script = f"""
import sys
from milepost.cli.app import run
assert run(["plan", {name!r}]) == 0
loaded = sorted(set(sys.modules) & {set(HEAVY)!r})
others = sorted({{f"milepost.cli.plan.{{other}}" for other in {COMMANDS!r}}} & set(sys.modules))
print(loaded, others, file=sys.stderr)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.stderr == f"[] ['milepost.cli.plan.{name}']\n"

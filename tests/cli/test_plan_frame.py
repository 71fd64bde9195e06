"""What the commands of ``milepost plan`` share, shown with a small one of the tests' own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from milepost.cli import output_files
from milepost.cli.app import commands, run
from milepost.cli.option_groups import GroupedCommand
from milepost.cli.plan.group import PLANS, plan
from milepost.cli.plan.options import deployment_options, take_deployment
from milepost.cli.plan.outputs import finish, output_options, take_outputs
from milepost.planner.deployment import Deployment
from tests.planner.render.reports import StatesPlan, make_plan, make_report

taken: list[Deployment] = []


@click.command(cls=GroupedCommand)
@deployment_options
@output_options
def sample(**options: Any) -> None:
    taken.append(take_deployment(options))
    outputs = take_outputs(options)
    finish(make_plan("<&>"), make_report("<&>"), outputs)


@pytest.fixture(autouse=True)
def _sample(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``milepost sample`` for a test."""
    monkeypatch.setitem(commands.commands, "sample", sample)
    taken.clear()
    yield
    taken.clear()


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that wrong input gives."""
    assert run(["sample", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("milepost: error: ")
    assert err.count("\n") == 1
    return err


# -- the group ---------------------------------------------------------------------------------------


def test_the_table_of_commands_and_the_modules_are_the_same() -> None:
    folder = Path(import_module("milepost.cli.plan").__path__[0])
    modules = {path.stem for path in folder.glob("*.py")} - {
        "__init__",
        "group",
        "options",
        "outputs",
        "quantities",
    }
    with click.Context(plan) as context:
        assert set(plan.list_commands(context)) == modules
        for name in modules:
            command = plan.get_command(context, name)
            assert command is not None
            assert command.name == name
            assert PLANS[name]


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "nothing"]) == 2
    assert capsys.readouterr().err == (
        "milepost: error: No such command 'nothing'. See 'milepost plan --help'.\n"
    )


@pytest.mark.parametrize("words", [["plan"], ["plan", "--help"], ["trace"]])
def test_a_group_alone_shows_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: milepost {words[0]}")
    assert "Examples:" in out
    assert err == ""


# -- the deployment ----------------------------------------------------------------------------------


def test_defaults_are_the_deployment_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sample"]) == 0
    assert taken == [Deployment()]


def test_every_option_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--model m --hardware h --tp 8 --dp 2 --ep 16 --cp 4 --kv-dtype fp8 --state-dtype bf16"
    assert run(["sample", *words.split(), "--memory-share", "0.5"]) == 0
    wanted = Deployment(
        model="m",
        hardware="h",
        tensor_parallel=8,
        data_parallel=2,
        expert_parallel=16,
        context_parallel=4,
        kv_dtype="fp8",
        state_dtype="bf16",
        memory_share=0.5,
    )
    assert taken == [wanted]
    defaults = msgspec.structs.asdict(Deployment())
    assert all(value != defaults[name] for name, value in msgspec.structs.asdict(wanted).items())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tp", "0"], "--tp must be 1 to 1,048,576. Given: 0."),
        (["--tp", "-8"], "--tp must be 1 to"),
        (["--dp", "-1"], "--dp must be 0 to"),
        (["--ep", str(10**30)], "--ep must be 0 to"),
        (["--cp", "0"], "--cp must be 1 to"),
        (["--tp", "1.5"], "'1.5' is not a valid integer"),
        (
            ["--kv-dtype", "fp9"],
            "--kv-dtype must be one of bf16, fp8, fp32. Given: 'fp9'. Did you mean 'fp8'?",
        ),
        (["--state-dtype", "x"], "--state-dtype must be one of fp32, bf16. Given: 'x'."),
        (["--memory-share", "0"], "--memory-share must be a share above 0 and at most 1. Given: 0.0."),
        (["--memory-share", "nan"], "--memory-share must be a share"),
        (["--memory-share", "90"], "--memory-share must be a share"),
        (["--memory-share", "-inf"], "--memory-share must be a share"),
        (["--modle", "x"], "No such option '--modle'"),
    ],
)
def test_nonsense_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in error_of(capsys, *words)


# -- what is shown -----------------------------------------------------------------------------------


def test_tables_are_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sample"]) == 0
    out, err = capsys.readouterr()
    assert "Memory of <&>" in out
    assert "paged" in out
    assert err == ""
    assert not any(line != line.rstrip() for line in out.splitlines()), "a pipe needs no trailing blanks"


def test_json_stands_in_place_of_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sample", "--json", "--tp", "2"]) == 0
    out, err = capsys.readouterr()
    assert msgspec.convert(json.loads(out), StatesPlan) == make_plan("<&>")
    assert err == ""


def test_files_stand_beside_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "deep" / "plan.json", tmp_path / "plan.html"]
    assert run(["sample", "--json", str(files[0]), "--html", str(files[1])]) == 0
    assert "paged" in capsys.readouterr().out
    assert json.loads(files[0].read_text())["states_that_fit"] == 445
    assert "Memory of &lt;&amp;&gt;" in files[1].read_text()


def test_explanations_stand_in_place_of_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    words = ["--explain", "used_bytes", "--explain", "free_bytes", "--json", str(file)]
    assert run(["sample", *words]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("used_bytes")
    assert "states_that_fit" in first
    assert second == "free_bytes  200,000,000,000 bytes  from <&>\n"
    assert file.exists()


def test_list_has_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sample", "--explain", "list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [entry.name for entry in make_plan().derivations]


def test_an_unknown_name_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    message = error_of(capsys, "--explain", "used_byte", "--json", str(file))
    assert "Did you mean 'used_bytes'?" in message
    assert not file.exists()


def test_json_and_explanations_can_t_both_have_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Give --json a FILE" in error_of(capsys, "--explain", "free_bytes", "--json")


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_files_that_can_t_be_written_are_known_before_the_work(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "a folder" in error_of(capsys, option, str(tmp_path))
    (tmp_path / "file").write_text("kept")
    assert "can't be written" in error_of(capsys, option, str(tmp_path / "file" / "below"))
    both = ["--json", str(tmp_path / "same"), "--html", str(tmp_path / "x" / ".." / "same")]
    assert "would overwrite" in error_of(capsys, *both)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_page_needs_plotly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output_files, "find_spec", lambda name: None)
    message = error_of(capsys, "--html", str(tmp_path / "plan.html"))
    assert "--html needs plotly, which is not installed" in message


def test_help_has_headings_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sample", "--help"]) == 0
    out = capsys.readouterr().out
    assert "What is deployed:" in out
    assert "Results:" in out
    assert "[default: kimi-k3]" in out

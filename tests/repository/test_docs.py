"""What the documents say is so: README commands, links into the code, pinned versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.repository.paths import ROOT, tracked_files

LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")
SYMBOL = re.compile(r"`(?P<symbol>[A-Za-z_][\w.]*)(?:\(\))?`")


def markdown_files() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".md"]


def make_targets() -> dict[str, str]:
    """Target -> its recipe, from the Makefile."""
    targets: dict[str, str] = {}
    name = ""
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"^([\w-]+):(?!=)(.*)$", line):
            name = match[1]
            targets[name] = match[2] + "\n"
        elif line.startswith("\t") and name:
            targets[name] += line + "\n"
        elif not line:
            name = ""
    return targets


def shell_blocks(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, flags=re.DOTALL)


def test_readme_gives_the_two_commands_on_its_first_screen() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_every_make_command_of_the_documents_exists() -> None:
    targets = make_targets()
    for path in markdown_files():
        for block in shell_blocks(path):
            for target in re.findall(r"^\$? ?make ([\w-]+)", block, flags=re.MULTILINE):
                assert target in targets, f"{path.name}: make {target}"


def test_ci_runs_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.startswith("#!/usr/bin/env bash")
    assert "set -euo pipefail" in script
    assert script.rstrip().endswith("\nmake test")


def test_make_test_lints_types_and_ends_with_pytest() -> None:
    targets = make_targets()
    assert targets["test"].split() == ["lint", "$(BIN)/python", "-m", "pytest"]
    for command in ("ruff check .", "ruff format --check .", "mypy", "lint-imports"):
        assert f"$(BIN)/{command}\n" in targets["lint"]


def test_constraints_pin_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [item for group in groups for item in group]
    names = {re.split(r"[\[>=<]", item)[0].replace("_", "-").lower() for item in wanted} - {"milepost"}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0].replace("_", "-").lower() for line in lines if "==" in line}
    assert names <= pinned
    assert all("+" not in line for line in lines if not line.startswith("#")), (
        "a local build can't be asked for"
    )


@pytest.mark.parametrize("path", markdown_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_point_to_what_is_there(path: Path) -> None:
    """A relative link names a file; ``#L10`` a line of it; a `symbol` as the link's text is defined there."""
    for match in LINK.finditer(path.read_text(encoding="utf-8")):
        target, _, anchor = unquote(match["target"]).partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{path.name}: {match['target']}"
        if line := re.fullmatch(r"L(\d+)(?:-L\d+)?", anchor):
            assert int(line[1]) <= len(file.read_text(encoding="utf-8").splitlines())
        if (symbol := SYMBOL.fullmatch(match["text"])) and file.suffix == ".py":
            assert defines(file, symbol["symbol"]), f"{file.name} does not define {symbol['symbol']}"


def defines(file: Path, dotted: str) -> bool:
    """Whether the last part of a dotted name is a class, function, method or assignment in the file."""
    name = re.escape(dotted.rpartition(".")[2])
    text = file.read_text(encoding="utf-8")
    return (
        re.search(rf"^\s*(?:async def|def|class) {name}\b|^\s*{name}\s*[:=]", text, re.MULTILINE) is not None
    )

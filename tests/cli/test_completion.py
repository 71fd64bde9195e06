"""`milepost completion`: the shells themselves are asked what they would offer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.cli.app import commands, run

ROOT = Path(__file__).parents[2]

# What readline does at the TAB key: fill in the line, call the function, read what it offers.
ASK_BASH = """
source "$SCRIPT"
COMP_WORDS=({words})
COMP_CWORD={last}
compopt() {{ echo "offer ${{@: -1}}"; }}
_milepost_completion milepost
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

# Whatever completion starts must do without torch.
COMMAND = """#!/bin/sh
exec "{python}" -c '
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {{"torch", "starlette", "uvicorn"}}:
            raise ImportError(f"{{name}} is not to be loaded")
sys.meta_path.insert(0, Refuse())
from milepost.cli import main
main()' "$@"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `milepost` that can't load torch."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "milepost"
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    return folder


def in_shell(folder: Path, *words: str) -> str:
    environment = os.environ | {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SCRIPT": str(folder / "script"),
    }
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


def offered(folder: Path, *words: str) -> list[str]:
    """What bash offers for the last of `words`."""
    (folder / "script").write_text(in_shell(folder, "milepost", "completion", "bash"))
    line = " ".join(f"'{word}'" for word in ("milepost", *words))
    script = ASK_BASH.format(words=line, last=len(words))
    return in_shell(folder, "bash", "--norc", "-c", script).split("\n")[:-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (("ser",), ["serve"]),
        (("serve", "--max-c"), ["--max-connections", "--max-choices"]),
        (("serve", "--weights", "b"), ["bfloat16"]),
        (("serve", "--log-format", ""), ["text", "json"]),
        (("serve", "--config", "x"), ["offer default", ""]),
        (("serve", "path/"), ["offer dirnames", ""]),
        (("doctor", "mile"), ["milepost-toy-k3"]),
        (("plan", "mem"), ["memory"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
    ],
)
def test_bash_offers_what_goes_on(folder: Path, words: tuple[str, ...], answers: list[str]) -> None:
    assert offered(folder, *words) == answers


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_offers_every_command(folder: Path) -> None:
    assert sorted(offered(folder, "")) == sorted(commands.commands)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_of_its_shell_and_reads_cleanly(
    tmp_path: Path, shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_MILEPOST_COMPLETE={shell}_complete" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_another_shell_is_an_error_that_names_those_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err

"""The examples in deploy/ against the repository: what they copy, run, promise and refer to."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from milepost.cli.config_file import read_config_file
from milepost.cli.serve import serve
from milepost.config import EngineConfig
from milepost.descriptors import OTHER_FILES
from milepost.server import ServerConfig
from milepost.server.serving import FLUSH_SECONDS
from tests.repository.paths import ROOT

DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "milepost.service").read_text(encoding="utf-8")
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
CONFIG = DEPLOY / "milepost.toml"


def unit(key: str) -> list[str]:
    """The values of a key of the unit."""
    return re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)


def instructions(stage: int) -> list[tuple[str, str]]:
    """Instruction and argument of each of a stage's lines, continued ones joined."""
    text = re.sub(r"^\s*#.*\n", "", CONTAINERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    stages = re.split(r"^(?=FROM )", text, flags=re.MULTILINE)[1:]
    lines = [line.split(maxsplit=1) for line in stages[stage].splitlines() if line.strip()]
    return [(name, rest) for name, rest in lines]


def served(words: list[str]) -> dict[str, Any]:
    """The parameters of a `milepost serve` command line, which must parse."""
    assert words[0] == "serve"
    context = serve.make_context("serve", words[1:])
    context.close()
    return context.params


# --- the config file ---------------------------------------------------------------------------------


def test_the_config_file_loads() -> None:
    file = read_config_file(CONFIG)
    EngineConfig(**file.engine)
    assert ServerConfig(**file.server).host == "127.0.0.1"


def test_what_the_config_file_has_in_comments_loads_too(tmp_path: Path) -> None:
    text, count = re.subn(r"^# ([a-z-]+ = )", r"\1", CONFIG.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count >= 4
    (tmp_path / "all.toml").write_text(text)
    EngineConfig(**read_config_file(tmp_path / "all.toml").engine)


# --- the unit ----------------------------------------------------------------------------------------


def test_the_unit_s_command_parses() -> None:
    (line,) = unit("ExecStart")
    program, *words = shlex.split(line)
    assert Path(program).name == "milepost"
    parameters = served(words)
    assert parameters["config_file"] == Path("/etc/milepost/milepost.toml")
    (credential,) = unit("LoadCredential")
    assert parameters["api_keys"] == f"%d/{credential.partition(':')[0]}"


def test_the_unit_waits_longer_than_the_server_drains() -> None:
    server = ServerConfig(**read_config_file(CONFIG).server)
    assert int(unit("TimeoutStopSec")[0]) > server.drain_seconds + FLUSH_SECONDS
    assert unit("KillSignal") == ["SIGTERM"]


def test_the_unit_may_open_as_many_files_as_it_takes_connections() -> None:
    server = ServerConfig(**read_config_file(CONFIG).server)
    assert int(unit("LimitNOFILE")[0]) >= server.max_connections + OTHER_FILES


def test_the_unit_may_write_where_the_config_file_s_cache_lies() -> None:
    assert unit("CacheDirectory") == ["milepost"]
    assert "/var/cache/milepost/" in CONFIG.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("words", [("verify",), ("security", "--offline=true", "--threshold=20")])
def test_systemd_finds_the_unit_valid_and_hardened(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "milepost.service"
    path.write_text(
        UNIT.replace("/usr/local/lib/milepost/bin/milepost", "/bin/true")
    )  # it looks for the program
    done = subprocess.run(
        ["systemd-analyze", *words, str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


# --- the image ---------------------------------------------------------------------------------------


def test_what_the_image_copies_is_there_and_is_all_that_the_build_needs() -> None:
    copied = [rest.split()[:-1] for name, rest in instructions(0) if name == "COPY"]
    names = {name for names in copied for name in names}
    assert all((ROOT / name).exists() for name in names)
    assert {"pyproject.toml", "setup.py", "MANIFEST.in", "milepost", "constraints.txt"} <= names
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {project["readme"], *project["license-files"]} <= names


def test_what_the_image_copies_and_no_more_is_sent_to_its_builder() -> None:
    copied = [rest.split()[:-1] for name, rest in instructions(0) if name == "COPY"]
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert rules[1] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == {
        name for names in copied for name in names
    }


def test_the_image_installs_as_the_readme_does() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    torch, milepost = re.findall(r"^pip install (.*)$", readme, re.MULTILINE)[:2]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert torch in pins
    installs = [rest for name, rest in instructions(0) if name == "RUN" and rest.startswith("pip ")]
    assert len(installs) == 2
    assert "\"$(grep '^torch==' constraints.txt)\"" in installs[0]
    assert installs[1].replace(" --no-cache-dir", "") == "pip install " + milepost.replace(" -e ", " ")


def test_the_image_s_last_stage_has_no_tools_and_no_root() -> None:
    last = instructions(-1)
    runs = " ".join(rest for name, rest in last if name == "RUN")
    assert not re.search(r"apt-get|g\+\+|gcc|pip ", runs)
    assert [rest for name, rest in last if name == "USER"] == ["10001"]
    assert [rest for name, rest in last if name == "COPY"] == ["--from=build /app /app"]
    assert any(name == "HEALTHCHECK" and "/health" in rest for name, rest in last)
    bases = {instructions(stage)[0][1].split()[0] for stage in (0, 1)}
    assert len(bases) == 1, "what is compiled in one stage runs in the other"


def test_the_image_s_command_parses() -> None:
    last = dict(instructions(-1))
    assert yaml.safe_load(last["ENTRYPOINT"]) == ["milepost"]
    assert served(yaml.safe_load(last["CMD"]))["host"] == "0.0.0.0"  # noqa: S104 - within the container
    health = yaml.safe_load(last["HEALTHCHECK"].partition("CMD ")[2])
    compile(health[2], "health check", "exec")


# --- Kubernetes --------------------------------------------------------------------------------------


def test_the_deployment_runs_the_image_s_command() -> None:
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    parameters = served(container["args"])
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > pause + parameters["drain_seconds"] + FLUSH_SECONDS
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert any(parameters["api_keys"].startswith(f"{mount}/") for mount in mounts)
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    user = dict(instructions(-1))["USER"]
    assert str(pod["securityContext"]["runAsUser"]) == user


def test_the_readme_s_commands() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert re.search(r"pip install (torch==\S+)", text)[1] in pins  # type: ignore[index]
    for option in re.findall(r"`(--[a-z-]+)`", text):
        assert any(option in parameter.opts for parameter in serve.params), option
    assert isinstance(serve, click.Command)

"""`milepost doctor`: what it sees on machines of all kinds, and what it advises."""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from milepost.cli.app import run
from milepost.cli.doctor import hardware, model, software
from milepost.cli.doctor.access import examine_access
from milepost.cli.doctor.finding import Finding, Level, worst_of
from milepost.cli.doctor.hardware import examine_hardware
from milepost.cli.doctor.model import examine_model
from milepost.cli.doctor.software import examine_software
from milepost.server import ServerConfig
from tests.llm.checkpoints import copied, truncate_a_shard

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

GIB = 1 << 30


def named(findings: Iterable[Finding], name: str) -> Finding:
    (found,) = [finding for finding in findings if finding.name == name]
    return found


def on_machine(name: str, port: int = 0, max_connections: int = 10) -> Finding:
    return named(examine_hardware(ServerConfig(port=port, max_connections=max_connections)), name)


# --- the command -------------------------------------------------------------------------------------


def test_a_whole_examination_in_a_pipe(quiet_k3: Path, capsys: Capture) -> None:
    assert run(["doctor", str(quiet_k3), "--port", "0", "--max-connections", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith((*(level.value for level in Level), " " * 9 + "-> ")) for line in lines)
    topics = [line.split()[1] for line in lines if not line.startswith(" ")]
    assert list(dict.fromkeys(topics)) == ["machine:", "software:", "access:", "model:"]
    assert "\x1b" not in "".join(lines)


def test_json_says_the_same(quiet_k3: Path, capsys: Capture) -> None:
    assert run(["doctor", str(quiet_k3), "--port", "0", "--max-connections", "10", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["worst"] in {"ok", "note", "warning"}
    assert {finding["topic"] for finding in answer["findings"]} == {"machine", "software", "access", "model"}


def test_a_problem_is_exit_code_1(tmp_path: Path, capsys: Capture) -> None:
    assert run(["doctor", str(tmp_path), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["worst"] == "problem"
    (checkpoint,) = [finding for finding in answer["findings"] if finding["topic"] == "model"]
    assert checkpoint["found"] == "The checkpoint has no config.json."


def test_the_suggested_command_parses(quiet_k3: Path, capsys: Capture) -> None:
    from milepost.cli.serve import serve

    found = named(examine_model(quiet_k3, None), "command").found
    program, name, *arguments = found.split()
    assert (program, name) == ("milepost", "serve")
    serve.make_context("serve", arguments).close()


# --- the machine ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "target"),
    [
        ("sse2", "baseline"),
        ("avx2 bmi1 bmi2 f16c fma movbe", "avx2"),
        ("avx512f avx512bw avx512cd avx512dq avx512vl", "baseline"),
        ("avx2 bmi1 bmi2 f16c fma movbe avx512f avx512bw avx512cd avx512dq", "avx2"),
        ("avx2 bmi1 bmi2 f16c fma movbe avx512f avx512bw avx512cd avx512dq avx512vl", "avx512"),
    ],
)
def test_vectors_are_told_by_the_processor_s_flags(monkeypatch: Patch, flags: str, target: str) -> None:
    monkeypatch.setattr(hardware, "_read", lambda _: f"processor: 0\nflags\t\t: fpu {flags}\n")
    assert hardware.vectors() == target


def test_a_processor_without_avx2_is_a_warning(monkeypatch: Patch) -> None:
    monkeypatch.setattr(hardware, "_read", lambda _: "flags: sse2\n")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert on_machine("processor").level is Level.WARNING


def test_a_part_of_a_core_is_told(monkeypatch: Patch) -> None:
    monkeypatch.setattr(hardware, "usable_cores", lambda: 2)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(hardware, "group_processors", lambda: 2.5)
    found = on_machine("cores")
    assert found.found == "2 of 64 usable; the control group allows 2.5"
    assert found.level is Level.NOTE


def test_little_memory_is_a_warning(monkeypatch: Patch) -> None:
    monkeypatch.setattr(hardware, "available_memory", lambda: GIB)
    monkeypatch.setattr(hardware, "group_memory", lambda: GIB)
    found = on_machine("memory")
    assert found.level is Level.WARNING
    assert "control group's limit" in found.found


@pytest.mark.parametrize(
    ("enabled", "level"), [("always [madvise] never", Level.OK), ("always madvise [never]", Level.NOTE)]
)
def test_huge_pages(monkeypatch: Patch, enabled: str, level: Level) -> None:
    monkeypatch.setattr(hardware, "_read", lambda _: enabled)
    assert on_machine("huge pages").level is level


@pytest.mark.parametrize(
    ("limits", "level", "words"),
    [
        ((1024, 1 << 20), Level.OK, ""),
        ((1024, 1024), Level.WARNING, "`ulimit -Hn 4352`"),
        ((1024, 1024), Level.WARNING, "--max-connections 768"),
        ((1 << 16, 1 << 16), Level.OK, ""),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), Level.OK, ""),
    ],
)
def test_open_files_are_held_against_connections(
    monkeypatch: Patch, limits: tuple[int, int], level: Level, words: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: limits)
    found = on_machine("open files", max_connections=4096)
    assert found.level is level
    assert words in found.advice


def test_a_port_that_is_taken_is_a_warning() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = on_machine(f"port {port}", port=port)
    assert found.level is Level.WARNING
    assert found.found == "can't be taken on 127.0.0.1: Address already in use"


def test_a_full_disk_is_a_note(monkeypatch: Patch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(9, 8, 1))
    assert on_machine("disk").level is Level.NOTE


def test_it_runs_without_what_it_is_to_find_missing() -> None:
    """With neither the server's packages nor torch there."""
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'starlette', 'uvicorn', 'safetensors']));"
        "from milepost.cli import main; main()"
    )
    words = [sys.executable, "-c", script, "doctor", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert "machine: memory" in done.stdout


# --- who may ask -------------------------------------------------------------------------------------


def test_an_open_address_is_a_warning() -> None:
    findings = [*examine_access(ServerConfig(host="0.0.0.0"))]  # noqa: S104 - nothing listens
    assert {finding.level for finding in findings} == {Level.WARNING}
    assert (
        findings[0].found
        == "Everyone who reaches 0.0.0.0 may use this server, read its metrics and empty its cache."
    )
    assert findings[0].advice.startswith("Give --api-keys")


def test_a_file_of_keys_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    (found,) = examine_access(ServerConfig(api_keys=str(tmp_path / "keys.toml")))
    assert found.level is Level.PROBLEM
    assert "keys.toml" in found.found


def test_a_config_file_s_server_and_model_are_examined(
    quiet_k3: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "milepost.toml"
    model = json.dumps(str(quiet_k3))
    file.write_text(
        f"[engine]\nmodel = {model}\n[server]\nport = 0\nmax_connections = 7\ntls_key = 'k'\ntls_cert = 'c'\n"
    )
    assert run(["doctor", "--config", str(file), "--json"]) == 1  # there is no certificate
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert found["files"]["level"] == "problem"
    assert found["checkpoint"]["level"] == "ok"
    assert "port 0" in found


def test_a_config_file_s_engine_is_examined(quiet_k3: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "milepost.toml"
    model = json.dumps(str(quiet_k3))
    file.write_text(f"[engine]\nmodel = {model}\nmemory = '8MiB'\nweights = 'int8'\n[server]\nport = 0\n")
    assert run(["doctor", "--config", str(file), "--json"]) == 0
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert "as int8" in found["weights"]["found"]
    assert found["arena"]["found"].startswith(("8.0 MiB", "7.9 MiB"))
    assert found["command"]["found"] == f"milepost serve --config {file}"


def test_a_config_file_s_arena_that_no_machine_has_is_a_problem(
    quiet_k3: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "milepost.toml"
    file.write_text("[engine]\nmemory = '900TiB'\n[server]\nport = 0\n")
    assert run(["doctor", str(quiet_k3), "--config", str(file), "--json"]) == 1
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert found["arena"]["level"] == "problem"
    assert "memory must be at most" in found["arena"]["found"]


# --- the software ---------------------------------------------------------------------------------------


def with_versions(monkeypatch: Patch, **versions: str | None) -> list[Finding]:
    real = importlib.metadata.version

    def version(package: str) -> str:
        found = versions.get(package.replace("-", "_"), "")
        if found is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return found or real(package)

    monkeypatch.setattr("importlib.metadata.version", version)
    return [*examine_software()]


def test_a_missing_package_is_a_problem_with_the_line_that_installs_it(monkeypatch: Patch) -> None:
    found = named(with_versions(monkeypatch, starlette=None), "packages of [server]")
    assert found.level is Level.PROBLEM
    assert found.found == "missing: starlette"
    assert found.advice.endswith('pip install -c constraints.txt -e ".[server]"')


def test_torch_is_installed_first_and_alone(monkeypatch: Patch) -> None:
    found = named(with_versions(monkeypatch, torch=None), "packages of [engine]")
    assert found.level is Level.PROBLEM
    assert found.advice.startswith("First and alone: pip install torch==2")


def test_an_old_package_is_a_problem(monkeypatch: Patch) -> None:
    found = named(with_versions(monkeypatch, click="8.1.9"), "packages")
    assert found.level is Level.PROBLEM
    assert found.found == "too old: click 8.1.9 (at least 8.2)"


def test_another_version_than_tested_is_a_note(monkeypatch: Patch) -> None:
    found = named(with_versions(monkeypatch, click="99.0"), "packages")
    assert found.level is Level.NOTE
    assert "click 99.0 (tested: 8" in found.found


def test_a_local_build_of_the_tested_version_is_that_version(monkeypatch: Patch) -> None:
    found = named(with_versions(monkeypatch, torch="2.13.0+cpu"), "packages of [engine]")
    assert "torch" not in found.found


def test_what_is_optional_is_a_note(monkeypatch: Patch) -> None:
    found = named(with_versions(monkeypatch, plotly=None), "optional [simulate]")
    assert found.level is Level.NOTE
    assert "plotly" in found.found


def test_an_installation_s_own_requirements_count(monkeypatch: Patch) -> None:
    declared = ["click>=8.2", 'torch>=2.6; extra == "engine"', "starlette>=0.40 ; extra == 'server'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: declared)
    assert software._requirements() == {
        "": {"click": "8.2"},
        "engine": {"torch": "2.6"},
        "server": {"starlette": "0.40"},
    }


def test_kernels_for_a_lesser_processor_are_a_warning(monkeypatch: Patch) -> None:
    from milepost.kernels.native import available, native

    if not available():
        pytest.skip("the kernels are not built")
    monkeypatch.setattr(software, "vectors", lambda: "avx512")
    monkeypatch.setattr(native, "target", lambda: "avx2")
    found = named(examine_software(), "kernels")
    assert found.level is Level.WARNING
    assert found.found == "compiled, running avx2; this processor has avx512"


def test_no_kernels_are_a_warning_that_says_how_to_build_them(monkeypatch: Patch) -> None:
    import milepost.kernels.native as kernels

    monkeypatch.setattr(kernels, "native", None)
    monkeypatch.setattr(kernels, "_missing", "the compiled ones are not built.")
    found = named(examine_software(), "kernels")
    assert found.level is Level.WARNING
    assert kernels.HOW_TO_BUILD in found.advice


# --- the model ------------------------------------------------------------------------------------------


def test_a_model_that_fits(quiet_k3: Path) -> None:
    findings = [*examine_model(quiet_k3, None)]
    assert [finding.name for finding in findings] == [
        "checkpoint",
        "tokenizer",
        "weights",
        "arena",
        "command",
    ]
    assert worst_of(findings) in {Level.OK, Level.NOTE}


def test_a_torn_checkpoint_is_a_problem(quiet_k3: Path, tmp_path: Path) -> None:
    folder = copied(quiet_k3, tmp_path / "torn", truncate_a_shard)
    (found,) = examine_model(folder, None)
    assert found.level is Level.PROBLEM
    assert found.advice


def test_a_config_alone_is_a_warning_and_still_measured(quiet_k3: Path, tmp_path: Path) -> None:
    shutil.copy(quiet_k3 / "config.json", tmp_path)
    findings = [*examine_model(tmp_path, None)]
    assert named(findings, "checkpoint").level is Level.WARNING
    assert named(findings, "tokenizer").level is Level.PROBLEM
    assert named(findings, "arena").level in {Level.OK, Level.NOTE}


@pytest.mark.parametrize(
    ("sizes", "level", "words"),
    [
        ({"auto": 2 * GIB, "int8": GIB}, Level.OK, ""),
        (
            {"auto": 20 * GIB, "int8": 5 * GIB, "mxfp4": GIB},
            Level.WARNING,
            "--weights int8, which takes 5.0 GiB",
        ),
        ({"auto": 20 * GIB, "int8": 10 * GIB, "mxfp4": 2 * GIB}, Level.WARNING, "--weights mxfp4"),
        ({"auto": 90 * GIB, "int8": 50 * GIB}, Level.PROBLEM, "Even --weights int8 takes 50.0 GiB"),
    ],
)
def test_weights_that_do_not_fit(monkeypatch: Patch, sizes: dict[str, int], level: Level, words: str) -> None:
    monkeypatch.setattr(model, "available_memory", lambda: 8 * GIB)
    found = model._weights(sizes, model._fitting(sizes))
    assert found.level is level
    assert words in found.advice

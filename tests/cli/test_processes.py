"""What only a process of its own shows: exit codes, signals, pipes and terminals."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Start
from tests.llm.checkpoints import ENGINE_FLAGS, copied, truncate_a_shard

LONG = ("--max-tokens", "390", "--ignore-eos", *ENGINE_FLAGS)
PATIENCE = 60


class Screen:
    """The far end of a pseudo-terminal."""

    def __init__(self, start: Start, *arguments: str) -> None:
        self.fd, far = pty.openpty()
        self.process = start(*arguments, stdin=far, stdout=far, stderr=far, start_new_session=True)
        os.close(far)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C, a moment later: between drawing its prompt and reading, `readline` is deaf to it."""
        time.sleep(0.5)
        self.process.send_signal(signal.SIGINT)

    def wait_for(self, text: str) -> str:
        """Read until `text` has come; returns what came before it and forgets both."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come; seen: {self.seen!r}"
            self.seen += os.read(self.fd, 4096).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before


def test_help_loads_no_torch() -> None:
    program = (
        "import sys; from milepost.cli.app import run; code = run(['--help']); "
        "loaded = {'torch', 'tiktoken', 'starlette'} & set(sys.modules); "
        "sys.exit(str(loaded) if loaded else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout


def test_a_broken_checkpoint_ends_with_code_2_and_no_traceback(
    quiet_k3: Path, tmp_path: Path, start: Start
) -> None:
    broken = copied(quiet_k3, tmp_path / "broken", truncate_a_shard)
    process = start("generate", str(broken), "--prompt", "x")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert out == ""
    assert err.startswith("milepost: error: ")
    assert "Traceback" not in err


def test_ctrl_c_ends_generate_with_130(quiet_k3: Path, start: Start) -> None:
    process = start("generate", str(quiet_k3), "--prompt", "the road", *LONG)
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_reader_that_leaves_is_no_error(quiet_k3: Path, start: Start) -> None:
    process = start("generate", str(quiet_k3), "--prompt", "the road", *LONG)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    process.wait(timeout=PATIENCE)
    assert process.stderr.read() == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_under_the_output_is_one_line(quiet_k3: Path, start: Start) -> None:
    with Path("/dev/full").open("w") as full:
        process = start("inspect", str(quiet_k3), stdout=full)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert err == "milepost: error: The output: No space left on device.\n"


def test_a_port_that_is_taken_is_one_line(quiet_k3: Path, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("serve", str(quiet_k3), "--port", str(port))
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"milepost: error: Can't listen on 127.0.0.1:{port}: Address already in use.")
    assert "--port" in line


def test_serve_answers_though_nobody_reads_what_it_says(quiet_k3: Path, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    reader, writer = os.pipe()
    os.close(reader)
    process = start("serve", str(quiet_k3), "--port", str(port), *ENGINE_FLAGS, stderr=writer)
    os.close(writer)
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PATIENCE) as answer:
                assert answer.status == 200
            break
        except urllib.error.URLError:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE) == 0


def test_keys_that_are_reloaded_while_the_model_loads(tmp_path: Path, quiet_k3: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[tenants.a]\nkeys = ["0123456789abcdef"]\n')
    keys.chmod(0o600)
    program = (
        "import os, signal, sys; import milepost.llm; from milepost.cli.app import run; "
        "from milepost.errors import ConfigError\n"
        "def load(*_, **__):\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    raise ConfigError('still here')\n"
        "milepost.llm.load_engine = load\n"
        f"sys.exit(run(['serve', {str(quiet_k3)!r}, '--port', '0', '--api-keys', {str(keys)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=ROOT, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (2, b"milepost: error: still here\n")


def test_serve_answers_and_ends_at_sigterm(quiet_k3: Path, start: Start) -> None:
    process = start("serve", str(quiet_k3), "--port", "0", "--served-model-name", "toy", *ENGINE_FLAGS)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "Milepost answers at http://127.0.0.1:" in line, line + process.stderr.read()
    assert ": toy, requests of up to " in line
    address = line.split()[3].rstrip(":")
    body = {"model": "toy", "messages": [{"role": "user", "content": "the road"}], "max_tokens": 3}
    question = urllib.request.Request(
        f"{address}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(question, timeout=PATIENCE) as answer:
        reply = json.load(answer)
    assert reply["usage"]["completion_tokens"] <= 3
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_with_a_log_in_json_every_line_of_a_server_is_json(quiet_k3: Path, start: Start) -> None:
    words = ("--port", "0", "--host", "0.0.0.0", "--log-format", "json", "--log-level", "error")  # noqa: S104
    process = start("serve", str(quiet_k3), *words, *ENGINE_FLAGS)
    assert process.stderr is not None
    lines: list[dict[str, str]] = []
    while not lines or "answers at" not in lines[-1]["message"]:
        lines.append(json.loads(process.stderr.readline()))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    lines += map(json.loads, err.splitlines())
    told = [(line["level"], line["message"]) for line in lines]
    assert any(level == "warning" and "Give --api-keys" in message for level, message in told)
    assert any(level == "info" and message.startswith("Milepost answers at http") for level, message in told)


def test_serve_takes_its_options_from_a_file(quiet_k3: Path, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "milepost.toml"
    model = json.dumps(str(quiet_k3))
    file.write_text(
        f'[engine]\nmodel = {model}\nmemory = "8MiB"\nserved-model-name = "from-file"\nthreads = 1\n'
        "[server]\nport = 1\ndrain-seconds = 0\n"
    )
    process = start("serve", "--config", str(file), "--port", "0")
    assert process.stderr is not None
    line = process.stderr.readline()
    assert ": from-file, requests of up to " in line, line + process.stderr.read()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err


def test_ctrl_c_ends_a_reply_and_not_the_conversation(quiet_k3: Path, start: Start) -> None:
    screen = Screen(start, "chat", str(quiet_k3), *LONG)
    screen.wait_for("/reset starts over")
    screen.wait_for("> ")
    screen.interrupt()
    screen.wait_for("/reset starts over")
    screen.wait_for("> ")
    screen.type("the road\n")
    screen.wait_for("the road\r\n")
    while not screen.seen.strip():
        screen.seen += os.read(screen.fd, 64).decode(errors="replace")
    screen.interrupt()
    screen.wait_for("(interrupted)")
    screen.wait_for("> ")
    screen.type("/dance\n")
    screen.wait_for("There is no command /dance")
    screen.wait_for("> ")
    screen.type("\x04")
    assert screen.process.wait(timeout=PATIENCE) == 0


def test_an_error_ends_a_turn_and_not_the_conversation(quiet_k3: Path, start: Start) -> None:
    screen = Screen(start, "chat", str(quiet_k3), "--max-tokens", "2", *ENGINE_FLAGS)
    screen.wait_for("> ")
    screen.type("abcdefgh " * 60 + "\n")
    screen.wait_for("at most 399 tokens")
    screen.wait_for("> ")
    screen.type("the road\n")
    screen.wait_for("> ")
    screen.type("/exit\n")
    assert screen.process.wait(timeout=PATIENCE) == 0


@pytest.mark.parametrize(
    ("closed", "code"),
    [("<&-", 2), ("<&- 2>&-", 2), (">&-", 2), ("<&- >&- 2>&-", 2)],
    ids=["stdin", "stdin and stderr", "stdout", "all"],
)
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_standard_streams_that_are_closed(tmp_path: Path, command: str, closed: str, code: int) -> None:
    arguments = [sys.executable, "-m", "milepost", command, str(tmp_path)]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=PATIENCE,
    )
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.count("\n") == (0 if "2>" in closed else 1)

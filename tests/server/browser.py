"""Headless Chromium, told what to do over a pipe: what a page draws, asks for and complains of.

Speaks the DevTools protocol (https://chromedevtools.github.io/devtools-protocol/) by itself, so that no
driver needs to be installed.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chromium import browser_command

__all__ = ["Tab", "open_tab"]


class Tab:
    """One page in a browser.

    Attributes:
        complaints: errors and warnings of the console, and exceptions.
        asked: addresses of everything that it asked for.
    """

    def __init__(self, sending: int, receiving: int) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._sending = sending
        self._receiving = receiving
        self._buffer = b""
        self._session: str | None = None
        self._last = 0
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Look through a window of this size, on a screen of ordinary density."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Go to an address."""
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """What an expression is worth in the page."""
        reply = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait_for(self, script: str, seconds: float = 15.0) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        # A page that is only just coming has no document.
        while not self.run(f"(() => {{ try {{ return Boolean({script}) }} catch {{ return false }} }})()"):
            assert time.monotonic() < deadline, f"{script} never came true; {self.complaints}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path: Path) -> None:
        """Save all of the page as a PNG file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        reply = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(reply["data"]))

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._sending, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])
            self._note(answer)

    def _receive(self) -> Mapping[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receiving], [], [], 30)
            assert ready, "the browser does not answer"
            chunk = os.read(self._receiving, 1 << 20)
            assert chunk, "the browser is gone"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: Mapping[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning"}:
                self.complaints.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in {"error", "warning"}:
                self.complaints.append(params["entry"]["text"])


@contextmanager
def open_tab(browser: str, profile: Path) -> Iterator[Tab]:
    """A tab of a fresh browser, which ends with it."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    command = [*browser_command(browser, profile), "--remote-debugging-pipe"]
    # The browser reads commands from descriptor 3 and answers on 4.
    script = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", script, str(their_in), str(their_out), *command],
        pass_fds=(their_in, their_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Tab(our_out, our_in)
    finally:
        process.terminate()
        process.wait(20)
        os.close(our_out)
        os.close(our_in)

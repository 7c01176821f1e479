"""Drive headless Chromium over its DevTools protocol: a small WebSocket client, standard library only."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# no sandbox: root has none; the rest keeps the browser itself off the network
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--disable-extensions", "--disable-dev-shm-usage", "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip


def find() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. ``events`` keeps every event that arrived, in order."""

    def __init__(self, url: str) -> None:
        match = re.fullmatch(r"ws://([^:/]+):(\d+)(/.*)", url)
        assert match, url
        self._socket = socket.create_connection((match[1], int(match[2])), timeout=300)
        self._buffer, self._last = b"", 0
        self.events: list[dict[str, Any]] = []
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {match[3]} HTTP/1.1\r\nHost: {match[1]}:{match[2]}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += self._socket.recv(4096)
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert b" 101 " in head.splitlines()[0], head

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result; AssertionError where Chromium refuses it."""
        self._last += 1
        self._send(json.dumps({"id": self._last, "method": method, "params": params}).encode())
        while True:
            message = json.loads(self._receive())
            if message.get("id") == self._last:
                assert "error" not in message, message["error"]
                return message["result"]
            if "method" in message:
                self.events.append(message)

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, url: str) -> None:
        """Open a page and wait until it has loaded."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + 300
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < deadline, "the page did not load"
            self.evaluate("1")
            time.sleep(0.02)

    def of(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event["method"] == method]

    def size(self, width: int, height: int = 900, mobile: bool = False) -> None:
        """Make the window so large; the page may hear of it a moment after the answer."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        deadline = time.monotonic() + 60
        while self.evaluate("innerWidth") != width and time.monotonic() < deadline:
            time.sleep(0.02)

    def media(self, kind: str = "screen", scheme: str = "light") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def screenshot(self, full: bool = True) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=full)["data"])

    def pdf(self, **options: Any) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, **options)["data"])

    def close(self) -> None:
        self._socket.close()

    def _send(self, data: bytes) -> None:
        mask = os.urandom(4)
        size = len(data)
        lead = bytes([0x81, 0x80 | size]) if size < 126 else b"\x81\xfe" + struct.pack(">H", size)
        lead = lead if size < 65536 else b"\x81\xff" + struct.pack(">Q", size)
        body = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self._socket.sendall(lead + mask + body)

    def _receive(self) -> bytes:
        whole = b""
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size >= 126:
                size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
            whole += self._take(size)
            if first & 0x80:
                return whole

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            chunk = self._socket.recv(1 << 20)
            assert chunk, "Chromium closed the connection"
            self._buffer += chunk
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


@contextlib.contextmanager
def browser() -> Iterator[str]:
    """Start Chromium with a profile of its own and yield the address of its first tab."""
    chromium = find()
    assert chromium, "no Chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [chromium, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield _address(process, Path(folder) / "DevToolsActivePort")
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], port_file: Path) -> str:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if port_file.exists() and len(lines := port_file.read_text().split()) == 2:
            return _first_tab(int(lines[0]))
        time.sleep(0.05)
    raise AssertionError(f"Chromium did not start (exit status {process.poll()})")


def _first_tab(port: int) -> str:
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/json/list", timeout=120) as answer:
        tabs = json.load(answer)
    return next(str(tab["webSocketDebuggerUrl"]) for tab in tabs if tab["type"] == "page")

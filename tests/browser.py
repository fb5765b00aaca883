"""Headless Chromium by its debugging protocol: opens a page, keeps what it complains of and asks for, acts on it."""

import base64
import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
         "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars "
         "--force-color-profile=srgb --remote-debugging-port=0").split()


class Browser:
    """One page of one browser process with an empty profile. `complaints`, `requests`: what the page caused."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900):
        self.profile, self.size = profile, (width, height)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._number = 0

    def __enter__(self) -> "Browser":
        import websocket

        self.profile.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen([CHROMIUM, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self._wait_for(lambda: (self.profile / "DevToolsActivePort").read_text().split()[0])
        target = self._wait_for(lambda: next(t for t in self._targets(port) if t["type"] == "page"))
        self.socket = websocket.create_connection(target["webSocketDebuggerUrl"], suppress_origin=True, timeout=60)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(*self.size)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=20)

    @staticmethod
    def _targets(port: str) -> list[dict]:
        import urllib.request

        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
        with opener.open(f"http://127.0.0.1:{port}/json/list", timeout=10) as reply:
            return json.load(reply)

    @staticmethod
    def _wait_for(found, seconds: float = 120.0):
        end = time.monotonic() + seconds
        while True:
            try:
                return found()
            except (OSError, StopIteration, IndexError, ValueError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def call(self, method: str, **parameters) -> dict:
        """One command and its result; events that arrive meanwhile are kept."""
        self._number += 1
        self.socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._keep(message)

    def _keep(self, message: dict) -> None:
        name, body = message.get("method"), message.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(body["exceptionDetails"]))
        elif name == "Runtime.consoleAPICalled" and body["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(body["args"]))
        elif name == "Log.entryAdded" and body["entry"]["level"] in ("error", "warning"):
            self.complaints.append(body["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(body["request"]["url"])

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        """The size of the view, as a phone of that width would have it, and the colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setTouchEmulationEnabled", enabled=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Loads a page and waits until it has loaded."""
        self.call("Page.navigate", url=url)
        self._wait_for(lambda: self._ready(url))

    def _ready(self, url: str) -> bool:
        place = json.dumps(url.split("#")[0])  # a page may rewrite what stands behind the #
        if not self.ask(f"document.readyState === 'complete' && location.href.startsWith({place})"):
            raise ValueError("not loaded yet")
        return True

    def ask(self, expression: str):
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """One key, down and up."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path, whole: bool = False) -> bytes:
        """A PNG of what is seen, or of the whole page."""
        data = base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
        path.write_bytes(data)
        return data

    def pdf(self, path: Path) -> bytes:
        """The page as it is printed."""
        data = base64.b64decode(self.call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)["data"])
        path.write_bytes(data)
        return data

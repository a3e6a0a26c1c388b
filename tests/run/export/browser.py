"""A headless Chromium, driven by the DevTools protocol over two pipes, and a server of a folder: neither needs a package."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import selectors
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, served as `python -m http.server` does."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


class Browser:
    """One page of a Chromium. Everything that could wait forever has a time limit in seconds.

    Attributes:
        requests: addresses that the page asked for.
        errors: uncaught errors and the console's error messages.
    """

    def __init__(self, path: str, profile: Path, limit: float = 60.0):
        self.limit = limit
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._number, self._session, self._left = 0, None, b""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes to descriptor 4.
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        command = ["bash", "-c", shell, path, *options, f"--user-data-dir={profile}", "about:blank"]
        null, passed = subprocess.DEVNULL, (theirs_in, theirs_out)
        self._process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, pass_fds=passed, start_new_session=True)
        os.close(theirs_in)
        os.close(theirs_out)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)
        target = next(x for x in self.call("Target.getTargets")["targetInfos"] if x["type"] == "page")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        session = {} if self._session is None else {"sessionId": self._session}
        message = {"id": self._number, "method": method, "params": params, **session}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + self.limit
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._left:
            if not self._selector.select(max(0.0, until - time.monotonic())):
                raise TimeoutError(f"the browser did not answer within {self.limit:g} s")
            read = os.read(self._in, 1 << 16)
            if not read:
                raise RuntimeError("the browser has ended")
            self._left += read
        message, self._left = self._left.split(b"\0", 1)
        event: dict[str, Any] = json.loads(message)
        self._note(event.get("method"), event.get("params", {}))
        return event

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "an error"))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str([x.get("value", x.get("description")) for x in params["args"]]))

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value."""
        until = time.monotonic() + self.limit
        while time.monotonic() < until:
            found = self.value(expression)
            if found:
                return found
            time.sleep(0.02)
        raise TimeoutError(f"not within {self.limit:g} s: {expression}; the page says {self.value('document.body.innerText')!r}")

    def open(self, address: str, *, width: int = 1280, height: int = 800, dark: bool = False, touch: bool = False) -> None:
        """Open an address in a window of a size, in a colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if touch else 1, mobile=touch
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.requests.clear()
        self.errors.clear()
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def press(self, x: float, y: float, *, touch: bool = False, button: str = "left", up: bool = True) -> None:
        """Press and leave a place of the window, with a button of the mouse or a finger."""
        if touch:
            self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
            self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            return
        for kind in ("mousePressed", "mouseReleased") if up else ("mousePressed",):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def key(self, key: str, *, down: bool = True, up: bool = True) -> None:
        """Press and release a key by the name that its event has."""
        code = {"Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}.get(key, ord(key[0]))
        for kind, wanted in (("keyDown", down), ("keyUp", up)):
            if wanted:
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(Exception):
            self._session = None
            self.limit = 5.0
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait(10)
        self._selector.close()
        os.close(self._in)
        os.close(self._out)

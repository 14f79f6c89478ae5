"""A headless Chromium that a test clicks in, over the DevTools protocol."""

import base64
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.serving import wait_until

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed (apt-get install chromium)")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-port=0",
)
_KEYS = {
    "Enter": (13, "\r"),
    "ArrowDown": (40, ""),
    "ArrowUp": (38, ""),
    "Home": (36, ""),
    "End": (35, ""),
    "/": (191, "/"),
}
_START_S = 60.0


class Browser:
    """One page, of one browser; `problems` are what it has logged: exceptions, refused loads, violated policies."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        assert PROGRAM is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        log = Path(self._folder.name) / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [PROGRAM, *FLAGS, f"--user-data-dir={self._folder.name}/profile", "about:blank"], stderr=output
            )
        self._open = ExitStack()
        try:
            self._connect(log)
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def _connect(self, log: Path) -> None:
        def listening() -> re.Match[str] | None:
            return re.search(r"DevTools listening on ws://([^/]+)/", log.read_text("utf-8", "replace"))

        address = wait_until(listening, "Chromium", _START_S)[1]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def pages() -> list[str]:
            with opener.open(f"http://{address}/json") as answer:
                return [each["webSocketDebuggerUrl"] for each in json.load(answer) if each["type"] == "page"]

        url = wait_until(pages, "the first page", _START_S)[0]
        self._socket = self._open.enter_context(connect(url, max_size=None, proxy=None, open_timeout=_START_S))
        self._ids = itertools.count(1)
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message.get('error')}"
                return dict(message["result"])
            self._note(message["method"], message["params"])

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(told["exceptionDetails"].get("exception", {}).get("description")))
        elif method == "Log.entryAdded" and told["entry"]["source"] != "network":
            self.problems.append(told["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"a dialog: {told['message']}")

    def evaluate(self, expression: str) -> Any:
        """Return what JavaScript comes to, as plain data."""
        answer = self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        self.command("Page.navigate", url="about:blank")
        self.command("Page.navigate", url=url)

    def resize(self, width: int, height: int) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def wait(self, condition: str, timeout_s: float = 90.0) -> Any:
        """Wait until JavaScript comes to something true, and return it."""
        try:
            return wait_until(lambda: self.evaluate(condition), condition, timeout_s)
        except AssertionError as error:
            seen = self.evaluate("document.body.innerText.slice(0, 1500)")
            raise AssertionError(f"{error}\n{seen}\n{self.problems}") from None

    def text(self, selector: str) -> str:
        """Wait for an element, and return its text."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def wait_for_text(self, selector: str, text: str) -> None:
        query = f"document.querySelector({json.dumps(selector)})?.innerText.includes({json.dumps(text)})"
        self.wait(query)

    def click(self, selector: str) -> None:
        """Press and release the mouse on the middle of an element, until it has felt that: pages move while they load."""
        wait_until(lambda: self._click(selector), f"a click on {selector}", 90.0, 0.2)

    def _click(self, selector: str) -> bool:
        place = self.evaluate(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            if (element === null) return null;
            element.scrollIntoView({{ block: "center", behavior: "instant" }});
            const box = element.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
            if (!element.contains(document.elementFromPoint(x, y))) return null;
            window.aim = element;
            window.hit = false;
            document.addEventListener("click", (event) => (window.hit = window.aim.contains(event.target)), {{ capture: true, once: true }});
            return {{ x, y }};
        }})()""")
        if place is None:
            return False
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=place["x"], y=place["y"], button="left", clickCount=1)
        return bool(self.evaluate("window.hit"))

    def type(self, selector: str, text: str) -> None:
        """Replace what an input holds, as by hand."""
        self.click(selector)
        self.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
        self.command("Input.insertText", text=text)

    def press(self, key: str) -> None:
        code, text = _KEYS[key]
        told = {"key": key, "windowsVirtualKeyCode": code, "text": text}
        self.command("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **told)
        self.command("Input.dispatchKeyEvent", type="keyUp", **told)

    def choose_file(self, selector: str, path: Path) -> None:
        root = self.command("DOM.getDocument")["root"]["nodeId"]
        node = self.command("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.command("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._open.close()
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._folder.cleanup()

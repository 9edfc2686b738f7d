"""Headless Chromium over its debugging pipe: no driver program, no port, no package."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--remote-debugging-pipe",
)  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13, " ": 32}
# Chromium reads commands from descriptor 3 and writes answers to 4.
TRAMPOLINE = (
    "import fcntl, os, sys\n"
    "read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])\n"
    "os.dup2(read, 3), os.dup2(write, 4)\n"
    "os.execvp(sys.argv[3], sys.argv[3:])"
)
SECONDS = 30
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium():
    """$SQSGD_CHROMIUM, or the first of the usual names on the PATH, or None."""
    return os.environ.get("SQSGD_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser with one page. ``errors``: what goes wrong in it; ``printed``: its console.info."""

    def __init__(self, program, folder):
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", TRAMPOLINE, str(command_read), str(answer_write),
             program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(command_read)
        os.close(answer_write)
        os.set_blocking(self._read, False)
        self._numbers, self._buffer, self._session = itertools.count(1), b"", None
        self.errors, self.printed, self.requests, self._loaded = [], [], [], 0
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.connect(online=False)

    def close(self):
        self._session = None
        try:
            self.send("Browser.close")
            self._process.wait(SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._read)
            os.close(self._write)

    def send(self, method, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self):
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise TimeoutError("Chromium does not answer")
            try:
                self._buffer += os.read(self._read, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method, event):
        if method == "Page.loadEventFired":
            self._loaded += 1
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.errors.append(str(event["args"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] == "info":
            self.printed += [each["value"] for each in event["args"]]
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.errors.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])

    def drain(self):
        """Note what has arrived, also from a browser that was killed."""
        try:
            while part := os.read(self._read, 1 << 20):
                self._buffer += part
        except BlockingIOError:
            pass
        while b"\0" in self._buffer:
            self._receive()

    def connect(self, *, online):
        """Whether the page can reach this machine; it never reaches another."""
        throughput = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.send("Network.emulateNetworkConditions", offline=not online, **throughput)

    def open(self, path: Path | str):
        """Load a file, or an address of this machine, in a wide window."""
        self.errors.clear()
        self.requests.clear()
        size = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        before = self._loaded
        self.send("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        while self._loaded == before:
            self._receive()

    def run(self, code):
        """The value of a JavaScript expression; promises are awaited."""
        given = {"expression": code, "returnByValue": True, "awaitPromise": True}
        answer = self.send("Runtime.evaluate", **given)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def click(self, selector):
        """A real click in the middle of the element."""
        self.draw(selector, [(0.5, 0.5)])

    def draw(self, selector, points):
        """Drag the mouse over the element along points in parts of its size."""
        left, top, width, height = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect();"
            "return [r.x, r.y, r.width, r.height]; })()"
        )
        kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 1), "mouseReleased"]
        for kind, (x, y) in zip(kinds, [*points, points[-1]], strict=True):
            place = {"x": left + x * width, "y": top + y * height, "button": "left", "buttons": 1}
            self.send("Input.dispatchMouseEvent", type=kind, clickCount=1, **place)

    def press(self, key):
        text = {"Enter": "\r", " ": " "}.get(key)
        code = {"windowsVirtualKeyCode": KEYS[key], "key": key, "code": "Space" if key == " " else key}
        down = {"type": "keyDown" if text else "rawKeyDown", **({"text": text} if text else {})}
        self.send("Input.dispatchKeyEvent", **down, **code)
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

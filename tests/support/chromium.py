"""A headless Chromium driven over a pipe by the Chrome DevTools Protocol: real keys, real pictures."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from support import watchdog

FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # in containers there is no namespace for one; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
)

_KEYS: Final[Mapping[str, tuple[int, str]]] = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
    "Home": (36, ""),
    "End": (35, ""),
    "/": (191, "/"),
    "+": (187, "+"),
}
"""Virtual key code and text of each key."""


def missing_browser() -> str | None:
    """Say what to install, or None when the browser is there."""
    return (
        None
        if shutil.which("chromium")
        else "chromium is not installed (scripts/install_servers.sh installs it)"
    )


class Chromium:
    """One page of a browser."""

    def __init__(self, send: int, receive: int) -> None:
        self._send = send
        self._receive = receive
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def attach(self) -> None:
        """Take the first page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; events that come meanwhile are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, url: str) -> None:
        """Load a page, with all its modules."""
        self.events = [each for each in self.events if each.get("method") != "Page.loadEventFired"]
        self.call("Page.navigate", url=url)
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._next())

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript, with promises awaited; raises what it raises."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(json.dumps(done["exceptionDetails"])[:2000])
        return done["result"].get("value")

    def until(self, expression: str, timeout_s: float = 20.0) -> Any:
        """Wait until an expression is true; return its value."""
        give_up_s = time.monotonic() + timeout_s
        while not (value := self.run(expression)):
            if time.monotonic() > give_up_s:
                text = self.run("document.body.innerText")
                raise TimeoutError(f"{expression} is not true after {timeout_s:g} s:\n{text}")
            time.sleep(0.05)
        return value

    def press(self, key: str, times: int = 1) -> None:
        """Press a key, as a keyboard does."""
        code, text = _KEYS[key]
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        for _ in range(times):
            more = {"text": text} if text else {}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **pressed, **more)
            self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def write(self, text: str) -> None:
        """Type a text into what has the focus."""
        self.call("Input.insertText", text=text)

    def size(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Set the size of the window in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def media(self, **features: str) -> None:
        """Emulate media features, such as `prefers_color_scheme="dark"`."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=named)

    def picture(self, path: Path) -> None:
        """Save what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def complaints(self) -> list[str]:
        """Return errors that the browser has logged: exceptions, refused resources, CSP."""
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:500])
            elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return found

    def _next(self, timeout_s: float = 60.0) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._receive], [], [], timeout_s)[0]:
                raise TimeoutError("chromium does not answer")
            read = os.read(self._receive, 1 << 20)
            if not read:
                raise RuntimeError("chromium has ended")
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextlib.contextmanager
def chromium(*flags: str) -> Iterator[Chromium]:
    """Start a browser with a page; nothing of it is left at the end."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="qlm-chromium-", ignore_cleanup_errors=True)
        )
        (to_read, to_send), (receive, to_write) = os.pipe(), os.pipe()
        script = f'exec chromium "$@" 3<&{to_read} 4>&{to_write}'
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", *FLAGS, f"--user-data-dir={folder}/profile", *flags],
            env={**os.environ, "HOME": folder},
            cwd=folder,
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for each in (to_read, to_write):
            os.close(each)
        for each in (to_send, receive):
            stack.callback(os.close, each)
        stack.callback(process.wait)
        stack.callback(watchdog.end_group, process.pid)
        page = Chromium(to_send, receive)
        page.attach()
        yield page

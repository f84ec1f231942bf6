"""The npm package of the token pacer, built from its sources, and a browser that shows one of its pages."""

import contextlib
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pacer" / "npm"
NODE = ROOT / ".venv" / "bin" / "node"


def missing() -> str | None:
    """Say what to install, or None when Node.js is there."""
    return None if NODE.exists() else "Node.js is not in .venv (scripts/setup.sh dev installs it)"


def missing_browser() -> str | None:
    """Say what to install, or None when the browser is there."""
    return (
        None
        if shutil.which("chromium")
        else "chromium is not installed (scripts/install_servers.sh installs it)"
    )


def build() -> None:
    """Compile the package, if its sources have changed."""
    subprocess.run([ROOT / "scripts" / "build_pacer.sh"], check=True, timeout=110)


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}  # noqa: RUF012
    results: "queue.SimpleQueue[dict[str, Any]]"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()
        self.results.put(json.loads(body))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each file."""


@contextlib.contextmanager
def _serving(results: "queue.SimpleQueue[dict[str, Any]]") -> Iterator[int]:
    handler = type("Handler", (_Handler,), {"results": results})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(ROOT / "pacer")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def in_browser(*flags: str) -> dict[str, Any]:
    """Show the page of tests in a headless Chromium; return what it posts."""
    results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="qlm-chromium-", ignore_cleanup_errors=True)
        )
        port = stack.enter_context(_serving(results))
        argv = [
            "chromium",
            "--headless",
            "--no-sandbox",  # in containers there is no namespace for one; the page is our own
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            f"--user-data-dir={folder}/profile",
            *flags,
            f"http://127.0.0.1:{port}/npm/test/browser.html",
        ]
        browser = ServerProcess("chromium", argv, env={**os.environ, "HOME": folder}, folder=Path(folder))
        browser.start()
        stack.callback(browser.kill)
        return results.get(timeout=90)

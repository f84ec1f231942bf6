"""Record the examples of the HTTP reference from a running `qlm serve`: `python -m scripts.record_examples`.

Asks emulated engines at half speed, one of which has room for a single request, so that requests wait.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.domain.ids import QueueName
from scripts.reference_pages.http_examples import FILE

MODEL: Final = "mistral-7b"
READY_S: Final = 60.0
USUAL: Final = {"date", "content-length", "transfer-encoding", "cache-control", "x-accel-buffering"}

CHAT: Final[dict[str, Any]] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Why do we queue?"}],
    "max_tokens": 6,
}
STREAM: Final = {"model": MODEL, "prompt": "Once upon", "max_tokens": 2, "stream": True}
LONG: Final = {
    "model": MODEL,
    "prompt": "Tell me everything.",
    "max_tokens": 2000,
    "ignore_eos": True,
    "slo": {"deadline_ms": 120_000},
}
LATER: Final = {"prefer": "respond-async"}


class Recorder:
    """Asks, and notes what was asked and answered."""

    def __init__(self, http: httpx.Client, admin_url: str, examples: list[dict[str, Any]]) -> None:
        self._http = http
        self._admin_url = admin_url
        self.examples = examples

    def note(
        self, route: str, path: str = "", sent: Any = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Ask, and note it as an example of a route."""
        method, plain = route.split()
        answer = self.ask(method, path or plain, sent, headers)
        is_json = answer.headers["content-type"] == "application/json"
        self.examples.append(
            {
                "route": route,
                "path": path or plain,
                "sent_headers": dict(headers or {}),
                "sent": sent,
                "status": answer.status_code,
                "headers": {name: each for name, each in answer.headers.items() if name not in USUAL},
                "body": answer.json() if is_json else answer.text,
            }
        )
        return answer

    def ask(
        self, method: str, path: str, sent: Any = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Ask, and note nothing."""
        return self._http.request(method, self._url(path), json=sent, headers=headers)

    def until(self, path: str, holds: Any) -> None:
        """Wait until what a path answers is so."""
        give_up_s = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = self._http.get(self._url(path))
                if answer.status_code == 200 and holds(answer.json()):
                    return
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"{path} did not come to what was waited for")
            time.sleep(0.1)

    def _url(self, path: str) -> str:
        return f"{self._admin_url}{path}" if path.startswith("/admin/") else path


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, str]]:
    """Run `qlm serve` with one emulated instance on loopback; yield its two URLs."""
    port, admin_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "qlm.yaml"
        instance = {"id": "a100-0", "accelerator": "A100", "models": [MODEL], "seqs_max": 1}
        config.write_text(
            yaml.safe_dump(
                {
                    "models": [{"id": MODEL, "context_tokens": 8192}],
                    "instances": [instance],
                    "emulate": {"time_scale": 2.0},
                    "http": {"port": port},
                    "grpc": {"port": 0},
                    "admin": {"port": admin_port},
                    "data_dir": folder,
                }
            )
        )
        asyncio.run(_damage(Path(folder)))
        qlm = Path(sys.executable).with_name("qlm")
        process = subprocess.Popen(
            [qlm, "serve", "--config", config], env={**os.environ, "PYTHONWARNINGS": "ignore"}
        )
        try:
            yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


async def _damage(folder: Path) -> None:
    """Leave an unreadable message in the queue, as a failing disk might."""
    file = await SqliteFile.open(folder / "qlm.sqlite")
    queues = await SqliteQueues.open(file)
    try:
        await queues.broker().publish(QueueName(f"qlm.class.{MODEL}.batch.all"), b'{"version": 1, "id"')
    finally:
        await queues.close()
        await file.close()


def as_client(recorder: Recorder) -> None:
    """Ask what clients ask, one after the other."""
    note = recorder.note
    note("POST /v1/chat/completions", sent={**CHAT, "slo": {"ttft_ms": 2000, "tokens_per_s": 10}})
    note("POST /v1/chat/completions", sent={**CHAT, "temperature": 9})
    note("POST /v1/completions", sent=STREAM)
    note("GET /v1/models")
    note("GET /readyz")
    short = note("POST /v1/completions", sent={**LONG, "max_tokens": 4}, headers=LATER).json()["id"]
    recorder.until(f"/v1/requests/{short}", lambda body: body["status"] == "ended")
    note("GET /v1/requests/{id}/events", f"/v1/requests/{short}/events?offset=3")
    note("GET /v1/requests/{id}", f"/v1/requests/{short}")


def as_operator(recorder: Recorder) -> None:
    """Ask what operators ask, while requests wait."""
    note = recorder.note
    recorder.until("/admin/v1/dead", lambda body: body["total"] > 0)
    letter = note("GET /admin/v1/dead").json()["letters"][0]["id"]
    note("POST /admin/v1/dead/{id}/retry", f"/admin/v1/dead/{letter}/retry")
    note("DELETE /admin/v1/dead/{id}", f"/admin/v1/dead/{letter}")
    ids = [recorder.ask("POST", "/v1/completions", LONG, LATER).json()["id"] for _ in range(3)]
    recorder.until("/admin/v1/forecast", lambda body: body["classes"] and body["classes"][0]["waiting"] == 2)
    recorder.until(f"/admin/v1/requests/{ids[2]}", lambda body: body["waits"] and body["waits"]["instance"])
    note("GET /admin/v1/queues")
    note("GET /admin/v1/requests/{id}", f"/admin/v1/requests/{ids[2]}")
    note("GET /admin/v1/forecast")
    note("GET /admin/v1/controller")
    note("POST /v1/requests/{id}/cancel", f"/v1/requests/{ids[2]}/cancel")
    note("DELETE /v1/requests/{id}", f"/v1/requests/{ids[2]}")
    note("GET /admin/v1/instances")
    note("POST /admin/v1/instances/{id}/drain", "/admin/v1/instances/a100-0/drain")


def main() -> int:
    examples: list[dict[str, Any]] = []
    for play in (as_client, as_operator):
        with serving() as (url, admin_url), httpx.Client(base_url=url, timeout=30) as http:
            recorder = Recorder(http, admin_url, examples)
            recorder.until("/readyz", lambda body: body["status"] == "ok")
            recorder.until(
                "/admin/v1/instances", lambda body: any(each["active_model"] for each in body["instances"])
            )
            play(recorder)
    text = json.dumps(examples, indent=1, ensure_ascii=False).replace(socket.gethostname(), "qlm-0")
    FILE.write_text(f"{text}\n", "utf-8")
    print(f"written: {len(examples)} examples")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A client that follows a stream through crashes and evictions, and what is killed beneath it."""

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from support.flaky import wait_until
from support.ports import free_port
from support.qlm_process import QlmProcess
from support.vllm_cpu import PYTHON, SCRIPTS, VllmServer

KILLED_AT: Final = 60
"""Output tokens that a client has when something is killed."""

TRIES: Final = 5
"""An answer that ends before its eviction is tried again."""

FOLLOWED_S: Final = 300.0
"""Longest time in which a stream ends; a render tier on a busy CPU takes a minute to start."""


class Follower:
    """A client that goes on with its stream wherever it broke off, until it ends well."""

    def __init__(self, url: str, body: dict[str, Any], at_token: Callable[[], None]) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls = 0
        self.finish: str | None = None
        self.broken = 0
        self._url, self._body = url, body
        self._at_token: Callable[[], None] | None = at_token
        self.id = ""
        self._shown = 0

    def follow(self) -> None:
        wait_until(self._follow_once, "the stream ends well", FOLLOWED_S)

    def _follow_once(self) -> bool:
        """Read on until the stream ends or breaks off; return whether it has ended well."""
        try:
            self._read()
        except httpx.TransportError:
            self.broken += 1
        return self.finish is not None

    def _read(self) -> None:
        path, headers = f"/v1/requests/{self.id}/events", {"last-event-id": str(self._shown)}
        call: dict[str, Any] = {"method": "GET", "url": path, "headers": headers}
        if not self.id:
            headers = {"x-qlm-stream": "resumable"}
            call = {"method": "POST", "url": "/v1/chat/completions", "headers": headers}
            call["json"] = self._body | {"stream": True}
        with httpx.Client(base_url=self._url, timeout=120) as client, client.stream(**call) as answer:
            if answer.status_code == 503:
                return
            assert answer.status_code == 200, answer.read()
            self.id = self.id or answer.headers["x-request-id"]
            for line in answer.iter_lines():
                self._take(line)

    def _take(self, line: str) -> None:
        if line.startswith("id: "):
            self._shown = int(line[4:])
        if not line.startswith("data: {"):
            return
        event = json.loads(line[6:])
        if "error" in event:
            assert event["error"]["code"] == "render_unavailable", event
            return
        for choice in event["choices"]:
            self.content += choice["delta"].get("content") or ""
            self.reasoning += choice["delta"].get("reasoning") or ""
            self.calls += len(choice["delta"].get("tool_calls") or ())
            self.finish = choice["finish_reason"]
        at_token = self._at_token
        if self._shown >= KILLED_AT and at_token is not None:
            self._at_token = None
            at_token()


def render_tiers(parent: int) -> list[int]:
    """Return the render tiers that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            of = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(of) == parent and b"render" in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def assert_is_the_engines_own(follower: Follower, server: VllmServer, body: dict[str, Any]) -> None:
    """Compare a followed stream with what the engine answers by itself to the same request, whole."""
    answer = httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=120).json()
    (expected,) = answer["choices"]
    assert follower.reasoning == (expected["message"].get("reasoning") or "")
    assert follower.content == expected["message"]["content"]
    assert follower.calls == len(expected["message"].get("tool_calls") or ())
    assert follower.finish == expected["finish_reason"]


@contextlib.contextmanager
def qlm_at(engine: VllmServer, model: Path, render: Mapping[str, Any], **more: Any) -> Iterator[QlmProcess]:
    """Run QLM with a render tier of its own, at an engine that outlives it.

    Args:
        engine: The engine.
        model: Folder of its model.
        render: Key `render` of the model.
        more: Further keys of the configuration.
    """
    served = {"id": "tiny", "engine": "vllm", "path": str(model), "context_tokens": 2048, "render": render}
    instance = {"id": "cpu", "accelerator": "CPU", "models": ["tiny"], "url": engine.base_url}
    with tempfile.TemporaryDirectory(prefix="qlm-outlived-") as name:
        config = {
            "models": [served],
            "instances": [{**instance, "seqs_max": 1}],
            "operations": {"demote": False},  # who cannot be in time still pushes others out
            "vllm": {"python": str(PYTHON), "pythonpath": str(SCRIPTS)},
            "http": {"port": free_port()},
            "data_dir": str(Path(name) / "data"),
            **more,
        }
        process = QlmProcess("serve", "serve", config=config, folder=Path(name))
        process.start()
        try:
            process.wait_ready(instances=1)
            yield process
        finally:
            process.close()


def answered(url: str, body: Mapping[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
    """Return a whole answer; while a render tier starts, 503 asks for a retry."""
    found: list[dict[str, Any]] = []

    def answers() -> bool:
        answer = httpx.post(f"{url}{path}", json=body, timeout=100)
        assert answer.status_code in (200, 503), answer.text
        found.extend([answer.json()] if answer.status_code == 200 else ())
        return bool(found)

    wait_until(answers, "the answer", FOLLOWED_S)
    return found[0]


def follow_through_kill(qlm: QlmProcess, engine: VllmServer, body: dict[str, Any], killed: str) -> None:
    """Follow a stream under which `qlm` or its `render tier` is killed; compare it with the engine's own."""
    kills = []

    def kill() -> None:
        kills.append(killed)
        if killed == "qlm":
            qlm.kill()
            qlm.start()
            return
        (tier,) = render_tiers(qlm.pid)
        os.kill(tier, signal.SIGKILL)

    follower = Follower(qlm.url, body, kill)
    follower.follow()
    assert kills == [killed]
    assert follower.broken >= (killed == "qlm"), "it was killed while it streamed"
    assert_is_the_engines_own(follower, engine, body)


def follow_through_eviction(qlm: QlmProcess, engine: VllmServer, body: dict[str, Any]) -> None:
    """Follow a stream that urgent work pushes out, and compare it with what the engine answers by itself."""

    def complete(tokens: int, **more: Any) -> None:
        urgent = {"model": "tiny", "prompt": "now", "max_tokens": tokens, "ignore_eos": True, **more}
        assert httpx.post(f"{qlm.url}/v1/completions", json=urgent, timeout=60).status_code == 200

    complete(60)  # so that the pace of the engine is known
    evictions = 0
    for _ in range(TRIES):
        batch = body | {"service_tier": "flex"}
        follower = Follower(qlm.url, batch, lambda: complete(8, slo={"deadline_ms": 50}))
        follower.follow()
        assert_is_the_engines_own(follower, engine, batch)
        seen = httpx.get(f"{qlm.admin_url}/admin/v1/requests/{follower.id}", timeout=60).json()
        evictions = sum(event["what"] == "evicted" for event in seen["events"])
        if evictions:
            break
    assert evictions, "the urgent request pushed it out"

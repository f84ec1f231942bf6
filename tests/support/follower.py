"""A client that follows a stream through crashes, and the processes that are killed beneath it."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx

from support.flaky import wait_until
from support.vllm_cpu import VllmServer

KILLED_AT: Final = 60
"""Output tokens that a client has when something is killed."""

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

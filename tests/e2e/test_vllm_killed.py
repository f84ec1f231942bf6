"""Streams on a real vLLM through evictions and kill -9 of QLM or its render tier: equal to vLLM's own."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.follower import Follower, assert_is_the_engines_own, render_tiers
from support.ports import free_port
from support.qlm_process import QlmProcess
from support.vllm_cpu import PYTHON, SCRIPTS, VllmServer, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 200, "maxItems": 300}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "How is the weather?"}],
    "temperature": 0,
    "max_tokens": 600,
    "ignore_eos": True,
}
TOOLS: dict[str, Any] = {"tools": [WEATHER]}
BY_SCHEMA: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": LIST}}
}
PENALTY: dict[str, Any] = {"presence_penalty": 0.8, "frequency_penalty": 0.3}
TRIES = 5
"""An answer that ends before its eviction is tried again."""


@pytest.fixture(scope="module")
def qlm(vllm_server: VllmServer) -> Iterator[QlmProcess]:
    """QLM with a render tier of its own, at an engine that outlives it."""
    render = {"extra_args": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]}
    model = {"id": "tiny", "engine": "vllm", "path": str(tiny_model()), "context_tokens": 2048}
    instance = {"id": "cpu", "accelerator": "CPU", "models": ["tiny"], "url": vllm_server.base_url}
    with tempfile.TemporaryDirectory(prefix="qlm-tools-") as name:
        config = {
            "models": [{**model, "render": render}],
            "instances": [{**instance, "seqs_max": 1}],
            "operations": {"demote": False},  # who cannot be in time still pushes others out
            "vllm": {"python": str(PYTHON), "pythonpath": str(SCRIPTS)},
            "http": {"port": free_port()},
            "data_dir": str(Path(name) / "data"),
        }
        process = QlmProcess("serve", "serve", config=config, folder=Path(name))
        process.start()
        try:
            process.wait_ready(instances=1)
            yield process
        finally:
            process.close()


@pytest.mark.parametrize(
    ("killed", "fields"),
    [("render tier", TOOLS), ("qlm", TOOLS), ("qlm", BY_SCHEMA), ("qlm", PENALTY)],
    ids=["render-tools", "qlm-tools", "qlm-schema", "qlm-penalty"],
)
def test_a_stream_goes_on_to_the_engines_own_answer(
    qlm: QlmProcess, vllm_server: VllmServer, killed: str, fields: dict[str, Any]
) -> None:
    kills, body = [], BODY | fields

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
    assert_is_the_engines_own(follower, vllm_server, body)


def test_a_stream_with_tools_that_is_evicted_is_the_engines_own(
    qlm: QlmProcess, vllm_server: VllmServer
) -> None:
    def complete(tokens: int, **more: Any) -> None:
        body = {"model": "tiny", "prompt": "now", "max_tokens": tokens, "ignore_eos": True, **more}
        assert httpx.post(f"{qlm.url}/v1/completions", json=body, timeout=60).status_code == 200

    complete(60)  # so that the pace of the engine is known
    body = BODY | TOOLS | {"service_tier": "flex"}
    evictions = 0
    for _ in range(TRIES):
        follower = Follower(qlm.url, body, lambda: complete(8, slo={"deadline_ms": 50}))
        follower.follow()
        assert_is_the_engines_own(follower, vllm_server, body)
        seen = httpx.get(f"{qlm.admin_url}/admin/v1/requests/{follower.id}", timeout=60).json()
        evictions = sum(event["what"] == "evicted" for event in seen["events"])
        if evictions:
            break
    assert evictions, "the urgent request pushed it out"

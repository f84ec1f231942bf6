"""Reasoning on a real vLLM through evictions and kill -9 of QLM or its render tier: equal to vLLM's own."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.flaky import wait_until
from support.follower import FOLLOWED_S, Follower, assert_is_the_engines_own, render_tiers
from support.ports import free_port
from support.qlm_process import QlmProcess
from support.vllm_cpu import PYTHON, SCRIPTS, VllmOptions, VllmServer, running_vllm, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

PARSER = ("--reasoning-parser", "deepseek_r1")
TALL = {"type": "object", "properties": {"tall": {"type": "boolean"}}, "required": ["tall"]}
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "How tall is it? Please think first."}],
    "temperature": 0,
    "max_tokens": 600,
}
BY_SCHEMA: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "tall", "schema": TALL}}
}
TRIES = 5
"""An answer that ends before its eviction is tried again."""


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmServer]:
    """A vLLM with a parser of reasoning, and a model that reasons."""
    with running_vllm(VllmOptions(model=tiny_model(talks=True), extra_args=PARSER)) as server:
        yield server


@pytest.fixture(scope="module")
def qlm(engine: VllmServer) -> Iterator[QlmProcess]:
    """QLM with a render tier of its own that has the same parser."""
    render = {"extra_args": list(PARSER), "reasons": True}
    model = {"id": "tiny", "engine": "vllm", "path": str(tiny_model(talks=True)), "context_tokens": 2048}
    instance = {"id": "cpu", "accelerator": "CPU", "models": ["tiny"], "url": engine.base_url}
    with tempfile.TemporaryDirectory(prefix="qlm-reasoning-") as name:
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


def test_the_model_reasons_and_then_answers(engine: VllmServer) -> None:
    message = answered(engine.base_url, BODY)["message"]
    assert len(message["reasoning"].split()) > 50
    assert len(message["content"].split()) > 50
    answer = answered(engine.base_url, BODY | BY_SCHEMA)["message"]
    assert (len(answer["reasoning"].split()) > 50, answer["content"]) == (True, '{"tall":true}')


@pytest.mark.parametrize("fields", [{}, BY_SCHEMA], ids=["text", "schema"])
def test_a_whole_answer_is_the_engines_own(
    qlm: QlmProcess, engine: VllmServer, fields: dict[str, Any]
) -> None:
    expected, got = answered(engine.base_url, BODY | fields), answered(qlm.url, BODY | fields)
    assert expected["message"]["reasoning"] == got["message"]["reasoning"]
    assert expected["message"]["content"] == got["message"]["content"]
    assert expected["finish_reason"] == got["finish_reason"]


@pytest.mark.parametrize("fields", [{}, BY_SCHEMA], ids=["text", "schema"])
@pytest.mark.parametrize("killed", ["render tier", "qlm"])
def test_a_stream_goes_on_to_the_engines_own_answer(
    qlm: QlmProcess, engine: VllmServer, killed: str, fields: dict[str, Any]
) -> None:
    kills = []

    def kill() -> None:
        kills.append(killed)
        if killed == "qlm":
            qlm.kill()
            qlm.start()
            return
        (tier,) = render_tiers(qlm.pid)
        os.kill(tier, signal.SIGKILL)

    follower = Follower(qlm.url, BODY | fields, kill)
    follower.follow()
    assert kills == [killed]
    assert follower.broken >= (killed == "qlm"), "it was killed while it streamed"
    assert_is_the_engines_own(follower, engine, BODY | fields)


def test_reasoning_that_is_evicted_is_the_engines_own(qlm: QlmProcess, engine: VllmServer) -> None:
    def complete(tokens: int, **more: Any) -> None:
        body = {"model": "tiny", "prompt": "now", "max_tokens": tokens, "ignore_eos": True, **more}
        assert httpx.post(f"{qlm.url}/v1/completions", json=body, timeout=60).status_code == 200

    complete(60)  # so that the pace of the engine is known
    evictions = 0
    for _ in range(TRIES):
        body = BODY | {"service_tier": "flex"}
        follower = Follower(qlm.url, body, lambda: complete(8, slo={"deadline_ms": 50}))
        follower.follow()
        assert_is_the_engines_own(follower, engine, body)
        seen = httpx.get(f"{qlm.admin_url}/admin/v1/requests/{follower.id}", timeout=60).json()
        evictions = sum(event["what"] == "evicted" for event in seen["events"])
        if evictions:
            break
    assert evictions, "the urgent request pushed it out"


def answered(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the choice of a whole answer; while the render tier starts, 503 asks for a retry."""
    found: list[dict[str, Any]] = []

    def answers() -> bool:
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=100)
        assert answer.status_code in (200, 503), answer.text
        found.extend(answer.json()["choices"] if answer.status_code == 200 else ())
        return bool(found)

    wait_until(answers, "the answer", FOLLOWED_S)
    return found[0]

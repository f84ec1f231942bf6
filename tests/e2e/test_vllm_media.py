"""Images on a real vLLM: answers equal to vLLM's own, also through an eviction and kill -9."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.flaky import wait_until
from support.follower import answered, follow_through_eviction, follow_through_kill, qlm_at
from support.pictures import GREEN, RED, data_url, served
from support.qlm_process import QlmProcess
from support.vllm_cpu import VllmOptions, VllmServer, running_vllm, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.alone, pytest.mark.timeout(400)]

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
SCHEMA = {"type": "object", "properties": {"seen": {"type": "boolean"}}, "required": ["seen"]}


def asked(*urls: str, **more: Any) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *images]}]
    return {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 20, **more}


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmServer]:
    """A vLLM with a model that takes images."""
    with running_vllm(VllmOptions(model=tiny_model(kind="sees"), extra_args=TOOLS)) as server:
        yield server


@pytest.fixture(scope="module")
def qlm(engine: VllmServer) -> Iterator[QlmProcess]:
    """QLM with a render tier of its own."""
    media = {"allowed_networks": ["127.0.0.0/8"], "bytes_max": 4096}
    with qlm_at(engine, tiny_model(kind="sees"), {"extra_args": list(TOOLS)}, media=media) as process:
        yield process


def text(answer: dict[str, Any]) -> str:
    content: str = answer["choices"][0]["message"]["content"]
    return content


CASES: dict[str, dict[str, Any]] = {
    "red": asked(data_url(RED)),
    "green": asked(data_url(GREEN)),
    "red and green": asked(data_url(RED), data_url(GREEN)),
    "green and red": asked(data_url(GREEN), data_url(RED)),
    "by schema": asked(
        data_url(RED),
        response_format={"type": "json_schema", "json_schema": {"name": "seen", "schema": SCHEMA}},
    ),
    "with a tool": asked(
        data_url(RED), tools=[{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        tool_choice="required", max_tokens=80,
    ),
    "several turns": {
        **asked(data_url(RED)),
        "messages": [
            *asked(data_url(RED))["messages"],
            {"role": "assistant", "content": "A square."},
            {"role": "user", "content": "And in it?"},
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_answer_is_the_engines_own(qlm: QlmProcess, engine: VllmServer, case: str) -> None:
    def seen(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [
            (
                choice["message"]["content"],
                [call["function"] for call in choice["message"].get("tool_calls") or ()],
                choice["finish_reason"],
                answer["usage"]["prompt_tokens"],
            )
            for choice in answer["choices"]
        ]

    ours, theirs = answered(qlm.url, CASES[case]), answered(engine.base_url, CASES[case])
    assert seen(ours) == seen(theirs)


def test_another_image_has_another_answer(qlm: QlmProcess) -> None:
    texts = {
        text(answered(qlm.url, CASES[case])) for case in ("red", "green", "red and green", "green and red")
    }
    assert len(texts) == 4


def test_each_of_several_answers_has_the_image(qlm: QlmProcess) -> None:
    choices = answered(qlm.url, CASES["green"] | {"n": 2})["choices"]
    assert [choice["message"]["content"] for choice in choices] == [
        text(answered(qlm.url, CASES["green"]))
    ] * 2


def test_an_image_is_fetched_from_its_address(qlm: QlmProcess) -> None:
    with served({"red.png": RED, "large.png": RED + bytes(5000)}) as site:
        for path in ("red.png", "to/red.png"):
            assert text(answered(qlm.url, asked(f"{site}/{path}"))) == text(answered(qlm.url, CASES["red"]))
        for path, code in (("none.png", "media_unavailable"), ("large.png", "media_too_large")):
            refused = httpx.post(f"{qlm.url}/v1/chat/completions", json=asked(f"{site}/{path}"), timeout=60)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, code), refused.text


def test_the_other_apis_take_images(qlm: QlmProcess) -> None:
    expected = text(answered(qlm.url, CASES["red"]))
    parts = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": data_url(RED)},
    ]
    body = {"model": "tiny", "input": [{"role": "user", "content": parts}], "temperature": 0}
    response = answered(qlm.url, {**body, "max_output_tokens": 20}, "/v1/responses")
    assert response["output"][0]["content"][0]["text"] == expected
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
    blocks = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": blocks}], "temperature": 0}
    message = answered(qlm.url, {**body, "max_tokens": 20}, "/v1/messages")
    assert message["content"][0]["text"] == expected


@pytest.mark.parametrize(
    ("data", "why"), [(b"no image", "image"), (RED[: len(RED) // 2], "image")], ids=["text", "cut"]
)
def test_what_is_no_image_is_refused(qlm: QlmProcess, data: bytes, why: str) -> None:
    answered(qlm.url, CASES["red"])
    refused = httpx.post(f"{qlm.url}/v1/chat/completions", json=asked(data_url(data)), timeout=60)
    assert refused.status_code == 400, refused.text
    assert why in refused.json()["error"]["message"]


@pytest.mark.parametrize("killed", ["render tier", "qlm"])
def test_a_stream_goes_on_after_kill_9(qlm: QlmProcess, engine: VllmServer, killed: str) -> None:
    body = asked(data_url(GREEN), max_tokens=600, ignore_eos=True)
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    follow_through_kill(qlm, engine, body | ({"tools": tools} if killed == "render tier" else {}), killed)


def test_a_stream_that_is_evicted_goes_on(qlm: QlmProcess, engine: VllmServer) -> None:
    follow_through_eviction(qlm, engine, asked(data_url(RED), max_tokens=600, ignore_eos=True))


def test_nothing_is_left_of_the_images(qlm: QlmProcess) -> None:
    answered(qlm.url, CASES["red"])
    folders = list(qlm.folder.rglob("*.media"))
    assert folders
    wait_until(lambda: not any(any(each.iterdir()) for each in folders), "all images are dropped", 20)

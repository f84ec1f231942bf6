"""LiteLLM: its SDK with both providers that reach QLM, with true usage, and its proxy."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litellm
import openai
import pytest

litellm.telemetry = False

ASKED: Any = [{"role": "user", "content": "Will it rain in Ulm?"}]
TOWN = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": TOWN}}
PLACE: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": TOWN}}


@pytest.fixture(params=["openai", "hosted_vllm"])
def options(request: pytest.FixtureRequest, url: str, model: str) -> dict[str, Any]:
    """Return what reaches QLM through one of the providers."""
    at_qlm = {"api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}
    return {"model": f"{request.param}/{model}", "messages": ASKED, **at_qlm}


def test_chat(options: dict[str, Any]) -> None:
    more = {"temperature": 0.5, "seed": 1, "stop": ["\n\n"], "user": "ann", "slo": {"deadline_ms": 60_000}}
    answer = litellm.completion(**options, max_tokens=10, **more)
    assert answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_usage_of_streams_is_that_of_the_engine(options: dict[str, Any]) -> None:
    whole = litellm.completion(**options, max_tokens=9)
    stream = litellm.completion(**options, max_tokens=9, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, 9)
    assert all(chunk.choices for chunk in chunks)
    pieces = [chunk for chunk in chunks if chunk.choices[0].delta.content]
    assert "".join(chunk.choices[0].delta.content for chunk in pieces)


def test_asynchronous(options: dict[str, Any]) -> None:
    async def streamed() -> list[Any]:
        return [each async for each in await litellm.acompletion(**options, max_tokens=9, stream=True)]

    assert asyncio.run(streamed())[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_tools(options: dict[str, Any], stream: bool) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = litellm.completion(**options, tools=[WEATHER], tool_choice=choice, stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments).keys() == {"town"}


def test_json_by_schema(options: dict[str, Any]) -> None:
    answer = litellm.completion(**options, response_format=PLACE)
    assert json.loads(answer.choices[0].message.content).keys() == {"town"}


def test_text_completions(options: dict[str, Any]) -> None:
    asked = {key: value for key, value in options.items() if key != "messages"}
    name = asked.pop("model").replace("openai/", "text-completion-openai/")
    assert litellm.text_completion(model=name, prompt="Hi", max_tokens=4, **asked).choices[0].text


def test_responses(options: dict[str, Any]) -> None:
    asked = {key: value for key, value in options.items() if key not in ("messages", "num_retries")}
    answer = litellm.responses(input="Hi", max_output_tokens=50, **asked)
    assert answer.output[-1].content[0].text


def test_files_and_batches(url: str, model: str) -> None:
    place: Any = {"custom_llm_provider": "openai", "api_base": f"{url}/v1", "api_key": "none"}
    body = {"model": model, "messages": ASKED, "max_tokens": 5}
    path = "/v1/chat/completions"
    lines = [{"custom_id": f"line-{n}", "method": "POST", "url": path, "body": body} for n in range(3)]
    data = "\n".join(map(json.dumps, lines)).encode()
    given = litellm.create_file(file=("lines.jsonl", data), purpose="batch", **place)
    made = litellm.create_batch(
        completion_window="24h", endpoint=path, input_file_id=given.id, metadata={"a": "b"}, **place
    )
    assert made.id in [each.id for each in litellm.list_batches(**place).data]
    ended_by_s = time.monotonic() + 60
    while (now := litellm.retrieve_batch(batch_id=made.id, **place)).status != "completed":
        assert time.monotonic() < ended_by_s, now.status
        time.sleep(0.1)
    assert (now.request_counts.completed, now.request_counts.failed) == (3, 0)
    answers = litellm.file_content(file_id=now.output_file_id, **place).content.splitlines()
    found = {each["custom_id"]: each["response"]["status_code"] for each in map(json.loads, answers)}
    assert found == {"line-0": 200, "line-1": 200, "line-2": 200}
    assert litellm.file_delete(file_id=given.id, **place).deleted


def test_errors_have_their_classes(options: dict[str, Any]) -> None:
    long = [{"role": "user", "content": "x " * 200_000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**options | {"messages": long})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**options | {"model": options["model"].split("/")[0] + "/none"})
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**options, temperature=9)


@pytest.fixture(scope="module")
def proxy(url: str, model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Run LiteLLM's proxy in front of QLM."""
    folder = tmp_path_factory.mktemp("proxy")
    at_qlm = {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": "local", "litellm_params": at_qlm}]}
    (folder / "config.yaml").write_text(json.dumps(config), "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [str(Path(sys.executable).with_name("litellm")), "--config", str(folder / "config.yaml")]
    argv += ["--host", "127.0.0.1", "--port", str(port)]
    more = {"LITELLM_MASTER_KEY": "sk-local", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, env=os.environ | more, stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{port}/health/liveliness", process)
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-local", max_retries=0
        ) as client:
            yield client
    finally:
        print((folder / "log").read_text("utf-8")[-2000:])
        process.terminate()
        process.wait(30)


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    ready_by_s = time.monotonic() + 180
    while time.monotonic() < ready_by_s and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    raise TimeoutError("the proxy did not start")


def test_proxy(proxy: openai.OpenAI) -> None:
    answer = proxy.chat.completions.create(model="local", messages=ASKED, max_tokens=9)
    stream = proxy.chat.completions.create(
        model="local", messages=ASKED, max_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    usage = list(stream)[-1].usage
    assert usage.completion_tokens == answer.usage.completion_tokens == 9
    assert usage.prompt_tokens == answer.usage.prompt_tokens


def test_proxy_with_tools_and_json(proxy: openai.OpenAI) -> None:
    answer = proxy.chat.completions.create(
        model="local", messages=ASKED, tools=[WEATHER], tool_choice="required"
    )
    assert answer.choices[0].message.tool_calls[0].function.name == "weather"
    answer = proxy.chat.completions.create(model="local", messages=ASKED, response_format=PLACE)
    assert json.loads(answer.choices[0].message.content).keys() == {"town"}


def test_proxy_passes_objectives_and_errors(proxy: openai.OpenAI) -> None:
    slo = {"slo": {"deadline_ms": 60_000}}
    assert proxy.chat.completions.create(model="local", messages=ASKED, max_tokens=4, extra_body=slo).choices
    with pytest.raises(openai.BadRequestError, match="deadline_ms"):
        proxy.chat.completions.create(model="local", messages=ASKED, extra_body={"slo": {"deadline_ms": -1}})

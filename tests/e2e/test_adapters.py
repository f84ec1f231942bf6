"""LoRA adapters in `qlm serve` with emulated engines: models to clients, no model swap for the cluster."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import grpc
import httpx
import openai
import pytest

from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.flaky import wait_until
from support.ports import free_port
from support.qlm_process import QlmProcess, serving
from support.rpc import Stream

NAMES = ("mistral-7b", "poet", "clerk")
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Who waits?"}], "max_tokens": 24}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def served() -> Iterator[QlmProcess]:
    """One instance of two models, the one with adapters first."""
    config = {
        "grpc": {"port": free_port()},
        "models": [{"id": "mistral-7b", "adapters": [{"id": "poet"}, {"id": "clerk"}]}, {"id": "llama-3-8b"}],
        "instances": [{"id": "a", "accelerator": "A100", "models": ["mistral-7b", "llama-3-8b"]}],
        "emulate": {"time_scale": 0.1},
    }
    with serving(config) as process:
        yield process


@pytest.fixture
def client(served: QlmProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def swaps(served: QlmProcess) -> int:
    """Model swaps since the start, the first one included."""
    (instance,) = httpx.get(f"{served.admin_url}/admin/v1/instances").json()["instances"]
    counts = instance["operations"]["counts"]
    return sum(each["count"] for each in counts if each["operation"].startswith("model_swap"))


def said(client: openai.OpenAI, model: str) -> str:
    answer = client.chat.completions.create(model=model, **CHAT)
    assert answer.model == model
    return answer.choices[0].message.content or ""


def test_adapters_are_listed_after_their_base(client: openai.OpenAI) -> None:
    listed = {each.id: (each.model_extra or {})["parent"] for each in client.models.list()}
    expected = {"mistral-7b": None, "poet": "mistral-7b", "clerk": "mistral-7b", "llama-3-8b": None}
    assert list(listed.items()) == list(expected.items())
    assert client.models.retrieve("poet").id == "poet"


def test_base_and_adapters_answer_by_turns_without_a_model_swap(
    served: QlmProcess, client: openai.OpenAI
) -> None:
    before = swaps(served)
    texts = [said(client, name) for name in NAMES * 2]
    assert texts[:3] == texts[3:]
    assert len({*texts}) == 3
    assert swaps(served) == before


def test_streams_tools_and_all_doors_know_adapters(served: QlmProcess, client: openai.OpenAI) -> None:
    text = said(client, "poet")
    chunks = list(client.chat.completions.create(model="poet", stream=True, **CHAT))
    assert {chunk.model for chunk in chunks} == {"poet"}
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == text
    tools: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required"}
    called = client.chat.completions.create(model="poet", messages=CHAT["messages"], **tools)
    assert called.choices[0].message.tool_calls
    response = client.responses.create(model="poet", input="Who waits?", max_output_tokens=24)
    assert (response.model, response.output_text) == ("poet", text)
    with anthropic.Anthropic(base_url=served.url, api_key="none") as other:
        message = other.messages.create(model="poet", messages=CHAT["messages"], max_tokens=24)
    assert (message.model, message.content[0].to_dict()["text"]) == ("poet", text)
    talk = pb.Conversation(messages=[pb.Message(role="user", content="Who waits?")])
    asked = pb.GenerateRequest(model="poet", messages=talk, max_tokens=24)
    with grpc.insecure_channel(served.grpc_address) as channel:
        stream = Stream(QlmStub(channel).Generate(asked))
    assert stream.started is not None
    assert (stream.started.model, "".join(each.text for each in stream.deltas)) == ("poet", text)


def test_lines_of_a_batch_may_name_adapters(client: openai.OpenAI) -> None:
    url: Literal["/v1/chat/completions"] = "/v1/chat/completions"
    lines = [
        {"custom_id": name, "method": "POST", "url": url, "body": {"model": name, **CHAT}} for name in NAMES
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
    wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", "the batch has ended")
    answers = client.files.content(client.batches.retrieve(batch.id).output_file_id or "").text.splitlines()
    found = {each["custom_id"]: each["response"]["body"] for each in map(json.loads, answers)}
    assert {name: body["model"] for name, body in found.items()} == {name: name for name in NAMES}
    assert {name: body["choices"][0]["message"]["content"] for name, body in found.items()} == {
        name: said(client, name) for name in NAMES
    }


def test_requests_are_listed_by_adapter_and_by_base(served: QlmProcess, client: openai.OpenAI) -> None:
    for name in ("clerk", "mistral-7b"):
        said(client, name)

    def listed(model: str) -> set[str]:
        query: dict[str, str | int] = {"model": model, "limit": 1000}
        answer = httpx.get(f"{served.admin_url}/admin/v1/requests", params=query).json()
        return {each["model"] for each in answer["requests"]}

    assert listed("clerk") == {"clerk"}
    assert {"clerk", "mistral-7b"} <= listed("mistral-7b")


def test_an_unknown_adapter_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="expected one of mistral-7b, poet, clerk, llama-3-8b"):
        said(client, "nobody")

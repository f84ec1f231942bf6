"""Tools of responses: namespaces, choices, and a search of the web that no model is offered."""

from typing import Any, Final

import httpx
import openai
import pytest

from support.gateway import Cluster

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}
ASKED: dict[str, Any] = {"model": "emulated", "input": "Will it rain in Delft?"}
NAMESPACE = {"type": "namespace", "name": "sky", "description": "About the sky.", "tools": [WEATHER]}
OF_NAMESPACE = {**ASKED, "tools": [NAMESPACE, {"type": "web_search", "external_web_access": False}]}


BY_NAME = {"type": "function", "name": "weather"}


@pytest.mark.parametrize(
    "choice",
    ["required", BY_NAME, {**BY_NAME, "namespace": "sky"}, {**BY_NAME, "name": "sky__weather"}],
)
async def test_a_tool_of_a_namespace_is_called_by_both_names(
    http: httpx.AsyncClient, cluster: Cluster, choice: Any
) -> None:
    asked = {**OF_NAMESPACE, "tool_choice": choice}
    whole = (await http.post("/v1/responses", json=asked)).json()
    (call,) = whole["output"]
    assert (call["namespace"], call["name"]) == ("sky", "weather")
    assert b"sky__weather" in bytes(cluster.agent.leased[-1].prompt_ids), "the model sees one name"
    assert b"web_search" not in bytes(cluster.agent.leased[-1].prompt_ids)
    async with (
        openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="any") as client,
        client.responses.stream(**asked) as stream,
    ):
        final = await stream.get_final_response()
    (streamed,) = (item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in final.output)
    assert {**streamed, "id": 0, "call_id": 0} == {**call, "id": 0, "call_id": 0}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."}
    items = [{"role": "user", "content": ASKED["input"]}, call, output]
    await http.post("/v1/responses", json={**OF_NAMESPACE, "input": items, "max_output_tokens": 3})
    assert b'"name": "sky__weather"' in bytes(cluster.agent.leased[-1].prompt_ids)


async def test_a_choice_means_the_function_of_just_that_name(http: httpx.AsyncClient) -> None:
    asked = {**ASKED, "tools": [NAMESPACE, WEATHER], "tool_choice": BY_NAME}
    (call,) = (await http.post("/v1/responses", json=asked)).json()["output"]
    assert (call["name"], "namespace" in call) == ("weather", False)


async def test_a_search_of_the_web_alone_is_no_tool(http: httpx.AsyncClient, cluster: Cluster) -> None:
    asked = {**ASKED, "tools": [{"type": "web_search"}], "tool_choice": "auto", "client_metadata": {"a": "b"}}
    answer = await http.post("/v1/responses", json={**asked, "max_output_tokens": 3})
    assert answer.status_code == 200, answer.text
    assert bytes(cluster.agent.leased[-1].prompt_ids) == b"user: Will it rain in Delft?\nassistant:"


WRONG: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"tools": [{**NAMESPACE, "strict": True}]}, "tools[0].strict", "possible here: type, name, desc"),
    (
        {"tools": [{**NAMESPACE, "name": "a" * 100, "tools": [{**WEATHER, "name": "b" * 100}]}]},
        "tools[0].tools[0].name",
        "200 characters",
    ),
    (
        {"tools": [{**WEATHER, "name": "sky__weather"}, NAMESPACE]},
        "tools[1].tools[0].name",
        "expected it once",
    ),
    ({"tool_choice": "required"}, "tool_choice", "tools to call"),
    ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice", "tools to call"),
    (
        {"tool_choice": {**BY_NAME, "namespace": "sea"}, "tools": [NAMESPACE]},
        "tool_choice",
        "name of a function",
    ),
    ({"tool_choice": {**BY_NAME, "more": 1}, "tools": [NAMESPACE]}, "tool_choice", "perhaps a namespace"),
    (
        {"tool_choice": BY_NAME, "tools": [NAMESPACE, {**NAMESPACE, "name": "sea"}]},
        "tool_choice",
        "one of sky__weather, sea__weather",
    ),
]


@pytest.mark.parametrize(("body", "param", "words"), WRONG)
async def test_tools_and_choices_that_are_wrong_are_refused_by_name(
    http: httpx.AsyncClient, body: dict[str, Any], param: str, words: str
) -> None:
    answer = await http.post("/v1/responses", json=ASKED | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert words in error["message"], error["message"]

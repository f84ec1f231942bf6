"""Errors about an image name it as the client did, whichever API it came by."""

from typing import Any

import httpx
import pytest

from support.gateway import Cluster
from support.pictures import RED, data_url

PRIVATE = "http://127.0.0.1:9/a.png"
KIND, _, GOOD = data_url(RED).removeprefix("data:").partition(";base64,")


def inline(data: str = GOOD) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": KIND, "data": data}}


def linked(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": url}}


def result(*content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": list(content)}


TEXT: dict[str, Any] = {"type": "text", "text": "Look."}
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "see", "input": {}}]},
]
MESSAGES: list[tuple[list[dict[str, Any]], str]] = [
    ([{"role": "user", "content": [inline("###")]}], "messages[0].content[0].source.data"),
    ([{"role": "user", "content": [TEXT, linked(PRIVATE)]}], "messages[0].content[1].source.url"),
    (
        [*CALLED, {"role": "user", "content": [result(TEXT, inline(), inline("###"))]}],
        "messages[2].content[0].content[2].source.data",
    ),
    (
        [*CALLED, {"role": "user", "content": [result(inline()), TEXT, linked("ftp://a")]}],
        "messages[2].content[2].source.url",
    ),
]
INPUTS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"role": "user", "content": [{"type": "input_image", "image_url": PRIVATE}]}], "input[0].content[0]"),
    (
        [
            {"role": "user", "content": "Hi"},
            {"type": "function_call", "call_id": "c", "name": "see", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "red"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look."},
                    {"type": "input_image", "image_url": data_url(RED)},
                    {"type": "input_image", "image_url": "data:image/png;base64,###"},
                ],
            },
        ],
        "input[3].content[2]",
    ),
    (
        [
            {"type": "function_call", "call_id": "c", "name": "see", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [
                    {"type": "input_text", "text": "Look."},
                    {"type": "input_image", "image_url": "data:image/png;base64,###"},
                ],
            },
            {"role": "user", "content": [{"type": "input_image", "image_url": data_url(RED)}]},
        ],
        "input[1].output[1]",
    ),
]


async def refused(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await http.post(path, json={"model": "emulated", **body})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("more", [{}, {"system": "Be brief."}])
@pytest.mark.parametrize("route", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(("messages", "place"), MESSAGES)
async def test_an_image_of_a_message_is_named_by_its_block(
    http: httpx.AsyncClient, messages: list[dict[str, Any]], place: str, route: str, more: dict[str, Any]
) -> None:
    limit = {"max_tokens": 9} if route == "/v1/messages" else {}
    error = await refused(http, route, {"messages": messages, **limit, **more})
    assert error["param"] == place
    assert error["message"].startswith(f"{place} is ") and "image_url" not in error["message"]


@pytest.mark.parametrize("more", [{}, {"instructions": "Be brief."}])
@pytest.mark.parametrize(("items", "place"), INPUTS)
async def test_an_image_of_a_response_is_named_by_its_item(
    http: httpx.AsyncClient, items: list[dict[str, Any]], place: str, more: dict[str, Any]
) -> None:
    error = await refused(http, "/v1/responses", {"input": items, **more})
    assert error["param"] == f"{place}.image_url"
    assert error["message"].startswith(f"{place}.image_url is ")


async def test_behind_images_of_an_earlier_response_those_of_the_input_keep_their_places(
    http: httpx.AsyncClient,
) -> None:
    part = {"type": "input_image", "image_url": data_url(RED)}
    first = {"model": "emulated", "input": [{"role": "user", "content": [part]}], "max_output_tokens": 5}
    id = (await http.post("/v1/responses", json=first)).json()["id"]
    items, place = INPUTS[0]
    error = await refused(http, "/v1/responses", {"input": items, "previous_response_id": id})
    assert error["param"] == f"{place}.image_url"


async def test_an_image_is_listed_as_one(http: httpx.AsyncClient) -> None:
    image = {"type": "input_image", "image_url": data_url(RED)}
    parts = [{"type": "input_text", "text": "Look."}, image, image | {"detail": "low"}]
    asked = {"model": "emulated", "input": [{"role": "user", "content": parts}], "max_output_tokens": 5}
    id = (await http.post("/v1/responses", json=asked)).json()["id"]
    (item,) = (await http.get(f"/v1/responses/{id}/input_items")).json()["data"]
    assert item["content"] == [parts[0], image | {"detail": "auto"}, parts[2]]


async def test_without_a_render_tier_an_image_is_named_too(cluster: Cluster) -> None:
    messages, place = MESSAGES[1]
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as plain:
        body = {"messages": messages, "max_tokens": 9, "system": "Be brief."}
        error = await refused(plain, "/v1/messages", body)
    assert error["param"] == place
    assert error["message"].startswith(f"{place} is ") and "has no render tier" in error["message"]

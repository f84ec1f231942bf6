"""Responses that were kept: their input, and how they are deleted; OpenAI's unmodified client."""

from collections.abc import AsyncIterator
from typing import Any, Final

import openai
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from qlm.domain.view import RequestFilter
from qlm.gateway.render.rendering import RenderTiers
from support.gateway import Cluster

ASKED: Final[dict[str, Any]] = {
    "model": "emulated",
    "input": "Will it rain in Delft?",
    "max_output_tokens": 3,
}
ITEM: TypeAdapter[ResponseItem] = TypeAdapter(ResponseItem)
CALL: Final = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
ITEMS: Final[list[Any]] = [
    {"role": "user", "content": "Will it rain?"},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    },
    CALL | {"id": "fc_1"},
    CALL | {"id": "fc_1", "call_id": "c2"},  # with the id of another one
    {"type": "function_call_output", "call_id": "c1", "output": "Rain."},
    {"type": "function_call_output", "call_id": "c2", "output": "Sun."},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It will."}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And then?"}]},
]


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client that tries again while the machine has too little processor, as by default."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=20) as made:
        yield made


async def code_of(call: Any) -> tuple[int, str | None, str | None]:
    with pytest.raises(openai.APIStatusError) as caught:
        await call
    return caught.value.status_code, caught.value.code, caught.value.param


async def test_the_items_of_an_input_are_listed_in_pages(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(**ASKED)
    second = await client.responses.create(**ASKED | {"input": ITEMS}, previous_response_id=first.id)
    listed = [each async for each in client.responses.input_items.list(second.id, order="asc", limit=3)]
    assert len(listed) == len(ITEMS), "its own, not those of the response before it"
    assert len({each.id for each in listed}) == len(ITEMS)
    for item, given in zip(listed, ITEMS, strict=True):
        plain = item.model_dump(exclude_none=True)
        ITEM.validate_python(plain, strict=True)
        assert plain["type"] == given.get("type", "message")
        assert {name: plain[name] for name in given if name not in ("id", "content")} == {
            name: given[name] for name in given if name not in ("id", "content")
        }
    assert [each.id for each in listed[1:3]] == ["rs_1", "fc_1"]
    shown: list[Any] = [each for each in listed if each.type == "message"]
    texts = [each.content[0].text for each in shown]
    assert texts == ["Will it rain?", "It will.", "And then?"]
    last_first = [each.id async for each in client.responses.input_items.list(second.id)]
    assert last_first == [each.id for each in reversed(listed)]
    page = await client.responses.input_items.list(second.id, limit=1, after=last_first[0])
    assert ([each.id for each in page.data], page.has_more) == ([last_first[1]], True)


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=msg_none", "after")],
)
async def test_a_wrong_page_is_refused_by_name(client: openai.AsyncOpenAI, query: str, param: str) -> None:
    id = (await client.responses.create(**ASKED)).id
    call = client.get(f"/responses/{id}/input_items?{query}", cast_to=object)
    assert await code_of(call) == (400, "invalid_value", param)


async def test_a_deleted_response_is_not_found_on_any_gateway(
    client: openai.AsyncOpenAI, cluster: Cluster, tiers: RenderTiers
) -> None:
    first = await client.responses.create(**ASKED)
    second = await client.responses.create(**ASKED, previous_response_id=first.id)
    await client.responses.delete(first.id)
    other = await cluster.gateway(render_tiers=tiers)
    gone = (404, "response_not_found", "id")
    async with openai.AsyncOpenAI(base_url=f"{other}/v1", api_key="any", max_retries=20) as elsewhere:
        for each in (client, elsewhere):
            calls = each.responses
            assert await code_of(calls.retrieve(first.id)) == gone
            assert await code_of(calls.retrieve(first.id, stream=True)) == gone
            assert await code_of(calls.delete(first.id)) == gone
            assert await code_of(calls.cancel(first.id)) == gone
            assert await code_of(calls.input_items.list(first.id)) == gone
            assert (await code_of(each.get(f"/requests/{first.id}", cast_to=object)))[0] == 404
            assert await calls.retrieve(second.id) == second
            for id in (first.id, second.id):
                with pytest.raises(openai.NotFoundError, match=f"response {first.id}.* not found") as error:
                    await calls.create(**ASKED, previous_response_id=id)
                assert error.value.param == "previous_response_id"


async def test_a_retry_finds_its_response_though_the_one_before_it_is_deleted(
    client: openai.AsyncOpenAI,
) -> None:
    first = await client.responses.create(**ASKED)
    asked: Any = ASKED | {"previous_response_id": first.id, "extra_headers": {"idempotency-key": "k2"}}
    second = await client.responses.create(**asked)
    await client.responses.delete(first.id)
    assert await client.responses.create(**asked) == second
    other: Any = asked | {"input": "Something else"}
    assert (await code_of(client.responses.create(**other)))[:2] == (422, "idempotency_key_reused")


async def test_nothing_of_a_deleted_response_stays_in_the_shared_state(
    client: openai.AsyncOpenAI, cluster: Cluster
) -> None:
    asked: Any = ASKED | {"instructions": "SECRET", "extra_headers": {"idempotency-key": "k1"}}
    id = (await client.responses.create(**asked)).id
    deleted = await client.delete(f"/responses/{id}", cast_to=object)
    assert deleted == {"id": id, "object": "response", "deleted": True}
    (record,) = [
        each for each in await cluster.store.records(RequestFilter()) if id.endswith(each.metadata.id)
    ]
    assert record.erased and record.metadata == record.metadata.without_texts()
    log = await cluster.store.read_output(record.metadata.id, 0)
    assert log is not None and log.token_ids == ()
    again = await code_of(client.responses.create(**asked))
    assert again == (409, "idempotency_key_erased", "idempotency-key")


@pytest.mark.parametrize("running", [True, False])
async def test_a_response_that_has_not_ended_is_cancelled_and_deleted(
    client: openai.AsyncOpenAI, cluster: Cluster, running: bool
) -> None:
    cluster.agent.pause_at = 1
    if not running:
        await cluster.agent.rest()
    stream = await client.responses.create(**ASKED, stream=True, background=True)
    async for event in stream:
        if event.type == "response.created":
            id = event.response.id
        if event.type == ("response.output_text.delta" if running else "response.queued"):
            break
    await stream.close()
    await client.responses.delete(id)
    assert await code_of(client.responses.retrieve(id)) == (404, "response_not_found", "id")

"""Batches over real HTTP, as OpenAI's SDK uses them."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, ConflictError, NotFoundError, RateLimitError
from openai.types import Batch
from openai.types.responses import Response

from qlm.domain.outcome import Outcome
from qlm.domain.view import RequestFilter
from qlm.gateway.files.disk.storage import storage_in
from support.file_world import CHAT, LIMITS, PROMPT_TOKENS_MAX, SetClock, World, running_world
from support.gateway import running_cluster, text_then_end, until
from support.stored_batches import folder_of


def line(n: int, /, **body: Any) -> dict[str, Any]:
    given = {"model": "emulated", "messages": [{"role": "user", "content": f"Line {n}"}], **body}
    return {"custom_id": f"line-{n}", "method": "POST", "url": CHAT, "body": given}


def names(lines: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(each["custom_id"] for each in lines)


def expected(numbers: Iterable[int]) -> list[str]:
    return sorted(f"line-{n}" for n in numbers)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running_world(tmp_path) as running:
        yield running


async def test_a_batch_answers_each_line_once(world: World) -> None:
    lines = [line(n, max_tokens=n % 5 + 1) for n in range(150)]
    made = await world.batch(lines, metadata={"run": "7"})
    assert (made.status, made.completion_window, made.metadata) == ("validating", "24h", {"run": "7"})
    batch = await world.ended(made.id)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (150, 150, 0)
    assert batch.error_file_id is None
    output = await world.lines_of(batch.output_file_id)
    assert names(output) == expected(range(150))
    for each in output:
        n = int(each["custom_id"].removeprefix("line-"))
        body = each["response"]["body"]
        assert (each["error"], each["response"]["status_code"]) == (None, 200)
        assert body["usage"]["completion_tokens"] == n % 5 + 1
        assert body["id"] == f"chatcmpl-{each['response']['request_id']}"
    assert len({each["id"] for each in output}) == 150
    assert len(world.cluster.agent.leased) == 150
    times = batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at
    assert list(times) == sorted(times, key=lambda at: at or 0)
    assert [each.id async for each in await world.client.batches.list()] == [batch.id]
    listed = await world.client.files.list(purpose="batch_output")
    assert [each.id for each in listed.data] == [batch.output_file_id]


async def test_lines_may_be_responses(world: World) -> None:
    client = world.client.with_options(max_retries=20)
    first = await client.responses.create(model="emulated", input="FIRST", max_output_tokens=3)
    lines: list[dict[str, Any]] = [
        {"input": "Hi", "instructions": "Be brief.", "metadata": {"of": "line"}},
        {"input": "And then?", "previous_response_id": first.id},
        {"input": "Hi", "store": False, "user": "team-a" * 20},
        {"input": "Hi", "background": True},
        {"input": "Hi", "previous_response_id": "resp_none"},
        {"input": "Hi", "max_tokens": 3},
    ]
    bodies = [{"model": "emulated", "max_output_tokens": 3, **each} for each in lines]
    given = [line(n) | {"url": "/v1/responses", "body": body} for n, body in enumerate(bodies)]
    batch = await world.ended((await world.batch(given, endpoint="/v1/responses")).id)
    assert batch.status == "completed"
    output = {each["custom_id"]: each["response"] for each in await world.lines_of(batch.output_file_id)}
    assert sorted(output) == expected(range(3))
    for response in output.values():
        shown = Response.model_validate(response["body"], strict=True)
        assert shown.id == f"resp_{response['request_id']}"
        assert (shown.status, shown.usage and shown.usage.output_tokens) == ("incomplete", 3)
    kept = output["line-0"]["body"]
    assert (kept["instructions"], kept["metadata"]) == ("Be brief.", {"of": "line"})
    assert (await client.responses.retrieve(kept["id"])).output_text
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(output["line-2"]["body"]["id"])
    prompts = [bytes(id for id in each.prompt_ids if id < 256) for each in world.cluster.agent.leased]
    assert any(b"FIRST" in each and b"And then?" in each for each in prompts)
    errors = {each["custom_id"]: each["response"] for each in await world.lines_of(batch.error_file_id)}
    assert {name: (each["status_code"], each["body"]["error"]["param"]) for name, each in errors.items()} == {
        "line-3": (400, "background"),
        "line-4": (404, "previous_response_id"),
        "line-5": (400, "max_tokens"),
    }


async def test_lines_have_the_deadline_of_their_batch(world: World) -> None:
    batch = await world.ended((await world.batch([line(0)], window="30m")).id)
    (request,) = world.cluster.agent.leased
    assert request.deadline_ns is not None
    assert abs(request.deadline_ns / 1e9 - batch.created_at - 1800) < 2
    assert batch.expires_at == batch.created_at + 1800


async def test_lines_that_cannot_be_answered_are_among_the_errors(world: World) -> None:
    wrong: dict[int, dict[str, Any]] = {
        1: {"model": "none"},
        2: {"temperature": 9},
        3: {"messages": []},
        5: {"n": 2},
        6: {"messages": [{"role": "user", "content": "x" * PROMPT_TOKENS_MAX}]},
    }
    batch = await world.ended((await world.batch(line(n, **wrong.get(n, {})) for n in range(7))).id)
    assert batch.status == "completed"
    assert batch.request_counts is not None and batch.request_counts.failed == 5
    errors = {each["custom_id"]: each["response"] for each in await world.lines_of(batch.error_file_id)}
    assert {name: each["status_code"] for name, each in errors.items()} == {
        "line-1": 404,
        "line-2": 400,
        "line-3": 400,
        "line-5": 400,
        "line-6": 400,
    }
    assert errors["line-6"]["body"]["error"]["code"] == "request_too_large"
    assert errors["line-2"]["body"]["error"]["param"] == "temperature"
    assert names(await world.lines_of(batch.output_file_id)) == expected((0, 4))


async def test_a_line_whose_request_fails_is_an_error(world: World) -> None:
    world.cluster.agent.fail_with = (Outcome.FAILED, "no memory")
    batch = await world.ended((await world.batch([line(0)])).id)
    (error,) = await world.lines_of(batch.error_file_id)
    assert error["response"]["status_code"] == 500
    assert "no memory" in error["response"]["body"]["error"]["message"]


INPUTS: Final[Sequence[tuple[Sequence[Any], str, int | None]]] = [
    ([], "empty_file", None),
    ([b"\n \n"], "empty_file", None),
    ([line(0), b"{\n"], "invalid_json_line", 2),
    ([b"[]\n"], "invalid_json_line", 1),
    ([b"\xff\xfe\n"], "invalid_json_line", 1),
    ([line(0), b"\n", line(0)], "duplicate_custom_id", 3),
    ([line(0) | {"custom_id": ""}], "invalid_custom_id", 1),
    ([line(0) | {"custom_id": 7}], "invalid_custom_id", 1),
    ([line(0) | {"method": "GET"}], "invalid_method", 1),
    ([line(0) | {"url": "/v1/completions"}], "invalid_url", 1),
    ([line(0) | {"body": None}], "invalid_body", 1),
    ([line(0, stream=True)], "invalid_body", 1),
    ([line(0, slo={"deadline_ms": 1})], "invalid_body", 1),
]


async def test_a_wrong_input_fails_the_batch(world: World) -> None:
    made = [await world.batch(lines) for lines, _, _ in INPUTS]
    for each, (_, code, number) in zip(made, INPUTS, strict=True):
        batch = await world.ended(each.id)
        assert batch.status == "failed" and batch.failed_at is not None
        assert batch.errors is not None and batch.errors.data is not None
        assert [(error.code, error.line) for error in batch.errors.data] == [(code, number)]
    assert world.cluster.agent.leased == []


BATCHES: Final[Sequence[tuple[dict[str, Any], str]]] = [
    ({"endpoint": "/v1/embeddings"}, "endpoint"),
    ({"completion_window": "1s"}, "completion_window"),
    ({"completion_window": "31d"}, "completion_window"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"extra_body": {"priority": 1}}, "priority"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
]


async def test_a_wrong_batch_is_refused(world: World) -> None:
    good: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h"}
    id = await world.upload([line(0)])
    for wrong, param in BATCHES:
        with pytest.raises(BadRequestError) as caught:
            await world.client.batches.create(**{"input_file_id": id, **good, **wrong})
        assert caught.value.param == param
    with pytest.raises(NotFoundError):
        await world.client.batches.create(input_file_id="file-" + "0" * 32, **good)


async def test_a_tenant_has_no_more_open_batches_than_configured(world: World) -> None:
    await world.cluster.agent.rest()
    made = [await world.batch([line(0)]) for _ in range(LIMITS.open_batches_max)]
    with pytest.raises(RateLimitError) as caught:
        await world.batch([line(0)])
    assert caught.value.code == "too_many_batches" and "files.open_batches_max" in caught.value.message
    assert caught.value.response.headers["x-should-retry"] == "false"
    await world.client.batches.cancel(made[0].id)
    await world.ended(made[0].id)
    await world.batch([line(0)])


async def test_no_more_lines_are_in_work_than_configured(world: World) -> None:
    world.cluster.agent.pause_at = 1
    made = await world.batch(line(n) for n in range(40))

    async def full() -> bool:
        return len(world.cluster.agent.leased) == LIMITS.lines_in_work_max

    await until(full)
    await until(lambda: world.cluster.agent.rests is False)
    assert len(await world.cluster.store.records(RequestFilter(limit=100))) == LIMITS.lines_in_work_max
    world.cluster.agent.go.set()
    batch = await world.ended(made.id)
    assert names(await world.lines_of(batch.output_file_id)) == expected(range(40))


def answered_first(count: int) -> Callable[[Any], Sequence[int]]:
    """Return answers of which all but the first ones are long."""
    seen = Counter[str]()

    def answer(request: Any) -> Sequence[int]:
        seen["all"] += 1
        return text_then_end("x" if seen["all"] <= count else "long answer")

    return answer


async def half_done(world: World, **more: Any) -> Batch:
    """Begin a batch of 20 lines, and wait until 5 have answers while the others wait."""
    world.cluster.agent.answer = answered_first(5)
    world.cluster.agent.pause_at = 3
    made = await world.batch((line(n) for n in range(20)), **more)

    async def five() -> bool:
        counts = (await world.client.batches.retrieve(made.id)).request_counts
        return counts is not None and counts.completed == 5

    await until(five)
    return made


async def test_a_cancelled_batch_keeps_what_is_done(world: World) -> None:
    made = await half_done(world)
    assert (await world.client.batches.cancel(made.id)).status == "cancelling"
    batch = await world.ended(made.id)
    assert batch.status == "cancelled" and batch.cancelling_at is not None
    output, errors = [await world.lines_of(id) for id in (batch.output_file_id, batch.error_file_id)]
    assert (len(output), len(errors)) == (5, 15)
    assert names([*output, *errors]) == expected(range(20))
    assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}
    assert all(each is Outcome.CANCELLED for each in list(world.cluster.agent.ended.values())[5:])
    with pytest.raises(ConflictError):
        await world.client.batches.cancel(made.id)


async def test_an_expired_batch_keeps_what_is_done(world: World) -> None:
    made = await half_done(world, window="1h")
    world.clock.extra_s = 3601
    batch = await world.ended(made.id)
    assert batch.status == "expired" and batch.expired_at is not None
    output, errors = [await world.lines_of(id) for id in (batch.output_file_id, batch.error_file_id)]
    assert (len(output), names([*output, *errors])) == (5, expected(range(20)))
    assert {each["error"]["code"] for each in errors} == {"batch_expired"}


async def test_the_input_may_be_deleted_once_a_batch_has_it(world: World) -> None:
    made = await half_done(world)
    await world.client.files.delete(made.input_file_id)
    world.cluster.agent.go.set()
    batch = await world.ended(made.id)
    assert names(await world.lines_of(batch.output_file_id)) == expected(range(20))


async def test_another_gateway_goes_on_with_the_batch_of_a_dead_one(tmp_path: Path) -> None:
    """The first one is cut off in the middle; all lines are answered once, and generated once."""
    async with running_cluster(tmp_path) as cluster, contextlib.AsyncExitStack() as stack:
        clock = SetClock()
        storage = storage_in(tmp_path / "files", clock, LIMITS)
        dying = contextlib.AsyncExitStack()
        whole_stack, cluster.stack = cluster.stack, dying
        url = await cluster.gateway(storage=storage, clock=clock)
        client = await stack.enter_async_context(
            AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        )
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
        world = World(cluster, client, http, storage, clock)
        made = await half_done(world)
        (place,) = storage.batches.open_places().values()
        folder = folder_of(storage, place)
        (claim,) = folder.glob("claim-*")
        cut = folder / "output-000001"
        await dying.aclose()
        # As after a kill -9: the last line is cut off.
        cut.write_bytes(cut.read_bytes()[:-10])
        cluster.stack = whole_stack
        url = await cluster.gateway(storage=storage, clock=clock)
        world.client = await stack.enter_async_context(
            AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        )
        await until(lambda: len(list(folder.glob("claim-*"))) == 2)
        cluster.agent.go.set()
        batch = await world.ended(made.id)
        assert batch.status == "completed"
        output = await world.lines_of(batch.output_file_id)
        assert names(output) == expected(range(20))
        assert Counter(request.id for request in cluster.agent.leased).most_common(1)[0][1] == 1
        assert len(cluster.agent.leased) == 20
        await until(lambda: not claim.with_name("state-000001.json").exists())  # it is closed after its end


async def test_a_gateway_without_files_says_so(world: World) -> None:
    url = await world.cluster.gateway()
    async with httpx.AsyncClient(base_url=url) as http:
        for method, path in (("GET", "/v1/files"), ("GET", "/v1/batches"), ("POST", "/v1/batches")):
            answer = await http.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "files_not_kept")

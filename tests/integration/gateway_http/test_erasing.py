"""DELETE /v1/requests/{id}: prompt and answer go, of what has ended and of what has not."""

import asyncio
import time
from typing import Any, Final

import httpx
import pytest

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import RequestMetadata
from support.gateway import Cluster, until

ASKED: Final[dict[str, Any]] = {
    "model": "emulated",
    "prompt": "Who?",
    "max_tokens": 30,
    "stop": ["of a client"],
}
LATER: Final = {"prefer": "respond-async"}


async def accepted(http: httpx.AsyncClient, url: str, **more: Any) -> RequestId:
    answer = await http.post(f"{url}/v1/completions", json=ASKED | more, headers=LATER)
    assert answer.status_code == 202, answer.text
    return RequestId(answer.json()["id"])


async def is_gone(http: httpx.AsyncClient, cluster: Cluster, url: str, id: RequestId) -> None:
    """Check that clients find nothing of a request, and that no text of it is stored."""
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("DELETE", "")):
        answer = await http.request(method, f"{url}/v1/requests/{id}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
    record, output = await cluster.store.record(id), await cluster.store.read_output(id, 0)
    assert record is not None and record.erased and output is not None
    assert record.output_tokens == 0 and not output.token_ids
    assert "of a client" not in repr(record)


@pytest.mark.parametrize("prefix", ["", "cmpl-"])
async def test_an_ended_request_is_erased(
    cluster: Cluster, url: str, http: httpx.AsyncClient, prefix: str
) -> None:
    id = await accepted(http, url)
    await until(lambda: id in cluster.agent.ended)
    deleted = await http.delete(f"{url}/v1/requests/{prefix}{id}")
    assert (deleted.status_code, deleted.json()) == (
        200,
        {"id": id, "object": "qlm.request", "deleted": True},
    )
    await is_gone(http, cluster, url, id)
    record = await cluster.store.record(id)
    assert record is not None and record.outcome is Outcome.STOP  # it was not cancelled


@pytest.mark.parametrize("waits", [False, True])
async def test_what_has_not_ended_is_cancelled_first(
    cluster: Cluster, url: str, http: httpx.AsyncClient, waits: bool
) -> None:
    cluster.agent.pause_at = 3
    if waits:
        await cluster.agent.rest()
    id = await accepted(http, url)
    if not waits:
        await until(lambda: cluster.agent.leased)
    assert (await http.delete(f"{url}/v1/requests/{id}")).status_code == 200
    await is_gone(http, cluster, url, id)
    record = await cluster.store.record(id)
    assert record is not None and record.outcome is Outcome.CANCELLED


async def test_the_client_that_waits_sees_a_cancelled_request(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 3
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=ASKED))
    await until(lambda: cluster.agent.leased)
    assert (await http.delete(f"{url}/v1/requests/{cluster.agent.leased[0].id}")).status_code == 200
    assert (await waiting).status_code == 499


async def test_the_first_id_erases_all_answers_of_a_request(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    id = await accepted(http, url, n=3)
    await until(lambda: len(cluster.agent.ended) == 3)
    one = RequestId(f"{id}.1")
    assert (await http.delete(f"{url}/v1/requests/{one}")).status_code == 200
    await is_gone(http, cluster, url, one)
    assert (await http.get(f"{url}/v1/requests/{id}.2")).status_code == 200
    assert (await http.delete(f"{url}/v1/requests/{id}")).status_code == 200
    for each in (id, RequestId(f"{id}.2")):
        await is_gone(http, cluster, url, each)


async def test_an_answer_that_was_erased_is_left_out_of_those_of_its_request(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    id = await accepted(http, url, n=3)
    await until(lambda: len(cluster.agent.ended) == 3)
    assert (await http.delete(f"{url}/v1/requests/{id}.1")).status_code == 200
    shown = (await http.get(f"{url}/v1/requests/{id}")).json()
    assert shown["outcome"] == "stop", shown
    assert [each["index"] for each in shown["response"]["choices"]] == [0, 2]


async def test_what_is_left_of_several_prompts_counts_their_prompts(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    id = await accepted(http, url, n=2, prompt=["Who?", "Where?"])
    await until(lambda: len(cluster.agent.ended) == 4)
    for erased in (1, 2, 3):
        assert (await http.delete(f"{url}/v1/requests/{id}.{erased}")).status_code == 200
    shown = (await http.get(f"{url}/v1/requests/{id}")).json()
    assert shown["response"]["usage"]["prompt_tokens"] == 4


async def test_erasing_several_answers_can_be_repeated_after_it_was_interrupted(
    cluster: Cluster, url: str, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await accepted(http, url, n=3)
    await until(lambda: len(cluster.agent.ended) == 3)
    erase = cluster.store.erase
    erased: list[RequestId] = []

    async def interrupted(metadata: RequestMetadata) -> bool:
        if len(erased) == 1:
            raise StoreUnavailableError("it is away")
        erased.append(metadata.id)
        return await erase(metadata)

    monkeypatch.setattr(cluster.store, "erase", interrupted)
    assert (await http.delete(f"{url}/v1/requests/{id}")).status_code == 503
    monkeypatch.undo()
    assert (await http.delete(f"{url}/v1/requests/{id}")).status_code == 200
    for each in (id, f"{id}.1", f"{id}.2"):
        await is_gone(http, cluster, url, RequestId(each))


async def test_an_answer_that_expires_meanwhile_is_no_failure(
    cluster: Cluster, url: str, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await accepted(http, url, n=2)
    await until(lambda: len(cluster.agent.ended) == 2)
    erase = cluster.store.erase

    async def late(metadata: RequestMetadata) -> bool:
        await cluster.store.expire(time.time_ns() + 10**18)
        return await erase(metadata)

    monkeypatch.setattr(cluster.store, "erase", late)
    assert (await http.delete(f"{url}/v1/requests/{id}")).status_code == 200

"""Clients over HTTP that leave before their answer has ended."""

import asyncio
from functools import partial

import httpx
import openai
import pytest

from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import RequestState
from qlm.domain.view import RequestFilter
from support.gateway import Cluster, until
from support.http_calls import ANSWER, COMPLETION, QUEUED, RESUMABLE, Events, abandoned, open_requests

ENDED = RequestFilter(state=RequestState.ENDED)


async def test_an_abandoned_stream_is_cancelled_after_its_grace(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    id = await abandoned(http, cluster, url, COMPLETION | {"resume_grace_s": 0.1})
    await until(lambda: cluster.agent.ended.get(id) is Outcome.CANCELLED)


async def test_an_abandoned_stream_lives_on_within_its_grace(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    for headers in (RESUMABLE, {"idempotency-key": "k"}):
        id = await abandoned(http, cluster, url, COMPLETION, **headers)
        cluster.agent.go.set()
        await until(partial(ended_as, cluster, id, Outcome.STOP))
        cluster.agent.go.clear()


def ended_as(cluster: Cluster, id: RequestId, outcome: Outcome) -> bool:
    return cluster.agent.ended.get(id) is outcome


@pytest.mark.parametrize("headers", [{}, {"x-qlm-stream": "plain"}])
async def test_a_stream_that_cannot_be_resumed_ends_with_its_client(
    cluster: Cluster, url: str, http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    id = await abandoned(http, cluster, url, COMPLETION, **headers)
    await until(lambda: ended_as(cluster, id, Outcome.CANCELLED), timeout_s=2)


async def watchers_are(cluster: Cluster, id: RequestId, count: int) -> bool:
    return await cluster.store.unwatch(id, GatewayId("stranger")) == count


async def test_a_stream_that_came_back_elsewhere_is_not_cancelled(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    first, second = await cluster.gateway(), await cluster.gateway()
    id = await abandoned(http, cluster, first, COMPLETION | {"resume_grace_s": 0.1})
    async with http.stream("GET", f"{second}/v1/requests/{id}/events?offset=3") as response:
        await until(lambda: watchers_are(cluster, id, 1))
        cluster.agent.go.set()
        assert await Events(response).text() == ANSWER[3:]
    assert cluster.agent.ended[id] is Outcome.STOP


async def test_an_abandoned_plain_request_is_cancelled_at_once(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 3
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION))
    await until(lambda: cluster.agent.leased)
    waiting.cancel()
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED])


async def test_a_queued_request_whose_client_left_never_runs(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION))
    await until(lambda: cluster.store.records(QUEUED))
    waiting.cancel()
    await until(lambda: cluster.store.records(ENDED))
    cluster.agent.working.set()
    assert (await http.post(f"{url}/v1/completions", json=COMPLETION)).status_code == 200
    assert len(cluster.agent.leased) == 1


async def test_the_retry_of_an_sdk_takes_up_the_request_that_ran_into_its_timeout(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 3
    asked = {**COMPLETION, "timeout": 1.0}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=2) as client:
        waiting = [asyncio.create_task(client.completions.create(**asked, user=name)) for name in "ab"]
        # Each has a session that its client has left, and one of its retry.
        await until(lambda: open_requests(http, cluster.admin_urls[url], 4))
        cluster.agent.go.set()
        answers = [await each for each in waiting]
    assert [answer.choices[0].text for answer in answers] == [ANSWER, ANSWER]
    ids = {request.tenant: f"cmpl-{request.id}" for request in cluster.agent.leased}
    assert [answer.id for answer in answers] == [ids["a"], ids["b"]]
    assert len(cluster.agent.leased) == 2


async def test_an_sdk_that_leaves_before_its_timeout_has_left(cluster: Cluster, url: str) -> None:
    cluster.agent.pause_at = 3
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=2) as client:
        waiting = asyncio.create_task(client.completions.create(**COMPLETION))
        await until(lambda: cluster.agent.leased)
        waiting.cancel()
        await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED], timeout_s=2)

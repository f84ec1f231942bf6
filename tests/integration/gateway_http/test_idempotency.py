"""Retries over HTTP with an idempotency key."""

import asyncio

import httpx

from qlm.domain.outcome import Outcome
from support.gateway import Cluster, until
from support.http_calls import ANSWER, COMPLETION, open_requests, refusal


async def test_a_retry_with_its_key_gets_the_same_answer_on_any_gateway(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    first, second = await cluster.gateway(), await cluster.gateway()
    headers = {"idempotency-key": "order-66"}
    one, two = [
        await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers) for url in (first, second)
    ]
    assert one.json() == two.json()
    assert one.json()["choices"][0]["text"] == ANSWER
    assert len(cluster.agent.leased) == 1


async def test_a_retry_may_join_while_the_first_try_runs(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 3
    headers = {"idempotency-key": "k"}
    tries = [asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers))]
    await until(lambda: cluster.agent.leased)
    tries.append(asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)))
    tries[0].cancel()
    cluster.agent.go.set()
    assert (await tries[1]).json()["choices"][0]["text"] == ANSWER
    assert len(cluster.agent.leased) == 1


async def test_two_tries_at_once_are_queued_once(cluster: Cluster, url: str, http: httpx.AsyncClient) -> None:
    cluster.agent.working.clear()
    headers = {"idempotency-key": "k"}
    tries = [
        asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers))
        for _ in range(4)
    ]
    await until(lambda: open_requests(http, cluster.admin_urls[url], 4))
    await until(cluster.broker.queues)
    (queue,) = await cluster.broker.queues()
    await until(lambda: cluster.broker.depth(queue))
    assert await cluster.broker.depth(queue) == 1
    cluster.agent.working.set()
    assert [(await each).json()["choices"][0]["text"] for each in tries] == [ANSWER] * 4


async def test_a_key_with_another_body_is_refused_and_another_tenant_may_use_it(
    url: str, http: httpx.AsyncClient
) -> None:
    headers = {"idempotency-key": "k"}
    await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)
    other = COMPLETION | {"prompt": "Ho"}
    refused = await http.post(f"{url}/v1/completions", json=other, headers=headers)
    assert (refused.status_code, refusal(refused)["code"]) == (422, "idempotency_key_reused")
    assert (
        await http.post(f"{url}/v1/completions", json=other | {"user": "b"}, headers=headers)
    ).status_code == 200


async def test_a_key_whose_request_was_lost_is_tried_anew(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    headers = {"idempotency-key": "k"}
    cluster.agent.fail_with = (Outcome.ENGINE_LOST, "")
    assert (await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)).status_code == 503
    cluster.agent.fail_with = None
    assert (await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)).status_code == 200


async def test_what_a_retry_does_not_wait_for_outlives_the_client_of_the_first_try(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 3
    body, headers = COMPLETION | {"resume_grace_s": 0}, {"idempotency-key": "k"}
    first = asyncio.create_task(http.post(f"{url}/v1/completions", json=body, headers=headers))
    await until(lambda: cluster.agent.leased)
    later = await http.post(f"{url}/v1/completions", json=body, headers=headers | {"prefer": "respond-async"})
    assert later.status_code == 202
    await until(lambda: open_requests(http, cluster.admin_urls[url], 2))
    first.cancel()
    await until(lambda: open_requests(http, cluster.admin_urls[url], 1))
    cluster.agent.go.set()
    await until(lambda: cluster.agent.ended)
    assert list(cluster.agent.ended.values()) == [Outcome.STOP]
    answer = (await http.get(f"{url}{later.headers['location']}")).json()
    assert answer["response"]["choices"][0]["text"] == ANSWER

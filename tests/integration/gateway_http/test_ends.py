"""How requests end, and what their clients are told."""

import asyncio
from typing import Any

import httpx
import pytest

from qlm.domain.outcome import Outcome
from support.gateway import Cluster, SystemClock, until
from support.http_calls import CHAT, COMPLETION, abandoned, ended, refusal


@pytest.mark.parametrize(
    ("outcome", "detail", "posted", "retry"),
    [
        (Outcome.EXPIRED, "", 504, "false"),
        (Outcome.CANCELLED, "", 499, "false"),
        (Outcome.ENGINE_LOST, "", 503, "true"),
        (Outcome.OUTPUT_LOST, "", 503, "true"),
        (Outcome.FAILED, "broken", 500, "false"),
        (Outcome.REFUSED, "too long", 400, "false"),
    ],
)
async def test_each_bad_end_has_its_status(
    cluster: Cluster,
    url: str,
    http: httpx.AsyncClient,
    outcome: Outcome,
    detail: str,
    posted: int,
    retry: str,
) -> None:
    cluster.agent.fail_with = (outcome, detail)
    answer = await http.post(f"{url}/v1/completions", json=COMPLETION)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (posted, retry)
    assert refusal(answer)["code"] == outcome
    status = await http.get(f"{url}/v1/requests/{answer.headers['x-request-id']}")
    assert (status.status_code, status.json()["outcome"]) == (200, outcome)
    assert status.json()["error"]["code"] == outcome


async def test_a_running_request_is_cancelled(cluster: Cluster, url: str, http: httpx.AsyncClient) -> None:
    cluster.agent.pause_at = 3
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION))
    await until(lambda: cluster.agent.leased)
    id = cluster.agent.leased[0].id
    cancelled = await http.post(f"{url}/v1/requests/{id}/cancel")
    assert (cancelled.status_code, cancelled.json()["cancel_requested"]) == (200, True)
    assert (await waiting).status_code == 499


async def said_of(http: httpx.AsyncClient, url: str, id: str) -> str:
    """Wait until a request has ended, and return what its error says."""
    await until(lambda: ended(http, url, id))
    status = (await http.get(f"{url}/v1/requests/{id}")).json()
    return str(status["error"]["message"])


@pytest.mark.parametrize("waits", [False, True])
async def test_a_cancelled_request_says_who_ended_it(
    cluster: Cluster, url: str, admin_url: str, http: httpx.AsyncClient, waits: bool
) -> None:
    cluster.agent.pause_at = 3
    if waits:
        await cluster.agent.rest()
    headers = {"prefer": "respond-async"}
    ids = [
        (await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)).json()["id"]
        for _ in range(2)
    ]
    if not waits:
        await until(lambda: len(cluster.agent.leased) == 2)
    await http.post(f"{url}/v1/requests/{ids[0]}/cancel")
    await http.post(f"{admin_url}/admin/v1/requests/{ids[1]}/cancel")
    asked = [await said_of(http, url, id) for id in ids]
    assert asked[0] == "the request was cancelled: its client asked for that"
    assert asked[1] == "the request was cancelled: an operator asked for that"


async def test_an_abandoned_request_says_that_its_client_disconnected(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    stream = await abandoned(http, cluster, url, COMPLETION | {"resume_grace_s": 0.1})
    assert await said_of(http, url, stream) == (
        "the request was cancelled: its client disconnected, and no client resumed it within 0.1 s"
    )


async def test_an_expired_request_says_it_once(cluster: Cluster, url: str, http: httpx.AsyncClient) -> None:
    await cluster.agent.rest()
    body = COMPLETION | {"slo": {"deadline_ms": 1, "on_miss": "drop"}}
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=body))
    await until(lambda: cluster.store.expire(SystemClock().now_ns()))
    answer = await waiting
    assert answer.status_code == 504
    assert refusal(answer)["message"] == "the request's deadline passed before it was answered"
    assert answer.headers["x-qlm-met"] == "false"
    assert "x-qlm-late-ms" not in answer.headers


@pytest.mark.parametrize(("path", "body"), [("completions", COMPLETION), ("chat/completions", CHAT)])
async def test_the_id_of_an_answer_object_is_taken_wherever_a_request_is_named(
    url: str, admin_url: str, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    answer = await http.post(f"{url}/v1/{path}", json=body)
    id, own = answer.json()["id"], answer.headers["x-request-id"]
    assert id != own
    named = [f"{url}/v1/requests/{id}", f"{admin_url}/admin/v1/requests/{id}"]
    for each in named:
        assert (await http.get(each)).json()["id"] == own
        assert (await http.post(f"{each}/cancel")).json()["id"] == own
    stream = await http.get(f"{url}/v1/requests/{id}/events")
    assert stream.headers["x-request-id"] == own


async def test_an_unknown_request_is_404(url: str, http: httpx.AsyncClient) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
        answer = await http.request(method, f"{url}/v1/requests/nope{path}")
        assert (answer.status_code, refusal(answer)["code"]) == (404, "request_not_found")

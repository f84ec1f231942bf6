"""Objectives over HTTP, as they reach the queue."""

import asyncio

import httpx

from qlm.agents.batching.call_objective import call_objective
from qlm.domain.slo import ReadingSlo
from qlm.gateway.core.limits import GatewayLimits
from support.gateway import Cluster, until
from support.http_calls import CHAT, COMPLETION, refusal


async def test_headers_tier_and_priority_reach_the_queue(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    headers = {"x-slo-ttft-ms": "400", "x-gateway-inference-fairness-id": "team-a"}
    made = await http.post(f"{url}/v1/completions", json=COMPLETION | {"priority": -2}, headers=headers)
    request = cluster.agent.leased[0]
    assert (request.tenant, request.cls.priority, request.cls.slo) == ("team-a", -2, "ttft-400ms")
    assert made.json()["service_tier"] == "default"
    flex = await http.post(f"{url}/v1/completions", json=COMPLETION | {"service_tier": "flex"})
    assert flex.json()["service_tier"] == "flex"
    assert cluster.agent.leased[1].cls.slo == "batch"


async def test_a_header_asks_for_a_pace(cluster: Cluster, url: str, http: httpx.AsyncClient) -> None:
    paced = await http.post(f"{url}/v1/completions", json=COMPLETION, headers={"x-slo-tokens-per-s": "5"})
    assert paced.status_code == 200
    assert cluster.agent.leased[0].cls.slo == "ttft-1s-speed-5"
    headers = {"x-slo-tokens-per-s": "fast"}
    refused = await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)
    assert refused.status_code == 400
    assert "x-slo-tokens-per-s" in refused.json()["error"]["message"]


async def test_a_header_that_comes_twice_and_contradicts_itself_is_refused(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    for name in ("x-qlm-deadline-ms", "x-slo-ttft-ms"):
        twice = [(name, "100"), (name, "90000")]
        refused = refusal(await http.post(f"{url}/v1/completions", json=COMPLETION, headers=twice))
        assert refused["param"] == name
        assert f"{name} is '100, 90000'; expected a number of milliseconds" in refused["message"]
    same = [("x-qlm-deadline-ms", "90000"), ("x-qlm-deadline-ms", "90000")]
    assert (await http.post(f"{url}/v1/completions", json=COMPLETION, headers=same)).status_code == 200
    assert [each.cls.slo for each in cluster.agent.leased] == ["deadline-80s"]


async def test_a_pace_and_a_deadline_beside_it_reach_the_queue_and_both_count(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    await cluster.agent.working.wait()
    cluster.agent.pause_at = 3
    body = COMPLETION | {"slo": {"reader": "reading", "ttft_ms": 4000, "deadline_ms": 4000.5}}
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=body))
    await until(lambda: cluster.agent.leased)
    (leased,) = cluster.agent.leased
    assert leased.slo == ReadingSlo(ttft_ms=4000, tokens_per_s=4.8)
    assert leased.extensions.deadline_ms == 4000.5
    sent = call_objective(leased, shown=0)
    assert (sent.tokens_per_s, sent.deadline_ns) == (4.8, leased.arrival_ns + 4_000_500_000)
    cluster.agent.go.set()
    answer = await waiting
    assert answer.headers["x-qlm-met"] == "true"
    status = (await http.get(f"{url}/v1/requests/{leased.id}")).json()
    assert status["slo"] == {
        "kind": "reading",
        "ttft_ms": 4000,
        "tokens_per_s": 4.8,
        "deadline_ms": 4000.5,
        "on_miss": "serve",
    }


async def test_a_long_prompt_is_tokenized_beside_the_event_loop(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    url = await cluster.gateway(limits=GatewayLimits(encode_inline_chars=10))
    for path, body in (
        ("completions", COMPLETION | {"prompt": "y" * 100}),
        ("chat/completions", CHAT | {"messages": [{"role": "user", "content": "y" * 100}]}),
    ):
        assert (await http.post(f"{url}/v1/{path}", json=body)).status_code == 200
    assert [bytes(request.prompt_ids).count(b"y") for request in cluster.agent.leased] == [100, 100]

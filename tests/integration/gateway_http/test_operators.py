"""Routes for operators: metrics, readiness, and what is in the store."""

import asyncio
from typing import Any

import httpx
import orjson

from qlm.controller.core.history.codec import history_to_plain
from qlm.controller.core.history.history import History
from qlm.domain.formats.clusters import CLUSTERS, Clusters
from qlm.domain.group import RequestClass
from qlm.domain.ids import ControllerId, GroupId, InstanceId, ModelId, RequestId
from qlm.domain.plan_change import CreateGroup, SetQueue
from qlm.domain.ports.published import PublishedKind
from support.gateway import Cluster, until
from support.http_calls import COMPLETION, QUEUED, refusal


async def test_metrics_count_requests_by_outcome_and_objective(
    url: str, admin_url: str, http: httpx.AsyncClient
) -> None:
    await http.post(f"{url}/v1/completions", json=COMPLETION)
    metrics = (await http.get(f"{admin_url}/metrics")).text
    for line in (
        'qlm_gateway_requests_total{model="emulated",outcome="stop",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_request_slo_attained_total{model="emulated",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_time_to_first_token_seconds_count{model="emulated",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_e2e_request_latency_seconds_count{model="emulated",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_accept_seconds_count{model="emulated"} 1.0',
        "qlm_gateway_open_streams 0.0",
        "qlm_gateway_open_requests 0.0",
    ):
        assert line in metrics


async def test_readiness_asks_broker_and_store(url: str, http: httpx.AsyncClient) -> None:
    ready = await http.get(f"{url}/readyz")
    assert (ready.status_code, ready.json()["broker"], ready.json()["store"]) == (200, "ok", "ok")


async def test_operators_see_queues_requests_and_instances(
    cluster: Cluster, url: str, admin_url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION))
    await until(lambda: cluster.store.records(QUEUED))
    (queue,) = (await http.get(f"{admin_url}/admin/v1/queues")).json()["classes"]
    assert (queue["queue"], queue["queued"]) == ("qlm.class.emulated.deadline-60s.all", 1)
    (request,) = (await http.get(f"{admin_url}/admin/v1/requests?state=queued&limit=5")).json()["requests"]
    assert [event["what"] for event in request["events"]] == ["accepted"]
    assert (await http.get(f"{admin_url}/admin/v1/requests/{request['id']}")).json()["id"] == request["id"]
    assert (await http.get(f"{admin_url}/admin/v1/groups")).json() == {"groups": []}
    (instance,) = (await http.get(f"{admin_url}/admin/v1/instances")).json()["instances"]
    assert (instance["id"], instance["models"]) == ("gpu-0", ["emulated", "small"])
    assert refusal(await http.get(f"{admin_url}/admin/v1/requests?state=odd"))["param"] == "state"
    for query in (f"limit={'9' * 5000}", f"state={'x' * 5000}"):
        refused = await http.get(f"{admin_url}/admin/v1/requests?{query}")
        assert refused.status_code == 400 and len(refusal(refused)["message"]) < 400
    cluster.agent.working.set()
    await waiting


async def test_operators_see_where_a_request_waits(
    cluster: Cluster, url: str, admin_url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    waiting = [asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION)) for _ in range(3)]
    await until(lambda: _queued(cluster, 3))
    newest, middle, oldest = await cluster.store.records(QUEUED)

    async def waits(id: RequestId) -> Any:
        return (await http.get(f"{admin_url}/admin/v1/requests/{id}")).json()["waits"]

    assert await waits(middle.metadata.id) == {
        "position": 2,
        "queued": 3,
        "group": None,
        "group_position": None,
        "group_requests": None,
        "instance": None,
    }
    group = GroupId("g")
    await cluster.store.apply(
        [
            CreateGroup(id=GroupId("first"), cls=oldest.metadata.cls, count=1),
            CreateGroup(id=group, cls=oldest.metadata.cls, count=2),
            SetQueue(instance=InstanceId("gpu-0"), groups=(group,)),
        ]
    )
    assert await waits(newest.metadata.id) == {
        "position": 3,
        "queued": 3,
        "group": "g",
        "group_position": 2,
        "group_requests": 2,
        "instance": "gpu-0",
    }
    assert (await waits(oldest.metadata.id))["instance"] is None
    cluster.agent.working.set()
    await asyncio.gather(*waiting)
    assert await waits(newest.metadata.id) is None


async def _queued(cluster: Cluster, number: int) -> bool:
    return len(await cluster.store.records(QUEUED)) == number


async def test_operators_see_the_plan_as_it_was_kept(
    cluster: Cluster, admin_url: str, http: httpx.AsyncClient
) -> None:
    none = await http.get(f"{admin_url}/admin/v1/plan")
    assert (none.status_code, refusal(none)["code"]) == (404, "plan_not_found")
    assert refusal(none)["message"].startswith("there is no plan yet")
    await cluster.store.publish(PublishedKind.PLAN, b'{"version": 1, "at_ms": 5}')
    there = await http.get(f"{admin_url}/admin/v1/plan")
    assert (there.status_code, there.content) == (200, b'{"version": 1, "at_ms": 5}')
    assert there.headers["content-type"] == "application/json"
    cluster.undescribed.clear()  # this is no plan, only bytes


async def test_operators_see_the_forecast_as_it_was_kept(
    cluster: Cluster, admin_url: str, http: httpx.AsyncClient
) -> None:
    none = await http.get(f"{admin_url}/admin/v1/forecast")
    assert (none.status_code, refusal(none)["code"]) == (404, "forecast_not_found")
    await cluster.store.publish(PublishedKind.SIGNAL, b'{"version": 1}')
    there = await http.get(f"{admin_url}/admin/v1/forecast")
    assert (there.status_code, there.content) == (200, b'{"version": 1}')
    assert there.headers["content-type"] == "application/json"
    cluster.undescribed.clear()  # this is no forecast, only bytes


async def test_operators_see_the_clusters_that_the_gateway_uses(
    cluster: Cluster, admin_url: str, http: httpx.AsyncClient
) -> None:
    url = f"{admin_url}/admin/v1/clusters"
    assert (await http.get(url)).json() == {"clusters": []}
    chat = RequestClass(ModelId("m"), "deadline-60s", target_ms=60_000.0)
    clusters = Clusters(fixed={ModelId("n"): (100, 8000)}, found={chat: (4096,)})
    await cluster.store.publish(PublishedKind.CLUSTERS, CLUSTERS.encode(clusters))

    async def read() -> bool:
        return bool((await http.get(url)).json()["clusters"])

    await until(read)
    assert (await http.get(url)).json() == {
        "clusters": [
            {
                "model": "n",
                "slo_class": None,
                "priority": None,
                "thresholds": [100, 8000],
                "clusters": ["to-100", "101-8000", "over-8000"],
            },
            {
                "model": "m",
                "slo_class": "deadline-60s",
                "priority": 0,
                "thresholds": [4096],
                "clusters": ["to-4096", "over-4096"],
            },
        ]
    }


async def test_operators_see_the_history_as_it_was_kept(
    cluster: Cluster, admin_url: str, http: httpx.AsyncClient
) -> None:
    none = await http.get(f"{admin_url}/admin/v1/history")
    assert (none.status_code, refusal(none)["code"]) == (404, "history_not_found")
    kept = orjson.dumps(history_to_plain(History(at_ns=5)))
    await cluster.store.publish(PublishedKind.HISTORY, kept)
    there = await http.get(f"{admin_url}/admin/v1/history")
    assert (there.status_code, there.content) == (200, kept)


async def test_operators_see_which_controller_leads_since_when(
    cluster: Cluster, admin_url: str, http: httpx.AsyncClient
) -> None:
    none = await http.get(f"{admin_url}/admin/v1/controller")
    assert (none.status_code, none.json()) == (200, {"leader": None})
    led = await cluster.store.acquire_leadership(ControllerId("host-1a2b3c"), 60.0)
    there = await http.get(f"{admin_url}/admin/v1/controller")
    assert there.json() == {
        "leader": {
            "id": "host-1a2b3c",
            "since_s": led.since_ns / 1e9,
            "incarnation": await cluster.store.incarnation(),
            "term": led.term.n,
        }
    }


async def test_operators_drain_live_instances(admin_url: str, http: httpx.AsyncClient) -> None:
    assert (await http.post(f"{admin_url}/admin/v1/instances/gpu-0/drain")).status_code == 202
    gone = await http.post(f"{admin_url}/admin/v1/instances/gpu-9/drain")
    assert (gone.status_code, refusal(gone)["code"]) == (404, "instance_not_found")

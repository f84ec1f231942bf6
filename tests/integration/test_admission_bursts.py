"""Limits of the queue hold for requests that come at once, between two looks at it."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import RequestId
from qlm.gateway.core.limits import GatewayLimits
from support.flaky import Faults, flaky
from support.gateway import Cluster, running_cluster, until

URL: Final = "/v1/completions"
BODY: Final[dict[str, Any]] = {"model": "emulated", "prompt": "x" * 20, "max_tokens": 5}
BURST: Final = 30


async def submitted(client: httpx.AsyncClient, **fields: object) -> httpx.Response:
    """Submit a request whose client does not wait."""
    return await client.post(URL, json=BODY | fields, headers={"prefer": "respond-async"})


@pytest.mark.parametrize(
    ("limits", "fields", "accepted", "code"),
    [
        ({"class_depth_max": 3}, {}, 3, "class_full"),
        ({"queue_depth_max": 3}, {}, 3, "queue_full"),
        ({"queue_prompt_tokens_max": 100}, {}, 5, "queue_tokens_full"),
        ({"class_depth_max": 6}, {"n": 2}, 3, "class_full"),
        ({"queue_prompt_tokens_max": 100}, {"n": 2}, 2, "queue_tokens_full"),
    ],
)
async def test_a_burst_is_accepted_up_to_the_limit(
    tmp_path: Path, limits: dict[str, int], fields: dict[str, int], accepted: int, code: str
) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.agent.rest()
        url = await cluster.gateway(limits=GatewayLimits(view_interval_s=60, **limits))
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            answers = await asyncio.gather(*(submitted(client, **fields) for _ in range(BURST)))
            again = [await submitted(client, **fields) for _ in range(3)]
        assert Counter(each.status_code for each in answers) == {202: accepted, 429: BURST - accepted}
        refused = [each for each in (*answers, *again) if each.status_code == 429]
        assert {each.json()["error"]["code"] for each in refused} == {code}
        assert len(refused) == BURST - accepted + len(again)


async def until_accepted(cluster: Cluster, client: httpx.AsyncClient) -> None:
    async def accepted() -> bool:
        return (await submitted(client)).status_code == 202

    await until(accepted)


async def test_a_limit_reached_between_two_looks_is_looked_at_soon(tmp_path: Path) -> None:
    """Else what has left the queue since would keep others out until the next look, here for a minute."""
    async with running_cluster(tmp_path) as cluster:
        url = await cluster.gateway(limits=GatewayLimits(view_interval_s=60, class_depth_max=1))
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            for _ in range(3):
                await until_accepted(cluster, client)


async def answered(client: httpx.AsyncClient, count: int) -> list[int]:
    """Send requests one after the other, each after the answer to the one before."""
    return [(await client.post(URL, json=BODY)).status_code for _ in range(count)]


@pytest.mark.parametrize(("most", "clients"), [(2, 1), (4, 3)])
async def test_clients_that_wait_for_their_answers_are_never_too_many(
    tmp_path: Path, most: int, clients: int
) -> None:
    async with running_cluster(tmp_path) as cluster:
        url = await cluster.gateway(limits=GatewayLimits(view_interval_s=60, class_depth_max=most))
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            codes = await asyncio.gather(*(answered(client, 20) for _ in range(clients)))
        assert {code for each in codes for code in each} == {200}


async def test_a_full_queue_is_looked_at_before_a_client_that_does_not_wait_is_refused(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        url = await cluster.gateway(limits=GatewayLimits(view_interval_s=60, class_depth_max=2))
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            for _ in range(6):
                response = await submitted(client)
                assert response.status_code == 202
                await until_served(cluster, response.json()["id"])


async def until_served(cluster: Cluster, id: str) -> None:
    async def served() -> bool:
        record = await cluster.store.record(RequestId(id))
        return record is not None and record.outcome is not None

    await until(served)


async def test_a_request_that_was_not_queued_does_not_count(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        faults = Faults()
        faults.fail(BrokerUnavailableError("no connection"), "publish")
        limits = GatewayLimits(view_interval_s=60, class_depth_max=4)
        url = await cluster.gateway(limits=limits, broker=flaky(cluster.broker, faults))
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            for n in (1, 2, 4):
                assert (await submitted(client, n=n)).status_code == 503
            faults.heal()
            assert (await submitted(client, n=4)).status_code == 202

"""`qlm doctor` against a real gateway: lost agents, a store that is away, late classes, a full disk."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from qlm.cli.inspect.admin_client import AdminClient
from qlm.cli.inspect.doctor import examine
from qlm.cli.inspect.finding import Finding
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import InstanceId, ModelId
from qlm.gateway.core.configured import Configured, ConfiguredInstance
from support.gateway import MODELS, Cluster, running_cluster, until

LIMIT_S = 60.0
SERVED = tuple(spec.id for spec in MODELS)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


async def examined(cluster: Cluster, url: str, check: str) -> dict[str, Finding]:
    """Examine a gateway until a check is among the findings: on a busy machine a probe may take too long."""
    found: dict[str, Finding] = {}
    async with asyncio.timeout(LIMIT_S):
        while check not in found:
            found = {each.check: each for each in await examined_all(cluster, url)}
    return found


async def examined_all(cluster: Cluster, url: str) -> list[Finding]:
    return await asyncio.to_thread(examine, AdminClient(cluster.admin_urls[url]))


async def test_agents_that_are_lost_or_otherwise_configured_are_named(cluster: Cluster) -> None:
    wanted = [("gpu-0", SERVED), ("gpu-1", (ModelId("small"),))]
    instances = [
        ConfiguredInstance(id=InstanceId(id), accelerator="A10", models=models) for id, models in wanted
    ]
    await until(lambda: cluster.agent.working.is_set())
    url = await cluster.gateway(configured=Configured(instances=instances))
    found = await examined(cluster, url, "instance gpu-1")
    assert found["instance gpu-1"].detail == "it is configured (A10, for small) and has no live agent"
    assert "configuration of gpu-0" not in found
    other = [ConfiguredInstance(id=InstanceId("gpu-0"), accelerator="H100", models=SERVED)]
    url = await cluster.gateway(configured=Configured(instances=other))
    found = await examined(cluster, url, "configuration of gpu-0")
    assert "accelerator of its agent: A10" in found["configuration of gpu-0"].detail


async def test_a_store_that_is_away_is_named_with_its_own_words(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await cluster.gateway()

    async def away() -> None:
        raise StoreUnavailableError("Redis at h:6379: connection refused")

    monkeypatch.setattr(cluster.store, "probe", away)
    found = await examined(cluster, url, "store")
    assert found["gateway"].ok
    assert (found["store"].ok, found["store"].detail) == (False, "Redis at h:6379: connection refused")
    assert "start Redis again" in found["store"].remedy


async def test_a_class_that_is_late_is_named(cluster: Cluster) -> None:
    url = await cluster.gateway()
    body = {"model": "emulated", "prompt": "Hi", "slo": {"deadline_ms": 0.01}}
    async with httpx.AsyncClient(timeout=20) as http:
        answers = [await http.post(f"{url}/v1/completions", json=body) for _ in range(2)]
    assert {answer.headers["x-qlm-met"] for answer in answers} == {"false"}
    late = (await examined(cluster, url, "objective deadline-0.01ms of emulated"))[
        "objective deadline-0.01ms of emulated"
    ]
    assert late.detail.startswith("2 of 2 requests were late, by ")
    assert "it is served by gpu-0" in late.remedy


async def test_the_disk_of_the_data_folder_is_looked_at(cluster: Cluster, tmp_path: Path) -> None:
    url = await cluster.gateway(configured=Configured(data_dir=tmp_path))
    found = (await examined(cluster, url, "disk"))["disk"]
    assert found.detail.endswith(f"free in {tmp_path}")
    assert found.ok == (shutil.disk_usage(tmp_path).free >= 1_000_000_000)


async def test_a_disk_without_space_is_named_with_what_to_do(cluster: Cluster) -> None:
    full = Path("/proc")  # a file system of which the kernel says that nothing is free
    url = await cluster.gateway(configured=Configured(data_dir=full))
    found = (await examined(cluster, url, "disk"))["disk"]
    assert (found.ok, found.detail) == (False, "0.0 GB free in /proc")
    assert "free some space" in found.remedy


async def test_a_deployment_without_the_api_keys_that_it_asks_for_is_named(cluster: Cluster) -> None:
    url = await cluster.gateway(configured=Configured(keys_required=True))
    store: list[Finding] = []
    async with asyncio.timeout(LIMIT_S):
        while not any("has no API key" in each.detail for each in store):
            store = [each for each in await examined_all(cluster, url) if each.check == "store"]
    (found,) = store
    assert not found.ok and "qlm keys create" in found.remedy

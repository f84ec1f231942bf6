"""Images between processes over a real RabbitMQ and a real Redis: an answer outlives its agent."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from redis import Redis

from support.cluster import Cluster, cluster
from support.flaky import until
from support.pictures import GREEN, RED, data_url
from support.qlm_process import emulated
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

TOKENS: Final = 300
FOLLOWED_S: Final = 60.0


@pytest.fixture(scope="module")
def running(rabbitmq: RabbitMQ, redis_server: RedisServer) -> Iterator[Cluster]:
    with cluster(rabbitmq, redis_server, emulated("mistral-7b", instances=2, time_scale=1.0)) as made:
        yield made


def asked(image: bytes, **more: Any) -> dict[str, Any]:
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": data_url(image)}},
    ]
    body = {"model": "mistral-7b", "messages": [{"role": "user", "content": parts}], "max_tokens": TOKENS}
    return {**body, "ignore_eos": True, "temperature": 0, **more}


async def answered(client: httpx.AsyncClient, image: bytes) -> str:
    answer = await client.post("/v1/chat/completions", json=asked(image))
    content: str = answer.raise_for_status().json()["choices"][0]["message"]["content"]
    return content


def kept(server: RedisServer) -> list[bytes]:
    with Redis.from_url(server.url) as client:
        return list(client.scan_iter(match="*media:*"))


async def submitted(client: httpx.AsyncClient, image: bytes) -> str:
    answer = await client.post("/v1/chat/completions", json=asked(image), headers={"prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def ended(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def has_ended() -> bool:
        found.update((await client.get(f"/v1/requests/{id}")).raise_for_status().json())
        return bool(found["status"] == "ended")

    await until(has_ended, FOLLOWED_S)
    return found


async def busy_instance(admin_url: str) -> str:
    """Wait until some instance reports three running requests, and return it."""
    found: list[str] = []

    async def busy() -> bool:
        listed = (await admin.get("/admin/v1/instances")).json()["instances"]
        found.extend(str(each["id"]) for each in listed if each["running"] >= 3)
        return bool(found)

    async with httpx.AsyncClient(base_url=admin_url, timeout=120) as admin:
        await until(busy, FOLLOWED_S)
    return found[0]


async def test_answers_outlive_an_agent_that_is_killed(running: Cluster, redis_server: RedisServer) -> None:
    async with httpx.AsyncClient(base_url=running.url, timeout=120) as client:
        expected = {image: await answered(client, image) for image in (RED, GREEN)}
        assert len(set(expected.values())) == 2
        images = list(itertools.islice(itertools.cycle((RED, GREEN)), 16))
        ids = [await submitted(client, image) for image in images]
        assert kept(redis_server)
        running.agents[victim := await busy_instance(running.admin_url)].kill()
        answers = await asyncio.gather(*(ended(client, id) for id in ids))
        running.agents[victim].start()
        texts = [each["response"]["choices"][0]["message"]["content"] for each in answers]
        assert texts == [expected[image] for image in images]
        await until(lambda: not kept(redis_server), FOLLOWED_S)


async def test_without_their_images_requests_end_as_lost(running: Cluster, redis_server: RedisServer) -> None:
    async with httpx.AsyncClient(base_url=running.url, timeout=120) as client:
        for agent in running.agents.values():
            agent.kill()
        lost, other = await submitted(client, RED), await submitted(client, GREEN)
        with Redis.from_url(redis_server.url) as redis:
            (key,) = [key for key in kept(redis_server) if lost.encode() in key]
            redis.delete(key)
        for agent in running.agents.values():
            agent.start()
        found = await ended(client, lost)
        assert (found["outcome"], "send it again" in str(found)) == ("output_lost", True)
        assert (await ended(client, other))["outcome"] == "length"
